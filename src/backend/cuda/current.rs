//! The current context, and the device used for a thread that names none.

use super::calls::{self, Failure};
use crate::error::ErrorKind;
use cuda_sys::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_NOT_INITIALIZED, Driver};

/// Returns the ordinal of the device whose context is current in the calling thread. Returns `None` if there is no
/// driver or no current context.
pub(crate) fn current_device() -> Result<Option<i32>, ErrorKind> {
    let Ok(driver) = Driver::load() else { return Ok(None) };
    match ordinal_of_current(driver) {
        Err(failure) if failure.is(CUDA_ERROR_INVALID_CONTEXT) => Ok(None),
        Err(failure) if failure.is(CUDA_ERROR_NOT_INITIALIZED) => Ok(None),
        found => found.map_err(|failure| failure.explain(driver)),
    }
}

/// Returns the handle of the context that is current in the calling thread, or 0.
#[inline]
pub(crate) fn current_context() -> u64 {
    let Ok(driver) = Driver::load() else { return 0 };
    calls::current(driver).map_or(0, |context| context as u64)
}

fn ordinal_of_current(driver: Driver) -> Result<Option<i32>, Failure> {
    let current = calls::current_device(driver)?;
    // A device's handle equals its ordinal in every known driver, but no manual says so.
    if calls::device(driver, current) == Ok(current) {
        return Ok(Some(current));
    }
    for ordinal in 0..calls::device_count(driver)? {
        if calls::device(driver, ordinal)? == current {
            return Ok(Some(ordinal));
        }
    }
    Ok(None)
}
