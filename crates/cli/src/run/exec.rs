//! Becoming another program.
//!
//! The standard library's `exec` is not used: it passes every file that is not a program to the shell, even a program
//! for another machine, and it empties the signal mask.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process;
use std::ptr;

use super::file;
use crate::environment::PRELOAD_PROGRAM;

/// The shell that runs a script which names no interpreter.
const SHELL: &str = "/bin/sh";

/// Replaces this process's program by `file`, called with `words`, the first of which is its name, and with the
/// environment as it is but for `changes`. Returns only if that is not possible, and says why.
pub fn exec(file: &Path, words: &[OsString], changes: &[(&str, Option<OsString>)]) -> io::Error {
    let mut changes = changes.to_vec();
    // This process stays the program's.
    let program = changes.iter_mut().find(|(name, _)| *name == PRELOAD_PROGRAM);
    if let Some((_, number)) = program {
        *number = Some(process::id().to_string().into());
    }
    let environment = environment(env::vars_os(), &changes);
    // SAFETY: the usual effect, as a program finds it; Rust's start-up has had the signal ignored, and that would last.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let error = execve(file.as_os_str(), words.iter().map(OsString::as_os_str), &environment);
    if error.raw_os_error() != Some(libc::ENOEXEC) || file::is_elf(file) {
        return error;
    }
    let arguments = words.iter().skip(1).map(OsString::as_os_str);
    let words = [OsStr::new(SHELL), file.as_os_str()].into_iter().chain(arguments);
    execve(OsStr::new(SHELL), words, &environment)
}

/// `NAME=VALUE` of all variables.
fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
    changes: &[(&str, Option<OsString>)],
) -> Vec<OsString> {
    let stays = |name: &OsStr| changes.iter().all(|(changed, _)| *changed != name);
    let old = variables.filter(|(name, _)| stays(name));
    let new = changes.iter().filter_map(|(name, value)| Some((OsString::from(name), value.clone()?)));
    old.chain(new)
        .map(|(mut text, value)| {
            text.push("=");
            text.push(value);
            text
        })
        .collect()
}

fn execve<'a>(file: &OsStr, words: impl Iterator<Item = &'a OsStr>, environment: &[OsString]) -> io::Error {
    let strings = |all: Vec<&OsStr>| all.into_iter().map(|one| CString::new(one.as_bytes())).collect();
    let words: Result<Vec<CString>, _> = strings(words.collect());
    let environment: Result<Vec<CString>, _> = strings(environment.iter().map(OsString::as_os_str).collect());
    let (Ok(file), Ok(words), Ok(environment)) = (CString::new(file.as_bytes()), words, environment) else {
        return io::Error::from_raw_os_error(libc::EINVAL);
    };
    let pointers =
        |all: &[CString]| -> Vec<_> { all.iter().map(|one| one.as_ptr()).chain([ptr::null()]).collect() };
    let (arguments, variables) = (pointers(&words), pointers(&environment));
    // SAFETY: NUL-terminated strings, in lists that end with NULL; all of them live through the call.
    unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_made_and_the_rest_stays() {
        let old = [("A", "1"), ("B", "2"), ("C", "3")].map(|(a, b)| (a.into(), b.into()));
        let changes = [("B", Some("x=y".into())), ("C", None), ("D", Some("".into())), ("E", None)];
        assert_eq!(environment(old.into_iter(), &changes), ["A=1", "B=x=y", "D="]);
    }

    #[test]
    fn what_cannot_be_executed_is_told() {
        let error = |path: &str| exec(Path::new(path), &["x".into()], &[]).raw_os_error();
        assert_eq!(error("/nonexistent"), Some(libc::ENOENT));
        assert_eq!(error("/etc/passwd"), Some(libc::EACCES));
        assert_eq!(error("/a\0b"), Some(libc::EINVAL));
    }
}
