//! The callback for memory that is obtained from the backend or given back, for registration with NCCL or RDMA.

use crate::backend::granules::Granules;
use crate::error::{ErrorKind, call_back};
use crate::history::{Entry, Kind, Recorder};
use bfc_core::units::Span;
use bfc_core::vmm::Range;
use std::ffi::c_void;

/// What happens to a region. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum RegionEvent {
    /// It was obtained, and nothing of it is allocated yet.
    Obtained = 1,
    /// It is about to be given back, and nothing of it is in use.
    Returning = 2,
}

/// The callback's type. It receives the caller's pointer, the device, the region's start and bytes, and a
/// [`RegionEvent`].
pub type RegionCallback =
    unsafe extern "C" fn(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32);

/// An allocator's callback with its pointer, if one is set.
#[derive(Clone, Copy)]
pub(crate) struct Listener {
    pub(crate) callback: Option<RegionCallback>,
    pub(crate) user_data: *mut c_void,
    pub(crate) device: i32,
    /// Records the same events in the history, if one is recorded.
    pub(super) recorder: Option<Recorder>,
}

// SAFETY: the caller that sets a callback promises that it may be called, with its pointer, from any thread.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    pub(super) fn new(device: i32) -> Self {
        Listener { callback: None, user_data: std::ptr::null_mut(), device, recorder: None }
    }

    /// Returns a listener that does nothing.
    pub(super) fn silenced(self) -> Self {
        Listener { callback: None, recorder: None, ..self }
    }

    /// Returns whether anything is to be notified.
    pub(super) fn is_set(&self) -> bool {
        self.callback.is_some() || self.recorder.is_some()
    }

    /// Records the event, and calls the callback, if there is one. The lock is open.
    pub(super) fn notify(&self, event: RegionEvent, memory: Span) {
        let Span { base, bytes } = memory;
        if bytes == 0 {
            return;
        }
        if let Some(recorder) = &self.recorder {
            record(recorder, event, memory);
        }
        let Some(callback) = self.callback else { return };
        let (user_data, device, base) = (self.user_data, self.device, base as *mut c_void);
        // SAFETY: the caller that set the callback guarantees that this call is valid.
        call_back(|| unsafe { callback(user_data, device, base, bytes as usize, event as i32) });
    }

    /// Reports memory as returning and runs `work`, which gives it back. If that fails, reports it as obtained again.
    pub(super) fn returning<E>(&self, memory: Span, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.notify(RegionEvent::Returning, memory);
        work().inspect_err(|_| self.notify(RegionEvent::Obtained, memory))
    }

    /// Runs `work`, which obtains memory, and reports the memory if that succeeds.
    pub(super) fn obtained<E>(&self, memory: Span, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        work().inspect(|()| self.notify(RegionEvent::Obtained, memory))
    }
}

/// Records memory that was obtained or is about to be given back.
#[cold]
pub(super) fn record(recorder: &Recorder, event: RegionEvent, memory: Span) {
    let kind = match event {
        RegionEvent::Obtained => Kind::Obtained,
        RegionEvent::Returning => Kind::Returned,
    };
    recorder.record_rare_event(&Entry { address: memory.base, bytes: memory.bytes, ..Entry::of(kind) });
}

/// Granules whose mapping and unmapping are reported to the listener.
pub(super) struct ReportedGranules<'a> {
    pub(super) granules: &'a dyn Granules,
    pub(super) listener: Listener,
}

impl Granules for ReportedGranules<'_> {
    fn range(&self) -> Range {
        self.granules.range()
    }

    fn wait_until_idle(&self) -> Result<(), ErrorKind> {
        self.granules.wait_until_idle()
    }

    fn map(&self, span: Span) -> Result<(), ErrorKind> {
        self.listener.obtained(span, || self.granules.map(span))
    }

    fn release(&self, span: Span) -> Result<(), ErrorKind> {
        self.listener.returning(span, || self.granules.release(span))
    }

    fn detach(&self, span: Span) -> Result<(), ErrorKind> {
        self.listener.returning(span, || self.granules.detach(span))
    }

    fn attach(&self, span: Span) -> Result<(), ErrorKind> {
        self.listener.obtained(span, || self.granules.attach(span))
    }

    fn drop_kept(&self) {
        self.granules.drop_kept();
    }
}
