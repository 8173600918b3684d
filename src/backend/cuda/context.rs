//! Making a device's context current, and leaving everything of the thread as it was.

use super::Cuda;
use super::calls::{self, Failure};
use crate::backend::life::Life;
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUcontext,
    CUstreamCaptureMode, Driver,
};

/// Makes calls of the driver in a device's context. The thread may have another one current, or none, and may be in
/// the midst of a stream's capture: what is allocated here is none of the work that it captures, so the thread's
/// mode is the relaxed one meanwhile.
///
/// Nothing is called once the context is known to be gone, and no work is done in another than the one that was opened:
/// addresses and events there would be somebody else's.
pub(super) fn inside<T>(cuda: &Cuda, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Failure> {
    inside_in_any_mode(cuda, |driver| {
        let _relaxed = Relaxed::begin(driver)?;
        work(driver)
    })
}

/// As [`inside`], and the thread's capture mode is what the program made it.
pub(super) fn inside_in_any_mode<T>(
    cuda: &Cuda,
    work: impl FnOnce(Driver) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if cuda.is_over() {
        return Err(Failure::Gone);
    }
    let checked = |driver: Driver| {
        cuda.require_same(driver)?;
        work(driver)
    };
    in_context(cuda, checked).map_err(|failure| cuda.look_after(failure))
}

/// As [`inside`], whichever context it is by now.
pub(super) fn within<T>(cuda: &Cuda, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Failure> {
    outside(cuda.driver, |_| in_context(cuda, work))
}

fn in_context<T>(cuda: &Cuda, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Failure> {
    let driver = cuda.driver;
    let before = calls::current(driver).unwrap_or(std::ptr::null_mut());
    if before == cuda.context {
        return work(driver);
    }
    calls::push(driver, cuda.context)?;
    let _context = Pushed { driver, context: cuda.context };
    work(driver)
}

/// Makes calls that need no context, with the thread's capture mode as in [`inside`].
pub(super) fn outside<T>(
    driver: Driver,
    work: impl FnOnce(Driver) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let _relaxed = Relaxed::begin(driver)?;
    work(driver)
}

/// The thread's capture mode is the relaxed one until this is dropped.
pub(super) struct Relaxed {
    driver: Driver,
    /// What it was before.
    mode: Option<CUstreamCaptureMode>,
}

impl Relaxed {
    pub(super) fn begin(driver: Driver) -> Result<Self, Failure> {
        let mode = calls::exchange_capture_mode(driver, CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Relaxed { driver, mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            // It went the other way a moment ago. What fails once may have passed; else the driver is past its end.
            let _ = calls::exchange_capture_mode(self.driver, mode)
                .or_else(|_| calls::exchange_capture_mode(self.driver, mode));
        }
    }
}

/// Our context on the thread's stack of contexts.
struct Pushed {
    driver: Driver,
    /// Another was current before, or none.
    context: CUcontext,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        // As above, if it is still there: the call may pass on a failure of other work.
        if calls::pop(self.driver).is_err() && calls::current(self.driver) == Ok(self.context) {
            let _ = calls::pop(self.driver);
        }
    }
}

/// Waits for all work of the current context. A capture forbids that, and would be broken by the attempt: so far as
/// it can be seen, none is made. It is seen of blocking streams, for which the legacy stream waits.
pub(super) fn synchronize(driver: Driver) -> Result<(), Failure> {
    // SAFETY: the legacy stream is always there.
    if unsafe { calls::is_capturing(driver, CU_STREAM_LEGACY) }? {
        return Err(Failure::Refused {
            call: "cuCtxSynchronize",
            code: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        });
    }
    calls::synchronize(driver)
}
