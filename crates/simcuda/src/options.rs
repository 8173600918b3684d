//! The options that a test can set, through the environment before the first call, and through `simcuda.h` later.

use std::env;

/// The number of options in `simcuda.h`. A value is a whole number.
pub(crate) const COUNT: usize = 20;

/// See `simcuda.h`, whose enumerators have the same order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Choice {
    DriverVersion = 0,
    Poison = 1,
    ReuseAddresses = 2,
    SynchronizeWaits = 3,
    FreeSynchronizes = 4,
    HoldNew = 5,
    RecycleHandles = 6,
    Granularity = 7,
    Vmm = 8,
    Pools = 9,
    Peers = 10,
    ResetEnds = 11,
    EventsLie = 12,
    StaleAborts = 13,
    DeadlockMilliseconds = 14,
    CapturedStreamsHide = 15,
    GraphOrder = 16,
    StreamQueriesUnsafe = 17,
    HostFunctionsCall = 18,
    Races = 19,
}

/// Every option with the environment variable that sets its default, and the default without it.
const DEFAULTS: [(Choice, &str, i64); COUNT] = [
    (Choice::DriverVersion, "SIMCUDA_DRIVER_VERSION", DRIVER_VERSION),
    (Choice::Poison, "SIMCUDA_POISON", 0),
    (Choice::ReuseAddresses, "SIMCUDA_REUSE_ADDRESSES", 1),
    (Choice::SynchronizeWaits, "SIMCUDA_SYNCHRONIZE_WAITS", 0),
    (Choice::FreeSynchronizes, "SIMCUDA_FREE_SYNCHRONIZES", 1),
    (Choice::HoldNew, "SIMCUDA_HOLD_NEW", 0),
    (Choice::RecycleHandles, "SIMCUDA_RECYCLE_HANDLES", 0),
    (Choice::Granularity, "SIMCUDA_GRANULARITY", 2 << 20),
    (Choice::Vmm, "SIMCUDA_VMM", 1),
    (Choice::Pools, "SIMCUDA_POOLS", 1),
    (Choice::Peers, "SIMCUDA_PEERS", 1),
    (Choice::ResetEnds, "SIMCUDA_RESET_ENDS", 0),
    (Choice::EventsLie, "SIMCUDA_EVENTS_LIE", 0),
    (Choice::StaleAborts, "SIMCUDA_STALE_ABORTS", 0),
    (Choice::DeadlockMilliseconds, "SIMCUDA_DEADLOCK_MILLISECONDS", DEADLOCK_MILLISECONDS),
    (Choice::CapturedStreamsHide, "SIMCUDA_CAPTURED_STREAMS_HIDE", 0),
    (Choice::GraphOrder, "SIMCUDA_GRAPH_ORDER", 0),
    (Choice::StreamQueriesUnsafe, "SIMCUDA_STREAM_QUERIES_UNSAFE", 1),
    (Choice::HostFunctionsCall, "SIMCUDA_HOST_FUNCTIONS_CALL", 0),
    (Choice::Races, "SIMCUDA_RACES", 0),
];

/// How long a blocking call waits for another thread to resolve what looks like a deadlock.
const DEADLOCK_MILLISECONDS: i64 = 10_000;

/// What happens to freed memory: it is unmapped, so that a stray access faults, or filled with `POISON`.
pub(crate) const POISON_FILL: i64 = 1;

/// The end of a primary context also ends mappings and physical memory. The second value also ends reserved ranges.
pub(crate) const ENDS_MAPPINGS: i64 = 1;
pub(crate) const ENDS_RANGES: i64 = 2;

/// The first race aborts the process.
pub(crate) const RACES_ABORT: i64 = 2;

/// The byte that freed memory is filled with.
pub(crate) const POISON: u8 = 0xdd;

/// The number of devices, their memory, and the options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) devices: i32,
    pub(crate) memory: u64,
    values: [i64; COUNT],
}

/// The newest CUDA version that the simulation claims to support by default.
const DRIVER_VERSION: i64 = 13050;

/// The memory of a device by default. Untouched pages cost nothing.
const MEMORY: u64 = 16 << 30;

/// The largest number of devices.
pub(crate) const MOST_DEVICES: i32 = 64;

impl Options {
    /// Returns the defaults, overridden by SIMCUDA_DEVICES, SIMCUDA_MEMORY and the variable of each option.
    pub(crate) fn from_environment() -> Self {
        let number = |name: &str| env::var(name).ok()?.trim().parse::<i64>().ok();
        let mut values = [0; COUNT];
        for (choice, name, default) in DEFAULTS {
            values[choice as usize] = number(name).unwrap_or(default);
        }
        Self {
            devices: number("SIMCUDA_DEVICES").map_or(1, |count| count.clamp(0, MOST_DEVICES.into()) as i32),
            memory: number("SIMCUDA_MEMORY").map_or(MEMORY, |bytes| bytes.max(0) as u64),
            values,
        }
    }

    pub(crate) fn get(&self, choice: Choice) -> i64 {
        self.values[choice as usize]
    }

    pub(crate) fn is_on(&self, choice: Choice) -> bool {
        self.get(choice) != 0
    }

    /// Returns an option by its number in `simcuda.h`.
    pub(crate) fn number(&self, number: i32) -> Option<i64> {
        self.values.get(usize::try_from(number).ok()?).copied()
    }

    /// Sets an option by its number in `simcuda.h`. Returns false for an unknown number.
    pub(crate) fn set(&mut self, number: i32, value: i64) -> bool {
        let place = usize::try_from(number).ok().and_then(|number| self.values.get_mut(number));
        place.map(|place| *place = value).is_some()
    }
}
