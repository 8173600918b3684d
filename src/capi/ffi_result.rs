//! Conversion of Rust results to C returns.

use super::last_status;
use super::types::bfc_status_t;
use crate::error::{ErrorKind, LastError, fail, set_last_error};
use crate::log::{self, Level};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call and converts its result, or a panic, to a status.
#[inline]
pub(super) fn status(work: impl FnOnce() -> Result<(), ErrorKind>) -> bfc_status_t {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.code(),
        Err(payload) => {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            set_last_error(format_args!("a panic inside libbfc was caught: please report it"));
            ErrorKind::Internal.code()
        }
    }
}

/// Runs a call for a C function that returns no status. On failure it returns `failed`, and the error is available
/// through `BFC_LOG`, bfc_last_error and bfc_adapter_status.
#[inline]
pub(super) fn or_log<T>(name: &str, failed: T, work: impl FnOnce() -> Result<T, ErrorKind>) -> T {
    let mut result = None;
    let answer = status(|| {
        result = Some(work()?);
        Ok(())
    });
    if answer != 0 {
        last_status::store(answer);
        log_failure(name);
    }
    result.unwrap_or(failed)
}

#[cold]
fn log_failure(name: &str) {
    if log::is_wanted(Level::Error) {
        log::emit(Level::Error, format_args!("{name}: {LastError}"));
    }
}

/// Runs a call whose result is written to `out`. On every other path `failed` is written.
///
/// # Safety
/// `out` is NULL or valid for writing a `T`.
#[inline]
pub(super) unsafe fn status_and<T: Copy>(
    out: *mut T,
    failed: T,
    work: impl FnOnce() -> Result<T, ErrorKind>,
) -> bfc_status_t {
    if out.is_null() {
        return fail!(ErrorKind::InvalidArgument, "an out-pointer is NULL").code();
    }
    // Written first, so that it holds even if the call panics.
    // SAFETY: not NULL, so valid by this function's contract.
    unsafe { out.write(failed) };
    status(|| {
        let value = work()?;
        // SAFETY: as above.
        unsafe { out.write(value) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::with_last_error;

    #[test]
    fn a_panic_becomes_a_status_and_the_result_is_written() {
        let mut out = 7;
        // SAFETY: `out` is valid for writing.
        let answer = unsafe { status_and(&mut out, 0, || panic!("inside")) };
        assert_eq!((answer, out), (ErrorKind::Internal.code(), 0));
        with_last_error(|words| assert!(words.contains("panic"), "{words}"));
        // SAFETY: NULL is allowed.
        let answer = unsafe { status_and(std::ptr::null_mut(), 0, || Ok(1)) };
        assert_eq!(answer, ErrorKind::InvalidArgument.code());
    }
}
