//! The table: one slot for each device ordinal.

use crate::error::{ErrorKind, fail};
use crate::pool::slot::{Slot, table};
use std::sync::atomic::AtomicU64;

pub(super) use crate::pool::slot::table::USED;

/// The number of ordinals: 0 to 255 are devices, 256 is the host, 257 is pinned host memory, and 258 to 1023 are for
/// the caller.
pub const MAX_DEVICES: i32 = table::COUNT as i32;

/// A slot of the table: the allocator of a device, whether or not it exists yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device(pub(super) i32);

impl Device {
    /// Returns the slot with an ordinal.
    #[inline]
    pub fn new(ordinal: i32) -> Result<Self, ErrorKind> {
        if (0..MAX_DEVICES).contains(&ordinal) {
            return Ok(Device(ordinal));
        }
        Err(out_of_range(ordinal))
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
        table::slot(self.0 as usize)
    }
}

#[cold]
fn out_of_range(ordinal: i32) -> ErrorKind {
    // The C++ objects that own nothing have this ordinal (include/bfc/error.hpp).
    let why = if ordinal == -1 {
        ", and -1 is a C++ object that was moved from, released or never filled"
    } else {
        ""
    };
    fail!(ErrorKind::InvalidArgument, "device {ordinal}: ordinals are 0 to 1023{why}")
}

/// Returns the devices whose bit is set.
pub(super) fn devices_in(set: &'static [AtomicU64]) -> impl Iterator<Item = Device> {
    table::indices_in(set).map(|index| Device(index as i32))
}
