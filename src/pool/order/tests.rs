//! Tests of pending work, on a simulated device. Random programs are those of `tests/races`.

mod cases;
mod device;
mod threads;

use self::device::Device;
use crate::backend::{AnyBackend, Owned};
use crate::options::Resolved;
use crate::pool::lifecycle;
use crate::pool::slot::Slot;
use bfc_core::arena::{RegionGrowth, Settings};

/// Creates an allocator whose requests are as small as possible. It grows, or has one region.
fn create(slot: &'static Slot, device: &'static Device, grows: bool, capacity: u64) {
    device.reset(slot, capacity);
    let growth = if grows { RegionGrowth::Doubling } else { RegionGrowth::Whole };
    let settings = Settings {
        growth,
        garbage_collection: true,
        split_always: true,
        initial_region: capacity / 4,
        events: true,
        ..Settings::new(capacity)
    };
    let backend = Owned::new(AnyBackend::Test(device));
    lifecycle::create(slot, 0, Resolved::with_settings(settings, backend, "")).unwrap();
}
