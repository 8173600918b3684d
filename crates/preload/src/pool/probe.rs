//! Probes check, without waiting, whether work of several contexts has completed. They use an event in each context.
//!
//! cuCtxRecordEvent (CUDA 12.5) "captures in hEvent all the activities of the context hCtx at the time of this call".
//! When all events have completed, so has all work that was queued before the frees that the probe covers. A pool has
//! one probe in progress at a time: later frees are covered by the next one.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// The number of contexts that are ending. Until the driver's call has returned, no other call may use such a context, and its
/// work may still be running.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Probes that find [`ProbeResult::Pending`] while a context ends.
pub(crate) struct PausedProbes(());

/// Pauses all probes, waits for those that another thread is continuing, and destroys the events of a context that is about
/// to end.
pub(crate) fn pause_probes(context: CUcontext) -> PausedProbes {
    ENDING.fetch_add(1, Ordering::SeqCst);
    for lock in &PROBES {
        if let Some(Some(event)) = change(lock, |probe| probe.remove(context))
            && let Some(Ok(destroy)) = driver::load().map(|driver| driver.cuEventDestroy_v2())
        {
            // SAFETY: created by a probe, which no longer uses it.
            contexts::run_in(context, || unsafe { destroy(event) });
        }
    }
    PausedProbes(())
}

impl PausedProbes {
    /// Lets the probes continue without the context, whose work has ended with it. If it has not ended, they begin
    /// again.
    pub(crate) fn resume(self, has_ended: bool) {
        if !has_ended {
            PROBES.iter().for_each(|lock| _ = change(lock, |probe| probe.is_open = false));
        }
        ENDING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn change<T>(lock: &OwnerLock<Probe>, work: impl FnOnce(&mut Probe) -> T) -> Option<T> {
    let probe = lock.lock_briefly();
    if probe.is_none() {
        // The probe loses the events of all contexts, because it is not known later which of them have ended.
        ENDED.fetch_add(1, Ordering::SeqCst);
    }
    probe.map(|mut probe| work(&mut probe))
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

    /// Drops all events, some of which may have ended with their contexts.
    fn drop_ended(&mut self) {
        let ended = ENDED.load(Ordering::SeqCst);
        if self.ended != ended {
            *self = Probe { ended, ..Probe::new() };
        }
    }

    /// Removes the event of a context. A probe in progress no longer queries it.
    fn remove(&mut self, context: CUcontext) -> Option<CUevent> {
        let is_its = |entry: &&mut Entry| !context.is_null() && entry.context == context;
        let entry = self.entries.iter_mut().find(is_its)?;
        Some(std::mem::replace(entry, NONE).event)
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

    /// Returns whether all recorded events have completed.
    fn is_done(&self, driver: Driver) -> bool {
        let Ok(query) = driver.cuEventQuery() else { return false };
        let mut recorded = self.entries.iter().filter(|entry| entry.is_recorded);
        streams::relaxed(|| {
            recorded.all(|entry| {
                // SAFETY: an event of an existing context, which does not end before the lock is open.
                let code = unsafe { query(entry.event) };
                code == CUDA_SUCCESS
            })
        })
    }
}

impl Pool {
    /// Probes, and repeats this if it has ended a probe in progress, which does not cover later frees.
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
        // Either this thread sees the ending context, or the thread that ends it waits for the lock.
        if ENDING.load(Ordering::SeqCst) != 0 {
            return ProbeResult::Pending;
        }
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
