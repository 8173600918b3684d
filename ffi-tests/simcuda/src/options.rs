//! What a test can set: by the environment before the first call, and by `simcuda.h` later.

use std::env;

/// Numbers of the options in `simcuda.h`; a value is a whole number.
pub(crate) const COUNT: usize = 13;

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
}

/// Freed memory: unmapped, so that a stray access faults, or filled with `POISON`.
pub(crate) const POISON_FILL: i64 = 1;

/// The end of a primary context takes mappings and physical memory along, and with the second reserved ranges.
pub(crate) const ENDS_MAPPINGS: i64 = 1;
pub(crate) const ENDS_RANGES: i64 = 2;

/// What freed memory is filled with.
pub(crate) const POISON: u8 = 0xdd;

/// How many devices and of how much memory, and the options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) devices: i32,
    pub(crate) memory: u64,
    values: [i64; COUNT],
}

/// The newest CUDA that the simulation claims to support, unless told otherwise.
const DRIVER_VERSION: i64 = 13050;

/// What a device has, unless told otherwise; pages that nobody touches cost nothing.
const MEMORY: u64 = 16 << 30;

/// No more devices than that.
pub(crate) const MOST_DEVICES: i32 = 64;

impl Options {
    /// The defaults, and over them SIMCUDA_DEVICES, SIMCUDA_MEMORY and SIMCUDA_DRIVER_VERSION.
    pub(crate) fn from_environment() -> Self {
        let number = |name: &str| env::var(name).ok()?.trim().parse::<i64>().ok();
        let mut values = [0; COUNT];
        for (choice, value) in [
            (Choice::DriverVersion, number("SIMCUDA_DRIVER_VERSION").unwrap_or(DRIVER_VERSION)),
            (Choice::ReuseAddresses, 1),
            (Choice::FreeSynchronizes, 1),
            (Choice::Granularity, 2 << 20),
            (Choice::Vmm, 1),
            (Choice::Pools, 1),
            (Choice::Peers, 1),
        ] {
            values[choice as usize] = value;
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

    /// An option by its number in `simcuda.h`.
    pub(crate) fn number(&self, number: i32) -> Option<i64> {
        self.values.get(usize::try_from(number).ok()?).copied()
    }

    /// Sets an option by its number in `simcuda.h`; false for a number that is none.
    pub(crate) fn set(&mut self, number: i32, value: i64) -> bool {
        let place = usize::try_from(number).ok().and_then(|number| self.values.get_mut(number));
        place.map(|place| *place = value).is_some()
    }
}
