//! What the environment says about the history.

use super::environment::{Warnings, setting};
use super::values::stacks;
use super::variables as names;
use crate::error::{Error, LastError, keeping_last_error};
use crate::history::{self, PYTHON};
use crate::log::{self, Level};
use crate::sys::{HostMemoryExhausted, env, process};
use std::ffi::CStr;

/// Starts a recording, given a path and a number of events, if the environment asks for one. `BFC_HISTORY` is a number of
/// events, 0 for no history, and `BFC_HISTORY_FILE` a path. The history of a process that has ended is
/// set aside first. If another file has the name, the history of this process's parent for example, this process's number is
/// appended to it. A failure is a warning in the log, and the program goes on.
#[inline(never)]
pub(crate) fn start_as_set(start: impl Fn(Option<&CStr>, u64) -> Result<(), Error>) {
    let events = setting(&names::HISTORY, Warnings::Logged, |text| text.parse::<u64>().ok());
    let started = env::with(names::HISTORY_FILE.name, |path| match events {
        Some(0) => Ok(()),
        _ => keeping_last_error(|| {
            make_room(path)
                .and_then(|()| free_name(path))
                .inspect(|name| note_other_name(path, name))
                .map_err(Error::from)
                .and_then(|name| start(CStr::from_bytes_with_nul(&name).ok(), events.unwrap_or(0)))
                .inspect_err(|_| warn())
        }),
    });
    if let (None, Some(events @ 1..)) = (started, events) {
        let _ = keeping_last_error(|| start(None, events).inspect_err(|_| warn()));
    }
}

/// Calls `start` with the backtraces that `BFC_HISTORY_STACKS` asks for. Without Python in the process, `python` and `both`
/// have a warning in the log, and the history has the others.
#[inline(never)]
pub(crate) fn with_stacks_as_set(start: impl Fn(u32) -> Result<(), Error>) -> Result<(), Error> {
    let wanted = setting(&names::HISTORY_STACKS, Warnings::Logged, stacks).unwrap_or(0);
    match start(wanted) {
        Err(Error::Unsupported) if wanted & PYTHON != 0 => {
            log::emit(Level::Warn, format_args!("{LastError}"));
            start(wanted & !PYTHON)
        }
        done => done,
    }
}

/// Sets the history of an earlier process aside, so that this one's has the name that the caller will look for.
fn make_room(path: &str) -> Result<(), HostMemoryExhausted> {
    let mut name = Vec::new();
    name.try_reserve_exact(path.len() + 1)?;
    name.extend_from_slice(path.as_bytes());
    name.push(0);
    if let Ok(name) = CStr::from_bytes_with_nul(&name)
        && history::set_aside(name)?
    {
        let suffix = history::EARLIER_SUFFIX;
        log::emit(
            Level::Info,
            format_args!("{path} was the history of a process that has ended: it is {path}{suffix} now"),
        );
    }
    Ok(())
}

/// Warns that an earlier history stays where the caller may look first.
fn note_other_name(path: &str, name: &[u8]) {
    if let Ok(name) = std::str::from_utf8(name)
        && name.len() > path.len() + 1
    {
        let name = name.trim_end_matches('\0');
        log::emit(Level::Warn, format_args!("{path} exists, so the history is recorded into {name}"));
    }
}

fn warn() {
    log::emit(Level::Warn, format_args!("no history is recorded: {LastError}"));
}

/// Returns a path as a NUL-terminated name that no file has yet, as far as that can be known.
fn free_name(path: &str) -> Result<Vec<u8>, HostMemoryExhausted> {
    let mut name = Vec::new();
    name.try_reserve_exact(path.len() + 16)?;
    name.extend_from_slice(path.as_bytes());
    name.push(0);
    // SAFETY: the name is NUL-terminated.
    if unsafe { libc::access(name.as_ptr().cast(), libc::F_OK) } == 0 {
        name.pop();
        name.push(b'.');
        let mut place = [0; 10];
        let (mut left, mut at) = (process().unsigned_abs(), place.len());
        while at == place.len() || left != 0 {
            at -= 1;
            place[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        name.extend_from_slice(&place[at..]);
        name.push(0);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_the_number_of_the_process() {
        assert_eq!(free_name("/nonexistent/history").unwrap(), b"/nonexistent/history\0");
        let expected = format!("/proc/self.{}\0", std::process::id());
        assert_eq!(free_name("/proc/self").unwrap(), expected.as_bytes());
    }
}
