//! The table: one slot for each device ordinal.

use crate::error::{Error, fail};
use crate::pool::slot::Slot;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

/// The number of ordinals: 0 to 255 are devices, 256 is the host, 257 is pinned host memory, and 258 to 1023 are for
/// the caller.
pub const MAX_DEVICES: i32 = 1024;

static SLOTS: [Slot; MAX_DEVICES as usize] = [const { Slot::new() }; MAX_DEVICES as usize];

/// The slots that ever held an allocator, so that a fork and a search for a pointer's owner visit only these.
pub(super) static USED: [AtomicU64; MAX_DEVICES as usize / 64] =
    [const { AtomicU64::new(0) }; MAX_DEVICES as usize / 64];

/// A slot of the table: the allocator of a device, whether or not it exists yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device(pub(super) i32);

impl Device {
    /// Returns the slot with an ordinal.
    #[inline]
    pub fn new(ordinal: i32) -> Result<Self, Error> {
        if (0..MAX_DEVICES).contains(&ordinal) {
            return Ok(Device(ordinal));
        }
        Err(fail!(Error::InvalidArgument, "device {ordinal}: ordinals are 0 to 1023"))
    }

    /// Returns the ordinal.
    pub fn ordinal(self) -> i32 {
        self.0
    }

    /// Returns the index of the device's word in a set of devices.
    pub(super) fn word(self) -> usize {
        self.0 as usize / 64
    }

    pub(super) fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }

    #[inline]
    pub(super) fn slot(self) -> &'static Slot {
        &SLOTS[self.0 as usize]
    }
}

/// Returns the devices whose bit is set.
pub(super) fn devices_in(set: &'static [AtomicU64]) -> impl Iterator<Item = Device> {
    set.iter().zip(0..).flat_map(|(word, index): (_, i32)| {
        let bits = word.load(Acquire);
        (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| Device(index * 64 + bit))
    })
}
