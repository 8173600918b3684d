//! Calls of the driver: requests that no pool serves, and the errors of frees without a context.

use cuda_sys::*;

use super::refusals::{self, Verdict};
use crate::diagnostics::trace;
use crate::driver::real;
use crate::pool::Pool;
use crate::state::captures;
use crate::state::contexts::{self, Current};

/// Serves a request by calling the driver. Out of line, because the frames of hooks are on the stack while libbfc runs.
///
/// # Safety
/// `place` was written if the call succeeds.
#[cold]
#[inline(never)]
pub(crate) unsafe fn call_driver(
    place: *mut CUdeviceptr,
    bytes: usize,
    stream: usize,
    verdict: Verdict,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let code = with_trim(call);
    // SAFETY: by this function's contract.
    unsafe { trace::passed(code, place, bytes, stream) };
    refusals::note(code, bytes, stream, verdict)
}

/// Calls the driver. If memory ran out, trims the current device's pool and calls it again.
pub(crate) fn with_trim(call: impl Fn() -> CUresult) -> CUresult {
    let of_device = || match contexts::current() {
        Current::Primary(device) => Pool::of_device(device),
        _ => None,
    };
    with_trim_of(of_device, call)
}

/// Calls the driver like [`with_trim`], with a trim of the pool that holds this kind of memory.
pub(crate) fn with_trim_of(pool: impl FnOnce() -> Option<Pool>, call: impl Fn() -> CUresult) -> CUresult {
    let code = call();
    if code != CUDA_ERROR_OUT_OF_MEMORY || captures::any() {
        return code;
    }
    match pool().map_or(0, Pool::trim_all) {
        0 => code,
        _ => call(),
    }
}

/// Returns the driver's error for a free that is impossible because there is no context, it is destroyed, or the driver
/// has shut down with the process.
#[cold]
pub(crate) fn no_context_error() -> CUresult {
    // SAFETY: no preconditions; of NULL nothing is freed.
    let code = real::cuMemFree_v2().map_or(CUDA_ERROR_NOT_INITIALIZED, |free| unsafe { free(0) });
    if code == CUDA_SUCCESS { CUDA_ERROR_INVALID_CONTEXT } else { code }
}
