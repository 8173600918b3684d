//! The end of a process that has memory of the simulated device (a simulation) in use: nothing is freed, and a driver that
//! has already shut down is no error.

use crate::common::gpu::{Gpu, LEGACY, PER_THREAD};
use crate::common::simcuda::simulated;
use crate::common::*;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

static DEVICE: AtomicI32 = AtomicI32::new(-1);

/// The driver's own handler runs first at the exit of a process: it was registered last.
extern "C" fn at_exit() {
    let sim = simcuda::steer::Steer::load().expect("the simulation");
    sim.shutdown();
    let device = DEVICE.load(SeqCst);
    let right = [
        alloc(device, 8 << 20) == Err(BFC_ERROR_SHUTTING_DOWN),
        alloc(device, 256).is_ok_and(|address| free(device, address) == BFC_OK),
        bfc_check(device) == BFC_OK,
        bfc_destroy(device) == BFC_ERROR_BUSY,
        bfc_destroy_forced(device) == BFC_OK,
    ];
    if let Some(wrong) = right.iter().position(|right| !right) {
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(10 + wrong as i32) };
    }
}

fn end_with_live_allocations(test: &str, backend: u32) {
    simulated(test, |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
        let stream = gpu.stream(false);
        gpu.hold(stream);
        let live = [pool.get(1000), pool.get_on(100 * KIB, stream), pool.get_on(MIB, LEGACY)];
        gpu.fill(stream, live[1], 100 * KIB, 1);
        pool.put_on(live[1], stream);
        DEVICE.store(pool.device(), SeqCst);
        std::mem::forget(pool);
        sim.clear_log();
        // SAFETY: the handler is a function of this program.
        assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
        std::process::exit(0);
    });
}

#[test]
fn a_process_may_end_with_live_allocations() {
    end_with_live_allocations("a_process_may_end_with_live_allocations", BFC_BACKEND_CUDA);
}

#[test]
fn a_process_may_end_with_live_allocations_in_granules() {
    end_with_live_allocations("a_process_may_end_with_live_allocations_in_granules", BFC_BACKEND_CUDA_VMM);
}

/// The same without notification: nothing is called at the exit.
fn nothing_is_freed_at_the_exit(test: &str, backend: u32) {
    simulated(test, |sim| {
        static SIM: std::sync::OnceLock<simcuda::Simulation> = std::sync::OnceLock::new();
        extern "C" fn last() {
            let calls = SIM.get().map_or(1, |sim| sim.all_calls());
            if calls != 0 {
                // SAFETY: it ends the process at once.
                unsafe { libc::_exit(20) };
            }
        }
        let _ = SIM.set(sim);
        // Registered first, it runs last.
        // SAFETY: the handler is a function of this program.
        assert_eq!(unsafe { libc::atexit(last) }, 0);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
        pool.get_on(100 * KIB, LEGACY);
        pool.put_on(pool.get_on(100 * KIB, PER_THREAD), PER_THREAD);
        std::mem::forget(pool);
        sim.clear_log();
        std::process::exit(0);
    });
}

#[test]
fn at_the_exit_nothing_is_freed() {
    nothing_is_freed_at_the_exit("at_the_exit_nothing_is_freed", BFC_BACKEND_CUDA);
}

#[test]
fn at_the_exit_no_granule_is_unmapped() {
    nothing_is_freed_at_the_exit("at_the_exit_no_granule_is_unmapped", BFC_BACKEND_CUDA_VMM);
}
