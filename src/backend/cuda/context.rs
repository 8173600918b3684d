//! Makes a device's context current and restores the thread's state afterwards.

use super::Cuda;
use super::calls::{self, Failure};
use crate::backend::life::Life;
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUcontext,
    CUstreamCaptureMode, Driver,
};

/// Calls the driver in a device's context. The thread may have another context current, or none, and may be capturing a
/// stream. Allocations of the library are not part of the captured work, so the thread's capture mode is relaxed
/// meanwhile.
///
/// Nothing is called once the context is known to be gone. No work is done in a context other than the one that was
/// opened, because addresses and events there belong to others.
pub(super) fn inside<T>(cuda: &Cuda, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Failure> {
    inside_in_any_mode(cuda, false, |driver| {
        let _relaxed = RelaxedMode::begin(driver)?;
        work(driver)
    })
}

/// Like [`inside`], with the thread's capture mode left as the program set it. `is_current` says that the context was
/// found current in this very call of the library. Its number does not prove that, because green contexts share it.
pub(super) fn inside_in_any_mode<T>(
    cuda: &Cuda,
    is_current: bool,
    work: impl FnOnce(Driver) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if cuda.is_over() {
        return Err(Failure::Gone);
    }
    let checked = |driver: Driver| {
        cuda.require_same(driver)?;
        work(driver)
    };
    let done = if is_current { checked(cuda.driver) } else { in_context(cuda, checked) };
    done.map_err(|failure| cuda.detect_loss(failure))
}

/// Like [`inside`], without checking that the context is still the one that was opened.
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
    let _context = PushedContext { driver, context: cuda.context };
    work(driver)
}

/// Makes calls that need no context, with the capture mode of [`inside`].
pub(super) fn outside<T>(
    driver: Driver,
    work: impl FnOnce(Driver) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let _relaxed = RelaxedMode::begin(driver)?;
    work(driver)
}

/// Keeps the thread's capture mode relaxed until this is dropped.
pub(super) struct RelaxedMode {
    driver: Driver,
    /// The mode before.
    mode: Option<CUstreamCaptureMode>,
}

impl RelaxedMode {
    pub(super) fn begin(driver: Driver) -> Result<Self, Failure> {
        let mode = calls::exchange_capture_mode(driver, CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(RelaxedMode { driver, mode })
    }
}

impl Drop for RelaxedMode {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            // The exchange succeeded in the other direction, so a single failure may be transient. After a second one
            // the driver is shutting down.
            let _ = calls::exchange_capture_mode(self.driver, mode)
                .or_else(|_| calls::exchange_capture_mode(self.driver, mode));
        }
    }
}

/// The library's context on the thread's context stack.
struct PushedContext {
    driver: Driver,
    /// The context that was pushed.
    context: CUcontext,
}

impl Drop for PushedContext {
    fn drop(&mut self) {
        // As above, if the context is still there: the call may report an earlier failure of other work.
        if calls::pop(self.driver).is_err() && calls::current(self.driver) == Ok(self.context) {
            let _ = calls::pop(self.driver);
        }
    }
}

/// Waits for all work of the current context. A capture forbids this and would be broken by the attempt, so no attempt
/// is made if a capture is visible. Captures of blocking streams are visible, because the legacy stream waits for these
/// streams.
pub(super) fn synchronize(driver: Driver) -> Result<(), Failure> {
    // SAFETY: the legacy stream always exists.
    if unsafe { calls::is_capturing(driver, CU_STREAM_LEGACY) }? {
        return Err(Failure::Refused {
            call: "cuCtxSynchronize",
            code: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        });
    }
    calls::synchronize(driver)
}
