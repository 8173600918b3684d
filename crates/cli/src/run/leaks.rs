//! `bfc run --leaks`: runs the program as a child with a history, and then lists what it allocated and did not free.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::args::Run;
use super::child::{code, wait_for};
use super::program::Program;
use super::settings::Settings;
use crate::environment as names;
use crate::history;
use crate::output;
use crate::temporary::Folder;

/// How many events are recorded by default: files of 65 MiB.
const EVENTS: &str = "1048576";

/// Runs the program, waits, and lists on standard error what each of its processes did not free.
pub fn run(program: &Program, mut settings: Settings, args: &Run) -> Result<ExitCode> {
    let is_set = |value: OsString| value.to_str().and_then(|text| text.parse().ok()).unwrap_or(0_u64) != 0;
    if !std::env::var_os(names::HISTORY).is_some_and(is_set) {
        settings.set(names::HISTORY, EVENTS);
    }
    // Removed when this returns, with all histories in it.
    let folder = args.history.is_none().then(|| Folder::new("bfc-leaks-XXXXXX")).transpose()?;
    let file = match (&args.history, &folder) {
        (None, Some(folder)) => {
            let file = folder.path().join("history");
            settings.set(names::HISTORY_FILE, &file);
            // At its end the program would name this file, which does not stay.
            settings.forget(names::PRELOAD_PROGRAM);
            file
        }
        (named, _) => named.clone().unwrap_or_default(),
    };
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let (_, ended) = wait_for(program, &settings)?;
    let left = list(&histories(&file)?, u64::try_from(began).unwrap_or(0))?;
    output::print_on_stderr(&left.text);
    let exit_code = match (code(ended), args.leaks_exit_code) {
        (0, Some(of_leaks)) if left.any => of_leaks,
        (of_program, _) => of_program,
    };
    Ok(exit_code.into())
}

/// What all processes left.
struct Left {
    text: String,
    any: bool,
}

/// Lists what is live at the end of each history that began at `began` or later.
fn list(files: &[PathBuf], began: u64) -> Result<Left> {
    let mut left = Left { text: String::new(), any: false };
    for file in files {
        // An unreadable one does not hide the others.
        match history::leaks_of(file, began) {
            Ok(Some((text, any))) => {
                left.text.push_str(&text);
                left.any |= any;
            }
            Ok(None) => {}
            Err(error) => output::complain(format_args!("{error:#}")),
        }
    }
    if left.text.is_empty() {
        left.text = "bfc: leaks: no history was recorded: no process used a pool of libbfc (bfc run --check shows why), or the \
                     file could not be created (BFC_LOG=warn)\n"
            .to_owned();
    }
    Ok(left)
}

/// The histories of the program's processes: the file, and for further processes `FILE.PID`.
fn histories(file: &Path) -> Result<Vec<PathBuf>> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = file.file_name().unwrap_or_default().as_bytes();
    let is_its = |other: &OsStr| {
        let rest = other.as_bytes().strip_prefix(name);
        rest.is_some_and(|rest| match rest {
            [] => true,
            [b'.', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
            _ => false,
        })
    };
    let what = || format!("cannot read the folder {}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let entry = entry.with_context(what)?;
        if is_its(&entry.file_name()) && history::is_one(&entry.path()) {
            found.push(entry.path());
        }
    }
    // The first process has the shortest name.
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    Ok(found)
}
