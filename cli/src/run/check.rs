//! `bfc run --check`: the program as a child, and then what the interposer saw.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};

use super::file::Facts;
use super::program::Program;
use super::settings::Settings;
use super::verdict::{Ended, Ran, judge};
use super::{check_report, signals};
use crate::environment::PRELOAD_CHECK;

/// The exit code where nothing came from the pool.
const NOT_INTERPOSED: u8 = 3;

/// As a shell has it: what is added to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Runs the program, waits, and says on standard error what was seen.
pub fn run(program: &Program, mut settings: Settings) -> Result<ExitCode> {
    let notes = Notes::new()?;
    settings.set(PRELOAD_CHECK, notes.file());
    // Before it runs: a program may be gone when it has ended.
    let file = Facts::of(&program.file);
    let (pid, ended) = wait_for(program, &settings)?;
    let seen = notes.read()?;
    let ran = Ran { pid, name: program.name(), file, ended };
    let judgement = judge(&seen, &ran);
    // Nobody who reads is no reason to give another exit code.
    let _ = io::stderr().write_all(check_report::report(&judgement, &ran).as_bytes());
    Ok(if judgement.took_hold { code(ran.ended).into() } else { NOT_INTERPOSED.into() })
}

/// Runs the program as a child and waits for it, passing on signals. Returns its number and how it ended.
pub fn wait_for(program: &Program, settings: &Settings) -> Result<(u32, Ended)> {
    let mut pid = 0;
    let status = signals::wait(|held| {
        // SAFETY: release only calls what is allowed between fork and exec.
        let child = unsafe { program.spawn(settings, move || held.release()) }?;
        pid = child.id();
        Ok(child)
    })?;
    Ok((pid, ended(status)))
}

fn ended(status: ExitStatus) -> Ended {
    status.code().map_or_else(|| Ended::Signal(status.signal().unwrap_or(0)), Ended::Code)
}

/// The exit code of a shell for a program that ended so.
pub fn code(ended: Ended) -> u8 {
    let code = match ended {
        Ended::Code(code) => code,
        Ended::Signal(signal) => BY_SIGNAL + signal,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// A folder for temporary files of this command's user, removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates one, with a name like `pattern`, which ends with six letters X.
    pub fn new(pattern: &str) -> Result<Self> {
        let pattern = std::env::temp_dir().join(pattern);
        let what = || format!("cannot make a folder for temporary files like {}", pattern.display());
        let absolute = std::path::absolute(&pattern).with_context(what)?;
        let mut name = absolute.as_os_str().as_bytes().to_vec();
        name.push(0);
        // SAFETY: NUL-terminated and writable.
        let made = unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) };
        if made.is_null() {
            return Err(io::Error::last_os_error()).with_context(what);
        }
        name.pop();
        Ok(Self(OsStr::from_bytes(&name).into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in a folder for temporary files is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The file that the interposer writes, in a folder of its own, which goes with this value.
struct Notes {
    folder: Folder,
}

impl Notes {
    /// Whoever knows the name may write, for the program's children may be other users'; nobody can list it.
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

    /// What was written. A path in it may be no UTF-8.
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
    fn the_end_of_a_program_is_an_exit_code() {
        assert_eq!(code(ended(ExitStatus::from_raw(5 << 8))), 5);
        assert_eq!(code(ended(ExitStatus::from_raw(libc::SIGTERM))), 143);
    }

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
