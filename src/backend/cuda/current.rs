//! Which device a thread means that names none.

use super::calls::{self, Failure};
use crate::error::Error;
use cuda_sys::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_NOT_INITIALIZED, Driver};

/// The ordinal of the device whose context the calling thread has current; `None` where there is no driver, or no
/// context.
pub(crate) fn current_device() -> Result<Option<i32>, Error> {
    let Ok(driver) = Driver::load() else { return Ok(None) };
    match ordinal_of_current(driver) {
        Err(failure) if failure.is(CUDA_ERROR_INVALID_CONTEXT) => Ok(None),
        Err(failure) if failure.is(CUDA_ERROR_NOT_INITIALIZED) => Ok(None),
        found => found.map_err(|failure| failure.explain(driver)),
    }
}

fn ordinal_of_current(driver: Driver) -> Result<Option<i32>, Failure> {
    let current = calls::current_device(driver)?;
    // A device's handle is its ordinal in every driver that was ever seen, but no manual says so.
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
