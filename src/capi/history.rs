//! The history.

use super::ffi_result::status;
use super::types::bfc_status_t;
use crate::device::history;
use crate::error::{ErrorKind, fail};
use std::ffi::{CStr, c_char};

/// # Safety
/// `path` is NULL or a NUL-terminated string, which is valid as long as the result is used.
unsafe fn named<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not NULL, so NUL-terminated by this function's contract.
    if path.is_null() { None } else { Some(unsafe { CStr::from_ptr(path) }) }
}

/// Backtraces of native code, for bfc_history_start_with_stacks.
pub const BFC_STACKS_NATIVE: u32 = 1u32 << 0;
/// Backtraces of Python, for bfc_history_start_with_stacks.
pub const BFC_STACKS_PYTHON: u32 = 1u32 << 1;

/// Starts recording the history: the last events of all allocators of the process, existing and future ones.
/// Events are allocations, frees, regions obtained and given back, failed requests, steps of scopes, and marks. `bfc
/// report` reads it, while it is recorded and after the process has ended or was killed. An event takes 64 bytes. The
/// environment variable BFC_HISTORY_STACKS determines whether allocations are recorded with backtraces.
///
/// @param path    A file, which must not exist yet. It is created with its full size, readable by its owner only, and must
///                not be truncated while it is recorded (SIGBUS). NULL records into memory, which bfc_history_save writes
///                to a file.
/// @param events  How many of the last events are kept, rounded up to a power of two from 1,024 to 2^28. 0: 262,144.
/// @return BFC_OK; BFC_ERROR_ALREADY_EXISTS if a history is recorded already; BFC_ERROR_INVALID_ARGUMENT if the file
///         cannot be created; BFC_ERROR_OUT_OF_MEMORY (host memory); BFC_ERROR_BUSY in a signal handler that interrupted
///         a call of the library, after which not all allocators may be recorded.
///
/// # Safety
/// `path` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_history_start(path: *const c_char, events: u64) -> bfc_status_t {
    // SAFETY: by this function's contract.
    status(|| history::start_with_default_stacks(unsafe { named(path) }, events))
}

/// Starts recording like bfc_history_start, with a backtrace of each allocation and of requests that fail: the 64
/// innermost frames. Each different backtrace is stored once, in 4 MiB. `bfc report` names the functions, from the
/// files of the program and its libraries, which must not have changed since. An allocation then takes microseconds.
///
/// @param path    As for bfc_history_start.
/// @param events  As for bfc_history_start.
/// @param stacks  BFC_STACKS_NATIVE, BFC_STACKS_PYTHON, both, or 0 for none, whatever the environment says.
/// @return As bfc_history_start. BFC_ERROR_INVALID_ARGUMENT also for another bit in `stacks`; BFC_ERROR_UNSUPPORTED for
///         BFC_STACKS_PYTHON in a process without CPython 3.10 to 3.14, after which nothing is recorded.
///
/// # Safety
/// `path` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_history_start_with_stacks(
    path: *const c_char,
    events: u64,
    stacks: u32,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    status(|| history::start(unsafe { named(path) }, events, stacks))
}

/// Stops recording the history. A file stays as it is. A history in memory is gone.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if none is recorded; BFC_ERROR_BUSY as for bfc_history_start.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_history_stop() -> bfc_status_t {
    status(history::stop)
}

/// Writes a copy of the history so far to a file. Recording goes on meanwhile.
///
/// @param path  A file, which must not exist yet. Must not be NULL.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if none is recorded or the file cannot be created; BFC_ERROR_BUSY as for
///         bfc_history_start. After a failure there is no file.
///
/// # Safety
/// `path` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_history_save(path: *const c_char) -> bfc_status_t {
    status(|| {
        // SAFETY: by this function's contract.
        let path = unsafe { named(path) };
        history::save(path.ok_or_else(|| fail!(ErrorKind::InvalidArgument, "the path is NULL"))?)
    })
}

/// Marks this moment in the history, for example the beginning of an epoch. The events between two marks can then be
/// compared.
///
/// @param name  UTF-8, copied. Must not be NULL.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if no history is recorded, or the name is NULL or not UTF-8;
///         BFC_ERROR_BUSY as for bfc_history_start.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_history_mark(name: *const c_char) -> bfc_status_t {
    status(|| {
        // SAFETY: by this function's contract.
        let name = unsafe { named(name) };
        let name = name.ok_or_else(|| fail!(ErrorKind::InvalidArgument, "the mark's name is NULL"))?;
        history::mark(
            name.to_str().map_err(|_| fail!(ErrorKind::InvalidArgument, "the mark's name is not UTF-8"))?,
        )
    })
}
