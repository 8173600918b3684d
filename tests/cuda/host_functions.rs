//! Frees and requests in host functions, where the driver may refuse every call (cuLaunchHostFunc: "The host function must
//! not make any CUDA API calls. Attempting to use a CUDA API may result in CUDA_ERROR_NOT_PERMITTED, but this is not
//! required").

use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::HOST_FUNCTIONS_CALL;
use crate::common::*;
use std::ffi::c_void;

/// Runs a closure as a simulated host function of a stream that is not held.
fn launch<F: FnMut()>(gpu: Gpu, stream: u64, mut work: F) {
    unsafe extern "C" fn run<F: FnMut()>(argument: *mut c_void) {
        // SAFETY: the closure lives until `launch` returns, and has run by then.
        (unsafe { &mut *argument.cast::<F>() })();
    }
    assert_eq!(gpu.sim.launch(pointer(stream), run::<F>, (&raw mut work).cast()), 0);
    assert_eq!(gpu.sim.pending(pointer(stream)), 0);
}

/// A free that only changes the allocator's metadata works in a host function.
#[test]
fn memory_of_one_stream_is_freed_and_served_without_the_driver() {
    simulated("memory_of_one_stream_is_freed_and_served_without_the_driver", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
            let stream = gpu.stream(false);
            let first = pool.get_on(unit, stream);
            let mut served = 0;
            launch(gpu, stream, || {
                pool.put_on(first, stream);
                served = pool.get_on(unit, stream);
            });
            assert_eq!(served, first);
            pool.put_on(served, stream);
            pool.check();
            drop(pool);
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Where a driver call is needed it is refused: the request fails with a message, a free succeeds, and the pool
/// serves all streams correctly afterwards.
#[test]
fn a_refusal_of_the_driver_does_no_harm() {
    simulated("a_refusal_of_the_driver_does_no_harm", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
            let (ours, other) = (gpu.stream(false), gpu.stream(false));
            pool.put_on(pool.get_on(unit, other), other);
            let chunk = pool.get_on(unit, ours);
            let recorded = pool.get_on(unit, ours);
            assert_eq!(pool.record(recorded, other), BFC_OK);
            gpu.hold(other);
            gpu.fill(other, recorded, unit, 1);
            gpu.expect(other, recorded, unit, 1);
            let mut growth = None;
            launch(gpu, ours, || {
                pool.put_on(chunk, ours);
                pool.put_on(recorded, ours);
                growth = Some(pool.alloc_on(256 * unit, ours));
            });
            if let Some(Ok(grown)) = growth {
                panic!("{grown:#x} was served without the driver");
            }
            // Memory that the other stream still uses is not handed out.
            for _ in 0..3 {
                let again = pool.get_on(unit, ours);
                gpu.fill(ours, again, unit, 2);
            }
            gpu.sim.release_all();
            pool.put_on(pool.get_on(256 * unit, other), other);
            assert_eq!(sim.mismatches(), 0, "{:?}", sim.misuse_texts());
            pool.check();
            assert_eq!(pool.destroy_forced(), BFC_OK);
            [ours, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        // Each refused call is a misuse by the program, and there is no other.
        let others = sim.misuse_texts().into_iter().filter(|text| !text.starts_with("a host function"));
        assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
    });
}

/// If the driver accepts the calls, a free waits for nothing, and memory that other streams still use is not handed
/// out.
#[test]
fn a_free_waits_for_nothing_where_the_driver_refuses_nothing() {
    simulated("a_free_waits_for_nothing_where_the_driver_refuses_nothing", |sim| {
        sim.set(HOST_FUNCTIONS_CALL, 1);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
            let (ours, other) = (gpu.stream(false), gpu.stream(false));
            pool.put_on(pool.get_on(unit, other), other);
            let [chunk, of_nobody, recorded] = [(); 3].map(|()| pool.get_on(unit, ours));
            assert_eq!(pool.record(recorded, other), BFC_OK);
            gpu.hold(other);
            gpu.fill(other, recorded, unit, 1);
            gpu.expect(other, recorded, unit, 1);
            launch(gpu, ours, || {
                pool.put_on(chunk, ours);
                pool.put(of_nobody);
                pool.put_on(recorded, ours);
            });
            // The fill and the check, followed by the event.
            assert_eq!(gpu.pending(other), 3, "a free has waited, or recorded no event");
            for _ in 0..3 {
                let again = pool.get_on(unit, ours);
                gpu.fill(ours, again, unit, 2);
            }
            gpu.sim.release_all();
            assert_eq!(sim.mismatches(), 0);
            pool.check();
            assert_eq!(pool.destroy_forced(), BFC_OK);
            [ours, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}
