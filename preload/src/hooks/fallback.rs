//! Calls of the driver: requests that no pool serves, calls that need memory which a pool may hold, and the errors of frees
//! without a context.

use cuda_sys::*;

use super::refusals::{self, Verdict};
use crate::diagnostics::trace;
use crate::driver::real;
use crate::pool::Pool;
use crate::state::captures;
use crate::state::contexts;
use crate::state::streams;

/// The pools that may hold the memory that a call of the driver needs.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// That of the current context's device.
    Current,
    Device(CUdevice),
    /// That of the device of a stream.
    Stream(CUstream),
    /// Those of all devices, because the driver does not say which device it is.
    All,
    /// That of pinned host memory.
    Pinned,
}

impl Source {
    /// Returns what these pools do not use to the driver, for a request of `bytes` (0: unknown). Returns the number of
    /// bytes.
    #[cold]
    #[inline(never)]
    fn make_room(self, bytes: usize) -> u64 {
        let device = match self {
            Source::Current => contexts::current_device(),
            Source::Device(device) => usize::try_from(device).ok(),
            Source::Stream(stream) => streams::device_of_stream(stream),
            Source::All => None,
            Source::Pinned => {
                let pool = Some(Pool::pinned()).filter(|pool| pool.is_ours());
                return pool.map_or(0, |pool| pool.make_room(bytes as u64));
            }
        };
        let is_concerned = |pool: &Pool| device.is_none() || pool.device() == device;
        Pool::of_devices().filter(is_concerned).map(|pool| pool.make_room(bytes as u64)).sum()
    }
}

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
    source: Source,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let code = with_room(|| (source, bytes), call);
    // SAFETY: by this function's contract.
    unsafe { trace::passed(code, place, bytes, stream) };
    refusals::note(code, bytes, stream, verdict)
}

/// Calls the driver, and calls it once more if it was out of memory and pools could return some. `need` returns these
/// pools and the size of the request, or 0 if it is not known. During a capture no pool can return anything.
#[inline]
pub(crate) fn with_room(need: impl FnOnce() -> (Source, usize), call: impl Fn() -> CUresult) -> CUresult {
    let code = call();
    if code != CUDA_ERROR_OUT_OF_MEMORY || captures::any() {
        return code;
    }
    let (source, bytes) = need();
    if source.make_room(bytes) == 0 { code } else { call() }
}

/// Returns the driver's error for a free that is impossible because there is no context, it is destroyed, or the driver
/// has shut down with the process.
#[cold]
pub(crate) fn no_context_error() -> CUresult {
    // SAFETY: no preconditions; of NULL nothing is freed.
    let code = real::cuMemFree_v2().map_or(CUDA_ERROR_NOT_INITIALIZED, |free| unsafe { free(0) });
    if code == CUDA_SUCCESS { CUDA_ERROR_INVALID_CONTEXT } else { code }
}
