//! Probes check, without waiting, whether work of several contexts is done. They use an event in each context.
//!
//! cuCtxRecordEvent (CUDA 12.5) "captures in hEvent all the activities of the context hCtx at the time of this call".
//! When all events are done, so is all work that was queued before the frees that the probe covers. A pool has one
//! probe in progress at a time: later frees are covered by the next one.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_sys::*;

use super::handle::{POOLS, Pool};
use super::waiting_frees::WaitingFrees;
use crate::driver;
use crate::state::{captures, contexts, streams};
use crate::sys::lock::OwnerLock;

/// With more contexts than this, a probe is not supported.
const MAX_CONTEXTS: usize = 32;

/// The number of contexts that have ended while a probe could not be changed.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Destroys the events of a context that is about to end.
pub(crate) fn destroy_events(context: CUcontext) {
    remove_events(context, |event| {
        if let Some(Ok(destroy)) = driver::load().map(|driver| driver.cuEventDestroy_v2()) {
            // SAFETY: created by a probe, which does not use it any more.
            contexts::run_in(context, || unsafe { destroy(event) });
        }
    });
}

/// Forgets the events of a context that has ended, which have ended with it: such as a probe has created meanwhile.
pub(crate) fn forget_events(context: CUcontext) {
    remove_events(context, |_| ());
}

fn remove_events(context: CUcontext, end: impl Fn(CUevent)) {
    if context.is_null() {
        return;
    }
    for lock in &PROBES {
        let Some(mut probe) = lock.lock_briefly() else {
            // It loses the events of all contexts, because it is not known later which of them have ended.
            ENDED.fetch_add(1, Ordering::SeqCst);
            continue;
        };
        let removed = probe.remove(context);
        drop(probe);
        if let Some(event) = removed {
            end(event);
        }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    context: CUcontext,
    /// Reused as long as the context exists.
    event: CUevent,
    is_recorded: bool,
}

const NONE: Entry = Entry { context: ptr::null_mut(), event: ptr::null_mut(), is_recorded: false };

static PROBES: [OwnerLock<Probe>; POOLS] = [const { OwnerLock::new(Probe::new()) }; POOLS];

/// The probe of a pool.
struct Probe {
    entries: [Entry; MAX_CONTEXTS],
    /// [`ENDED`] when the first event was created.
    ended: u64,
    is_open: bool,
    /// The frees that the probe covers.
    frees: WaitingFrees,
}

// SAFETY: it contains handles, which any thread may use.
unsafe impl Send for Probe {}

/// The result of a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// Frees have become reusable.
    Done,
    /// Work is still in progress.
    Pending,
    /// Not supported by this driver, or for this many contexts.
    Unsupported,
}

impl Probe {
    const fn new() -> Self {
        Probe { entries: [NONE; MAX_CONTEXTS], ended: 0, is_open: false, frees: WaitingFrees::none() }
    }

    /// Drops all events, of which some may have ended with their contexts.
    fn drop_ended(&mut self) {
        let ended = ENDED.load(Ordering::SeqCst);
        if self.ended != ended {
            *self = Probe { ended, ..Probe::new() };
        }
    }

    /// Removes the event of a context. A probe that it was recorded for begins anew, because the context may not end.
    fn remove(&mut self, context: CUcontext) -> Option<CUevent> {
        let entry = self.entries.iter_mut().find(|entry| entry.context == context)?;
        let Entry { event, is_recorded, .. } = std::mem::replace(entry, NONE);
        self.is_open &= !is_recorded;
        Some(event)
    }

    /// Records the current context's event.
    fn record(&mut self, driver: Driver) -> CUresult {
        let (Ok(create), Ok(record)) = (driver.cuEventCreate(), driver.cuCtxRecordEvent()) else {
            return CUDA_ERROR_NOT_SUPPORTED;
        };
        let Some(context) = contexts::current_handle() else { return CUDA_ERROR_INVALID_CONTEXT };
        let place = |context: CUcontext| self.entries.iter().position(|entry| entry.context == context);
        let place = place(context).or_else(|| place(ptr::null_mut()));
        let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) else {
            return CUDA_ERROR_NOT_SUPPORTED;
        };
        if entry.context.is_null() {
            let mut event = ptr::null_mut();
            // SAFETY: the pointer is valid for writing.
            let code = unsafe { create(&mut event, CU_EVENT_DISABLE_TIMING) };
            if code != CUDA_SUCCESS {
                return code;
            }
            *entry = Entry { context, event, is_recorded: false };
        }
        let event = entry.event;
        // SAFETY: the context is current, and the event is its own.
        let code = captures::unless_capturing(|| unsafe { record(context, event) });
        entry.is_recorded = code == CUDA_SUCCESS;
        code
    }

    /// Returns whether all recorded events are done.
    fn is_done(&self, driver: Driver) -> bool {
        let Ok(query) = driver.cuEventQuery() else { return false };
        let mut recorded = self.entries.iter().filter(|entry| entry.is_recorded);
        streams::relaxed(|| {
            recorded.all(|entry| {
                // SAFETY: an event of an existing context. If the context has ended meanwhile the driver returns an
                // error, and the event is not done.
                let code = unsafe { query(entry.event) };
                code == CUDA_SUCCESS
            })
        })
    }
}

impl Pool {
    /// Probes, and once more if that has ended a probe in progress, which does not cover later frees.
    pub(super) fn probe_twice(self) -> ProbeResult {
        let result = self.probe();
        if result == ProbeResult::Done && self.waiting() != 0 {
            self.probe();
        }
        result
    }

    /// Begins a probe of all contexts whose work may use this memory, or continues the one in progress.
    fn probe(self) -> ProbeResult {
        let Some(driver) = driver::load() else { return ProbeResult::Unsupported };
        if driver.cuCtxRecordEvent().is_err() {
            return ProbeResult::Unsupported;
        }
        // Another thread is using it.
        let Some(mut probe) = PROBES.get(self.place()).and_then(OwnerLock::try_lock) else {
            return ProbeResult::Pending;
        };
        probe.drop_ended();
        if !probe.is_open {
            probe.entries.iter_mut().for_each(|entry| entry.is_recorded = false);
            let frees = WaitingFrees::waiting_in(self);
            let cell = RefCell::new(&mut *probe);
            let code = self.in_each_user(|| match cell.try_borrow_mut() {
                Ok(mut probe) => probe.record(driver),
                Err(_) => CUDA_ERROR_NOT_SUPPORTED,
            });
            match code {
                CUDA_SUCCESS => {
                    (probe.frees, probe.is_open) = (frees, true);
                    self.state.synchronizations.fetch_add(1, Ordering::Relaxed);
                }
                CUDA_ERROR_NOT_SUPPORTED => return ProbeResult::Unsupported,
                // A stream is captured, for example.
                _ => return ProbeResult::Pending,
            }
        }
        let is_done = probe.is_done(driver);
        if !is_done || probe.ended != ENDED.load(Ordering::SeqCst) {
            return ProbeResult::Pending;
        }
        probe.is_open = false;
        std::mem::replace(&mut probe.frees, WaitingFrees::none()).settle(CUDA_SUCCESS);
        ProbeResult::Done
    }
}
