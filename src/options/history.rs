//! What the environment says about the history.

use super::environment::{Warnings, given, setting};
use super::values::stacks;
use super::variables as names;
use crate::error::{ErrorKind, LastError, keeping_last_error};
use crate::history::{self, PYTHON};
use crate::log::{self, Level};
use crate::sys::c_string::{decimal, joined};
use crate::sys::process;
use bfc_hostmem::HostMemoryExhausted;
use os::terminal::Lossy;
use std::ffi::{CStr, CString};

/// Starts a recording, given a path and a number of events, if the environment asks for one. `BFC_HISTORY` is a number of
/// events, 0 for no history, and `BFC_HISTORY_FILE` a path. The history of a process that has ended is
/// set aside first. If another file has the name, the history of this process's parent for example, this process's number is
/// appended to it. An earlier process may have had that number too, and its history is set aside as well. A failure is a
/// warning in the log, and the program goes on.
#[inline(never)]
pub(crate) fn start_as_set(start: impl Fn(Option<&CStr>, u64) -> Result<(), ErrorKind>) {
    let events = setting(&names::HISTORY, Warnings::Logged, |text| text.parse::<u64>().ok());
    let started = given(&names::HISTORY_FILE, Warnings::Logged).map(|path| match events {
        Some(0) => Ok(()),
        _ => keeping_last_error(|| {
            make_room(path)
                .and_then(|()| free_name(path))
                .and_then(|name| make_room(&name).map(|()| name))
                .inspect(|name| note_other_name(path, name))
                .map_err(ErrorKind::from)
                .and_then(|name| start(Some(&name), events.unwrap_or(0)))
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
pub(crate) fn with_stacks_as_set(start: impl Fn(u32) -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
    let wanted = setting(&names::HISTORY_STACKS, Warnings::Logged, stacks).unwrap_or(0);
    match start(wanted) {
        Err(ErrorKind::Unsupported) if wanted & PYTHON != 0 => {
            log::emit(Level::Warn, format_args!("{LastError}"));
            start(wanted & !PYTHON)
        }
        done => done,
    }
}

/// Sets the history of an earlier process aside, so that this one's has the name that the caller will look for.
fn make_room(path: &CStr) -> Result<(), HostMemoryExhausted> {
    if history::rename_earlier(path)? {
        let (path, suffix) = (Lossy(path.to_bytes()), history::EARLIER_SUFFIX);
        log::emit(
            Level::Info,
            format_args!("{path} was the history of a process that has ended: it is {path}{suffix} now"),
        );
    }
    Ok(())
}

/// Warns that an earlier history stays where the caller may look first.
fn note_other_name(path: &CStr, name: &CStr) {
    if name != path {
        let [path, name] = [path, name].map(|path| Lossy(path.to_bytes()));
        log::emit(Level::Warn, format_args!("{path} exists, so the history is recorded into {name}"));
    }
}

fn warn() {
    log::emit(Level::Warn, format_args!("no history is recorded: {LastError}"));
}

/// Returns a path, or another one if there is a file already, as far as that can be known.
fn free_name(path: &CStr) -> Result<CString, HostMemoryExhausted> {
    // SAFETY: the path is NUL-terminated.
    if unsafe { libc::access(path.as_ptr(), libc::F_OK) } != 0 {
        return joined(&[path.to_bytes()]);
    }
    joined(&[path.to_bytes(), b".", decimal(process().unsigned_abs().into(), &mut [0; 20])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_the_number_of_the_process() {
        assert_eq!(free_name(c"/nonexistent/history").unwrap().as_c_str(), c"/nonexistent/history");
        let expected = format!("/proc/self.{}", std::process::id());
        assert_eq!(free_name(c"/proc/self").unwrap().to_str(), Ok(&*expected));
    }
}
