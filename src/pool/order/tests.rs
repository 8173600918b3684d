//! Tests of pending work, on a simulated device.

mod cases;
mod device;
mod program;
mod threads;

use self::device::Device;
use self::program::{Family, Program};
use crate::pool::slot::Slot;
use bfc_core::testing::{self, Random};

fn place() -> (&'static Slot, &'static Device) {
    (Box::leak(Box::new(Slot::new())), Device::new(false))
}

fn programs(count: u64) {
    let (slot, device) = place();
    for seed in 0..count {
        let mut random = Random(seed);
        let family = Family::any(&mut random);
        let steps = 20 + random.below(120);
        Program::run(slot, device, !seed, family, steps, 0);
    }
}

#[test]
fn nothing_is_handed_out_while_work_may_touch_it() {
    programs(testing::programs());
}

/// Runs each program once for each of its driver calls, with that call failing.
#[test]
fn a_driver_that_fails_loses_nothing() {
    let (slot, device) = place();
    let mut failures = 0;
    // Each program is run a hundred times or so.
    for seed in 0..testing::programs().div_ceil(100) {
        let mut random = Random(seed);
        let family = Family { forgets: 4, ..Family::any(&mut random) };
        let run = |fails_at| Program::run(slot, device, !seed, family, 60, fails_at);
        let calls = run(0).calls;
        failures += (1..=calls).map(|fails_at| run(fails_at).failures).sum::<u64>();
    }
    assert!(failures > 100, "{failures} calls of the library failed");
}
