//! A pool as a value: its ordinal in libbfc's table, its creator, and its counters.

use bfc_sys::bfc_stats_t;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::bfc;
use crate::diagnostics::check_log::PassReason;
use crate::diagnostics::report::{Activity, Reported};
use crate::settings;
use crate::state::contexts::DEVICES;

/// Makes freed memory reusable at once, for the test that detects the resulting races.
pub(super) const MUTATED: bool = cfg!(feature = "without-quarantine");

/// The interposer's data about a pool, in addition to libbfc's own metadata.
pub(super) struct State {
    /// [`NO_POOL`], [`OURS`] or [`OF_THE_PROGRAM`]. A larger number is the thread that is creating it.
    pub(super) origin: AtomicUsize,
    /// Whether libbfc distinguishes streams in the pool ([`Pool::may_order`]).
    pub(super) tells_apart: AtomicBool,
    /// The number of requests served. Counted for the report only.
    pub(super) served: AtomicU64,
    pub(super) freed: AtomicU64,
    /// The number of frees that were followed by a synchronization.
    pub(super) settled: AtomicU64,
    /// The number of frees when they were last probed because of their number.
    pub(super) probed: AtomicU64,
    /// Synchronizations and probes.
    pub(super) synchronizations: AtomicU64,
    pub(super) obtained: AtomicU64,
    pub(super) returned: AtomicU64,
    /// The number of pools of this ordinal that have ended. The next one counts its frees anew.
    pub(super) ended: AtomicU64,
}

pub(super) const NO_POOL: usize = 0;
/// Created by the interposer.
pub(super) const OURS: usize = 1;
/// Created by the program, before the interposer needed it.
pub(super) const OF_THE_PROGRAM: usize = 2;

impl State {
    const fn new() -> Self {
        State {
            origin: AtomicUsize::new(NO_POOL),
            tells_apart: AtomicBool::new(false),
            served: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            probed: AtomicU64::new(0),
            synchronizations: AtomicU64::new(0),
            obtained: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }
}

/// The number of pools: one for each device and one for pinned host memory.
pub(super) const POOLS: usize = DEVICES + 1;

static DEVICE_STATES: [State; DEVICES] = [const { State::new() }; DEVICES];

static PINNED_STATE: State = State::new();

/// A pool by its ordinal in libbfc's table.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    pub(super) ordinal: i32,
    pub(super) state: &'static State,
}

/// The reason why a request is not served.
pub(crate) enum Refused {
    /// The request should be served by the driver, for this reason.
    Pass(PassReason),
    /// There is no memory, and the user has set a limit.
    OutOfMemory,
}

impl Pool {
    #[inline]
    pub(crate) fn of_device(device: usize) -> Option<Self> {
        let state = DEVICE_STATES.get(device)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // less than DEVICES
        Some(Pool { ordinal: device as i32, state })
    }

    /// Returns the pool of pinned host memory.
    pub(crate) fn pinned() -> Self {
        Pool { ordinal: bfc::PINNED, state: &PINNED_STATE }
    }

    /// Returns every pool, including those of devices that were never used.
    pub(crate) fn all() -> impl Iterator<Item = Pool> {
        (0..DEVICES).filter_map(Pool::of_device).chain([Pool::pinned()])
    }

    /// Returns the pools of the devices that were used.
    pub(crate) fn of_devices() -> impl Iterator<Item = Pool> {
        (0..DEVICES).filter_map(Pool::of_device).filter(|pool| pool.is_there())
    }

    /// Returns the device's pool that holds an address.
    pub(crate) fn owner(address: u64) -> Option<Self> {
        bfc::owner(address).and_then(Pool::of_ordinal)
    }

    pub(super) fn of_ordinal(ordinal: i32) -> Option<Self> {
        Pool::of_device(usize::try_from(ordinal).ok()?).filter(|pool| pool.is_there())
    }

    pub(crate) fn ordinal(self) -> i32 {
        self.ordinal
    }

    /// Returns the device. Pinned memory has none.
    pub(crate) fn device(self) -> Option<usize> {
        usize::try_from(self.ordinal).ok().filter(|&device| device < DEVICES)
    }

    /// Returns the index of the pool among [`POOLS`].
    pub(super) fn place(self) -> usize {
        self.device().unwrap_or(DEVICES)
    }

    /// Returns whether the pool may have any memory, which is possible even while it is being created.
    #[inline]
    pub(crate) fn is_there(self) -> bool {
        self.state.origin.load(Ordering::Relaxed) != NO_POOL
    }

    /// Returns whether this interposer, and not the program, created the pool.
    #[inline]
    pub(crate) fn is_ours(self) -> bool {
        self.state.origin.load(Ordering::Acquire) == OURS
    }

    /// Returns whether the creator of the pool is known.
    #[inline]
    pub(crate) fn is_known(self) -> bool {
        matches!(self.state.origin.load(Ordering::Acquire), OURS | OF_THE_PROGRAM)
    }

    /// Returns whether freed memory waits for a synchronization in this pool.
    #[inline]
    pub(super) fn has_quarantine(self) -> bool {
        self.state.origin.load(Ordering::Relaxed) == OURS
            && (self.ordinal == bfc::PINNED || !settings::serves_async())
    }

    /// Returns whether a synchronization would make frees reusable.
    #[inline]
    pub(super) fn waits(self) -> bool {
        if self.has_quarantine() { self.waiting() != 0 } else { self.has_any_deferred() }
    }

    /// Returns the number of frees that no synchronization has followed.
    #[inline]
    pub(super) fn waiting(self) -> u64 {
        self.state.freed.load(Ordering::Relaxed).saturating_sub(self.settled())
    }

    /// Returns the number of frees that a synchronization has followed.
    #[inline]
    pub(super) fn settled(self) -> u64 {
        self.state.settled.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(self) -> Option<bfc_stats_t> {
        let mut stats = if self.is_there() { bfc::stats(self.ordinal)? } else { return None };
        stats.bytes_in_use = stats.bytes_in_use.saturating_sub(self.deferred_bytes());
        Some(stats)
    }
}

impl Reported for Pool {
    fn ordinal(self) -> i32 {
        self.ordinal
    }

    fn activity(self) -> Activity {
        let state = self.state;
        Activity {
            served: state.served.load(Ordering::Acquire),
            freed: state.freed.load(Ordering::Acquire),
            obtained: state.obtained.load(Ordering::Relaxed),
            returned: state.returned.load(Ordering::Relaxed),
            synchronizations: state.synchronizations.load(Ordering::Relaxed),
        }
    }

    fn stats(self) -> Option<bfc_stats_t> {
        Pool::stats(self)
    }
}

pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}
