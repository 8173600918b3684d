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
    /// The pool of the current context's device.
    Current,
    Device(CUdevice),
    /// The pool of the device of a stream.
    Stream(CUstream),
    /// Most likely the pool of the device of a stream, but the driver does not report which device it is.
    AnyNear(CUstream),
    /// Most likely the pool of the current context's device, but the driver does not report which device it is.
    Any,
    /// The pool of pinned host memory.
    Pinned,
}

impl Source {
    /// Returns the unused memory of the affected device's pool to the driver, for a request of `bytes`
    /// (0: unknown). Returns whether the driver may serve it now.
    fn make_room(self, bytes: usize) -> bool {
        let room = |pool: Pool| pool.make_room(bytes as u64);
        if let Source::Pinned = self {
            return Some(Pool::pinned()).filter(|pool| pool.is_ours()).is_some_and(room);
        }
        let device = self.device();
        Pool::of_devices().find(|pool| device.is_some() && pool.device() == device).is_some_and(room)
    }

    /// Returns unused memory of other devices' pools, if the device is not known. Does not wait for their work, because
    /// it may itself wait for what this thread does next.
    fn make_room_elsewhere(self, bytes: usize) -> bool {
        let device = self.device();
        let is_known = device.is_some() && !matches!(self, Source::Any | Source::AnyNear(_));
        if is_known || matches!(self, Source::Pinned) {
            return false;
        }
        let others = Pool::of_devices().filter(|pool| pool.device() != device);
        others.filter(|pool| pool.make_room_at_once(bytes as u64)).count() != 0
    }

    /// Returns the affected device, or the most likely one.
    fn device(self) -> Option<usize> {
        match self {
            Source::Current | Source::Any => contexts::current_device(),
            Source::Device(device) => usize::try_from(device).ok(),
            Source::Stream(stream) | Source::AnyNear(stream) => streams::device_of_stream(stream),
            Source::Pinned => None,
        }
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

/// Calls the driver, and calls it again if it was out of memory and pools could return some: the pool of the affected
/// device, and then others. `need` returns these pools and the size of the request, or 0 if it is not known. During a
/// capture no pool can return anything.
#[inline]
pub(crate) fn with_room(need: impl FnOnce() -> (Source, usize), call: impl Fn() -> CUresult) -> CUresult {
    let code = call();
    if code == CUDA_ERROR_OUT_OF_MEMORY { again(need(), &call) } else { code }
}

#[cold]
#[inline(never)]
fn again((source, bytes): (Source, usize), call: &dyn Fn() -> CUresult) -> CUresult {
    for make_room in [Source::make_room, Source::make_room_elsewhere] {
        if !captures::any() && make_room(source, bytes) {
            let code = call();
            if code != CUDA_ERROR_OUT_OF_MEMORY {
                return code;
            }
        }
    }
    CUDA_ERROR_OUT_OF_MEMORY
}

/// Returns the driver's error for a free that is impossible because there is no context, it is destroyed, or the driver
/// has shut down with the process.
#[cold]
pub(crate) fn no_context_error() -> CUresult {
    // SAFETY: no preconditions. NULL frees nothing.
    let code = real::cuMemFree_v2().map_or(CUDA_ERROR_NOT_INITIALIZED, |free| unsafe { free(0) });
    if code == CUDA_SUCCESS { CUDA_ERROR_INVALID_CONTEXT } else { code }
}
