//! The program: finding it as a shell does, running it, and a shell's message if that is impossible.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::Result;

use super::settings::Settings;
use super::{exec, file};
use crate::size;

/// As in every shell.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// The folders of programs if PATH is not set, as in the C library.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Why the program was not run, with the exit code that says so.
#[derive(Debug)]
pub struct Refusal {
    pub code: u8,
    pub words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

/// A program that exists and appears to be executable.
pub struct Program {
    /// Its file.
    pub file: PathBuf,
    /// What it was called and its arguments.
    words: Vec<OsString>,
}

impl Program {
    /// Finds the program that the first word names.
    pub fn find(words: &[OsString]) -> Result<Self> {
        let name = words.first().map(OsString::as_os_str).unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
        let before = env::args_os().nth_back(words.len());
        let file = look_up(name, &path).map_err(|mut refusal| {
            refusal.words.extend(misread(name, before.as_deref()));
            refusal
        })?;
        Ok(Self { file, words: words.to_vec() })
    }

    /// Becomes the program. Returns only if that fails, with the reason.
    pub fn exec(&self, settings: &Settings) -> Refusal {
        self.refusal(&exec::exec(&self.file, &self.words, settings.changes()))
    }

    /// Starts the program as a child, which calls `first` before it becomes the program.
    ///
    /// # Safety
    ///
    /// `first` runs between fork and exec.
    pub unsafe fn spawn(
        &self,
        settings: &Settings,
        first: impl Fn() + Send + Sync + 'static,
    ) -> Result<Child> {
        let (file, words, changes) = (self.file.clone(), self.words.clone(), settings.changes().to_vec());
        let mut command = Command::new(&self.file);
        let become_it = move || {
            first();
            // The same exec as without --check. The standard library's, which would follow, is never reached.
            Err(exec::exec(&file, &words, &changes))
        };
        // SAFETY: between fork and exec; this process has one thread, so that what the child finds is whole, memory
        // for strings too.
        unsafe { command.pre_exec(become_it) };
        Ok(command.spawn().map_err(|error| self.refusal(&error))?)
    }

    /// What it was called, without folders.
    pub fn name(&self) -> String {
        let name = self.words.first().map(Path::new).unwrap_or(&self.file);
        name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned()
    }

    fn refusal(&self, error: &io::Error) -> Refusal {
        let name = self.file.display();
        match error.kind() {
            // The file itself existed a moment ago.
            ErrorKind::NotFound => {
                let words = match file::interpreter(&self.file) {
                    Some(other) => format!("{name} needs {}, which does not exist", other.display()),
                    None => format!("{name} no longer exists, or something that it needs to start does not"),
                };
                Refusal { code: NOT_FOUND, words }
            }
            _ => Refusal { code: NOT_EXECUTABLE, words: format!("{name} cannot be executed: {error}") },
        }
    }
}

/// The file that a shell would run for this name.
fn look_up(name: &OsStr, path: &OsStr) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match why_not(&file) {
            None => Ok(file),
            Some(refusal) => Err(refusal),
        };
    }
    let mut unusable = None;
    // An empty name is never found, as in a shell.
    for folder in env::split_paths(path).filter(|_| !name.is_empty()) {
        // An empty entry is the current folder. A path without a slash would be searched for once more.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let file = folder.join(name);
        match why_not(&file) {
            None => return Ok(file),
            Some(refusal) if refusal.code == NOT_EXECUTABLE && file.is_file() => {
                unusable.get_or_insert(refusal);
            }
            Some(_) => {}
        }
    }
    Err(unusable.unwrap_or_else(|| {
        let here = Path::new(name).is_file();
        let advice = if here { "; for the file in this folder write ./ before it" } else { "" };
        let words = format!("{} was not found in PATH{advice}", Path::new(name).display());
        Refusal { code: NOT_FOUND, words }
    }))
}

/// The advice if the program's name was taken for the value of the option before it.
fn misread(name: &OsStr, before: Option<&OsStr>) -> Option<String> {
    let (name, before) = (name.to_str()?, before?.to_str()?);
    let size = format!("{before}{name}");
    if size::parse(before).is_ok() && size::parse(name).is_err() && size::parse(&size).is_ok() {
        return Some(format!("; write the size without a space: {size}"));
    }
    (before == "--report").then(|| format!("; if it is the file of --report, write --report={name}"))
}

/// Why a file cannot be run, as far as this is visible in advance.
fn why_not(file: &Path) -> Option<Refusal> {
    let name = file.display();
    let refusal = |code, words| Some(Refusal { code, words });
    match file.metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            refusal(NOT_FOUND, format!("there is no {name}"))
        }
        Err(error) => refusal(NOT_EXECUTABLE, format!("{name} cannot be examined: {error}")),
        Ok(found) if found.is_dir() => {
            refusal(NOT_EXECUTABLE, format!("{name} is a folder and not a program"))
        }
        Ok(_) if !may_execute(file) => {
            let words = format!("{name} may not be executed: chmod +x, or name its interpreter before it");
            refusal(NOT_EXECUTABLE, words)
        }
        Ok(_) => None,
    }
}

fn may_execute(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is NUL-terminated and lives through the call.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(name: &str, path: &str) -> Result<PathBuf, u8> {
        look_up(OsStr::new(name), OsStr::new(path)).map_err(|refusal| refusal.code)
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert_eq!(code("sh", "/nonexistent:/bin"), Ok("/bin/sh".into()));
        assert_eq!(code("/bin/sh", ""), Ok("/bin/sh".into()));
        assert_eq!(code("sh", "/nonexistent"), Err(NOT_FOUND));
        assert_eq!(code("", "/bin"), Err(NOT_FOUND));
        assert_eq!(code("/nonexistent/sh", "/bin"), Err(NOT_FOUND));
        assert_eq!(code("/bin/sh/sh", "/bin"), Err(NOT_FOUND));
        assert_eq!(code("/", "/bin"), Err(NOT_EXECUTABLE));
        // A file that may not be executed is skipped, and reported only if there is no other.
        assert_eq!(code("passwd", "/etc"), Err(NOT_EXECUTABLE));
        assert_eq!(code("passwd", "/etc:/usr/bin"), Ok("/usr/bin/passwd".into()));
        // A folder of that name is nothing.
        assert_eq!(code("etc", "/"), Err(NOT_FOUND));
    }
}
