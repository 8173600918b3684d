//! `bfc run --check`: runs the program as a child, and then reports what the interposer observed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::check_report;
use super::child::{code, wait_for};
use super::file::Facts;
use super::program::Program;
use super::settings::Settings;
use super::verdict::{Ran, judge};
use crate::environment::PRELOAD_CHECK;
use crate::output;
use crate::temporary::Folder;

/// The exit code if nothing came from the pool.
const NOT_INTERPOSED: u8 = 3;

/// Runs the program, waits, and prints to standard error what was observed.
pub fn run(program: &Program, mut settings: Settings) -> Result<ExitCode> {
    let notes = Notes::new()?;
    settings.set(PRELOAD_CHECK, notes.file());
    // Before it runs, because its file may be gone when it has ended.
    let file = Facts::of(&program.file);
    let (pid, ended) = wait_for(program, &settings)?;
    let seen = notes.read()?;
    let ran = Ran { pid, name: program.name(), file, ended };
    let judgement = judge(&seen, &ran);
    output::print_on_stderr(&check_report::report(&judgement, &ran));
    Ok(if judgement.took_hold { code(ran.ended).into() } else { NOT_INTERPOSED.into() })
}

/// The file that the interposer writes, in a folder that is removed with this value.
struct Notes {
    folder: Folder,
}

impl Notes {
    /// Creates it. Processes of other users may write to the file, because a program may start some, but cannot list
    /// the folder.
    fn new() -> Result<Self> {
        let notes = Self { folder: Folder::new("bfc-check-XXXXXX")? };
        let written = fs::write(notes.file(), "")
            .and_then(|()| fs::set_permissions(notes.file(), Permissions::from_mode(0o666)))
            .and_then(|()| fs::set_permissions(notes.folder.path(), Permissions::from_mode(0o711)));
        written.with_context(|| format!("cannot prepare {}", notes.folder.path().display()))?;
        Ok(notes)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("seen")
    }

    /// The contents. A path in it need not be UTF-8.
    fn read(&self) -> Result<String> {
        let bytes =
            fs::read(self.file()).with_context(|| format!("cannot read {}", self.file().display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_go_with_their_folder() {
        let notes = Notes::new().expect("a folder for temporary files");
        let folder = notes.folder.path().to_owned();
        fs::write(notes.file(), b"7 loaded /\xff\n").expect("writable");
        assert_eq!(notes.read().expect("readable"), "7 loaded /\u{fffd}\n");
        drop(notes);
        assert!(!folder.exists());
    }
}
