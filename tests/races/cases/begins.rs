//! The announcement of a capture waits for no device work, although another thread's call does, because that work may
//! end only with the announcing thread's next action.

use super::{fixed_pool, pairs, variants};
use crate::common::adapters::begin_to_pool;
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::steer::SYNCHRONIZE_WAITS;
use crate::common::*;
use std::time::{Duration, Instant};

/// The call of the other thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// It synchronizes the context before it releases anything.
    Trim,
    /// It releases a region, which waits for the work of a context unknown to the pool.
    TrimBeside,
}

/// A stream whose work is held, on which the other thread's call waits.
fn busy(gpu: Gpu, pool: &Pool, waits: Waits, bytes: u64) {
    let stream = if let Waits::TrimBeside = waits {
        let context = gpu.current();
        gpu.own_context(0);
        let stream = gpu.stream(false);
        gpu.set_current(context);
        stream
    } else {
        gpu.stream(false)
    };
    gpu.hold(stream);
    // With several streams, memory freed without one waits for the whole context.
    let others = [(); 2].map(|()| gpu.stream(false));
    let known = others.map(|other| (pool.get_on(256, other), other));
    let chunk = pool.get_on(bytes, others[0]);
    known.into_iter().for_each(|(chunk, other)| pool.put_on(chunk, other));
    if let Waits::TrimBeside = waits {
        assert_eq!(gpu.sim.launch(pointer(stream), nothing, pointer(0)), 0);
    } else {
        gpu.fill(stream, chunk, bytes, 1);
    }
    pool.put(chunk);
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

#[test]
fn the_announcement_does_not_wait_for_work() {
    // Granules are unmapped without a wait. The announcement is PyTorch's or `bfc_pool_begin`.
    let waits = [(BACKENDS[0], Waits::Trim), (BACKENDS[0], Waits::TrimBeside), (BACKENDS[1], Waits::Trim)];
    variants(pairs(waits, [false, true]), |gpu, (((backend, unit), waits), is_torch)| {
        let context = gpu.enter(0);
        let (pool, bytes) = (fixed_pool(backend, 128 * unit), 100 * unit);
        let captured = gpu.stream(false);
        busy(gpu, &pool, waits, bytes);
        gpu.sim.set(SYNCHRONIZE_WAITS, 1);
        // If a region is released, the library synchronizes before.
        let calls = gpu.sim.calls("cuCtxSynchronize");
        let took = std::thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                gpu.set_current(context);
                let _ = pool.try_trim(0);
            });
            let begun = Instant::now();
            while gpu.sim.calls("cuCtxSynchronize") == calls && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(2));
            }
            // The other thread is inside the driver.
            std::thread::sleep(Duration::from_millis(50));
            let is_waiting = gpu.sim.calls("cuCtxSynchronize") != calls;
            // The test does not hang even if this call does.
            let (tell, told) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let _ = told.recv_timeout(Duration::from_secs(4));
                gpu.sim.release_all();
            });
            let begun = Instant::now();
            if is_torch {
                begin_to_pool((7, 0), captured);
            } else {
                assert_eq!(bfc_pool_begin(0, 7, pointer(captured)), BFC_OK, "{}", last_error());
            }
            let took = begun.elapsed();
            gpu.begin_capture(captured);
            gpu.destroy_graph(gpu.end_capture(captured));
            if is_torch {
                bfc_torch_end_allocate_to_pool(0, 7, 0);
                bfc_torch_release_pool(0, 7, 0);
            } else {
                assert_eq!(bfc_pool_end(0, 7, pointer(captured)), BFC_OK);
            }
            drop(tell);
            if is_waiting { took } else { Duration::MAX }
        });
        gpu.sim.set(SYNCHRONIZE_WAITS, 0);
        pool.check();
        if took < Duration::from_secs(2) { Ok(()) } else { Err(format!("it takes {took:?}")) }
    });
}
