//! Stream captures that the program announces for the whole process (`bfc_capture_begin`), on any stream.
//!
//! A device or a context cannot be synchronized while one of its streams is captured: "It is also invalid to query the
//! execution status of or synchronize a broader handle which encompasses an active stream capture, such as a device or
//! context handle when any associated stream is in capture mode" (CUDA C++ Programming Guide, Prohibited and Unhandled
//! Operations), and the attempt invalidates the capture. An allocator with timestamps knows no streams, so it cannot
//! query them, and no allocator knows which streams of other contexts join a capture. An announced capture therefore
//! applies to every device.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::Duration;

use crate::backend::Backend;
use crate::error::{ErrorKind, fail};
use crate::sys::clock::monotonic_ms;
use os::counting::take_one;

/// The number of captures that are announced and not over.
static ANNOUNCED: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that are in a driver call that may synchronize, or about to make one.
static SYNCHRONIZING: AtomicUsize = AtomicUsize::new(0);

/// The time when the last of them began, in milliseconds of the monotonic clock.
static ENTERED: AtomicU64 = AtomicU64::new(0);

/// An announcement waits for the end of a synchronization for at most this long after it has begun. The driver checks
/// for captures when it is called, and not while it waits ("Blocks until the current context has completed all
/// preceding requested tasks"). A captured operation is no such task. So only the entry into the call is at risk, and
/// one second is enough for it even if the scheduler preempts the thread. Waiting for the end could deadlock, because
/// the work that the driver waits for may depend on what the capturing thread does next.
pub(super) const ENTRY: Duration = Duration::from_secs(1);

/// Returns whether a call that began at this time, in milliseconds, may still be on its way into the driver.
pub(super) fn is_entering(begun: u64) -> bool {
    u128::from(monotonic_ms().saturating_sub(begun)) < ENTRY.as_millis()
}

/// Returns whether a capture is announced. In that case nothing waits for a device or gives its memory back.
#[inline]
pub(crate) fn any() -> bool {
    ANNOUNCED.load(Ordering::Acquire) != 0
}

/// Returns whether a capture is announced that a backend's calls may invalidate.
pub(super) fn concern(backend: &dyn Backend) -> bool {
    any() && backend.may_synchronize()
}

/// Announces a capture that is about to begin. On return no call of this library that may synchronize is about to enter
/// the driver.
pub(crate) fn begin() {
    ANNOUNCED.fetch_add(1, Ordering::SeqCst);
    while SYNCHRONIZING.load(Ordering::SeqCst) != 0 && is_entering(ENTERED.load(Ordering::SeqCst)) {
        yield_now();
    }
}

/// Ends one announced capture. Returns false if none was announced.
pub(crate) fn end() -> bool {
    take_one(&ANNOUNCED, Ordering::AcqRel)
}

/// The permission to make a call that may synchronize. No announcement completes while a thread with a permission
/// enters the driver.
pub(super) struct Permission(bool);

impl Permission {
    /// Returns the permission, or `None` while a capture is announced that the backend's calls may invalidate.
    pub(super) fn of(backend: &dyn Backend) -> Option<Self> {
        if backend.may_synchronize() { Self::on_a_device() } else { Some(Permission(false)) }
    }

    /// Returns the permission for a call of a driver, or `None` while any capture is announced.
    pub(super) fn on_a_device() -> Option<Self> {
        if any() {
            return None;
        }
        let permission = Permission(true);
        permission.enter();
        SYNCHRONIZING.fetch_add(1, Ordering::SeqCst);
        // Either this sees the announcement, or the announcement sees this thread.
        if ANNOUNCED.load(Ordering::SeqCst) == 0 { Some(permission) } else { None }
    }

    /// Notes that another call begins for which the permission is held. An announcement waits for that too.
    pub(super) fn enter(&self) {
        if self.0 {
            ENTERED.fetch_max(monotonic_ms(), Ordering::SeqCst);
        }
    }
}

/// Makes a call of a backend that may synchronize. Fails while a capture is announced that it may invalidate, unless the
/// caller has `held` a permission since before that.
pub(super) fn call_with_permission<T>(
    backend: &dyn Backend,
    held: Option<&Permission>,
    call: impl FnOnce() -> Result<T, ErrorKind>,
) -> Result<T, ErrorKind> {
    let own = if held.is_none() { Permission::of(backend) } else { None };
    let Some(permission) = held.or(own.as_ref()) else { return Err(refuse_for_a_capture()) };
    permission.enter();
    call()
}

impl Drop for Permission {
    fn drop(&mut self) {
        if self.0 {
            SYNCHRONIZING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Returns the error of a call that would give memory back, or wait for the device, while a capture may be under way.
pub(super) fn refuse_for_a_capture() -> ErrorKind {
    fail!(
        ErrorKind::BackendFailed,
        "a stream is being captured, or bfc_pool_begin or bfc_capture_begin has announced it: giving memory back would break that capture"
    )
}
