//! What falls back to the driver: requests that no pool serves, and frees without a context.

use cuda_sys::*;

use super::refusals::{self, Verdict};
use crate::diagnostics::trace;
use crate::driver::real;
use crate::pool::Pool;
use crate::state::captures;
use crate::state::contexts::{self, Current};

/// Has the driver serve a request. Out of line, for the frames of hooks lie above those of libbfc.
///
/// # Safety
/// If the call succeeds it has written `place`.
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

/// Calls the driver; where it has no memory the device's pool gives back what it can, and it is asked again.
pub(crate) fn with_trim(call: impl Fn() -> CUresult) -> CUresult {
    let of_device = || match contexts::current() {
        Current::Primary(device) => Pool::of_device(device),
        _ => None,
    };
    with_trim_of(of_device, call)
}

/// The same with a pool that holds such memory.
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

/// What the driver says where it can free nothing: that there is no context, that it is destroyed, or, at the end of the
/// process, that the driver is gone.
#[cold]
pub(crate) fn no_context_error() -> CUresult {
    // SAFETY: no preconditions; of NULL nothing is freed.
    let code = real::cuMemFree_v2().map_or(CUDA_ERROR_NOT_INITIALIZED, |free| unsafe { free(0) });
    if code == CUDA_SUCCESS { CUDA_ERROR_INVALID_CONTEXT } else { code }
}
