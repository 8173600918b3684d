//! A program that ends the context of its device memory, on the simulated driver: a simulation, whose rules
//! about primary contexts are those of NVIDIA's manual (its README) and were compared with no real driver.
//!
//! Here: notifications, concurrent threads, and the end of the process.

use crate::common::gpu::Gpu;
use crate::common::lost::*;
use crate::common::simcuda::steer::REUSE_ADDRESSES;
use crate::common::simcuda::{Simulation, simulated};
use crate::common::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

#[test]
fn who_listens_is_told_of_what_went() {
    simulated("who_listens_is_told_of_what_went", |sim| {
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let told = listen(&pool, None);
        let live = [MIB, 8 * MIB, 30 * MIB].map(|bytes| pool.get(bytes));
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (3, 3));
        gpu.reset(0);
        lost(0);
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (0, 6));
        lost(0);
        pool.put(pool.get(MIB));
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (1, 7));
        // Noticed while a region is released: the others go too, each once.
        let [kept, free, _] = [MIB, 8 * MIB, 30 * MIB].map(|bytes| pool.get(bytes));
        pool.put(free);
        gpu.reset(0);
        gpu.enter(0);
        assert_eq!(pool.trim(0), 0);
        assert!(told.held.lock().unwrap().is_empty());
        assert_empty(&pool);
        assert_refused(&pool, kept);
        assert_refused(&pool, live[2]);
        drop(pool);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A thread in the middle of `cuMemAlloc` returns to a pool that has forgotten its memory: the new region is not added.
#[test]
fn what_comes_from_before_is_not_added() {
    simulated("what_comes_from_before_is_not_added", |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let told = listen(&pool, None);
        let kept = pool.get(MIB);
        // The number of the context is queried after the allocation, and both are before the reset.
        sim.delay(c"cuCtxPopCurrent".as_ptr(), 400_000_000);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pool.alloc(8 * MIB));
            let since = std::time::Instant::now();
            while sim.calls("cuMemAlloc") < 2 {
                assert!(since.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
            gpu.reset(0);
            lost(0);
            assert_empty(&pool);
            assert_refused(&pool, kept);
            let address = other.join().unwrap().expect("it is served from a new region");
            assert_eq!((pool.stats().num_regions, sim.used(0)), (1, pool.stats().pool_bytes));
            assert_eq!(told.held.lock().unwrap().len(), 1);
            pool.put(address);
        });
        sim.clear_faults();
        drop(pool);
        sim.assert_clean();
    });
}

/// At exit nothing is freed: the log of the simulation ends with the program.
#[test]
fn at_exit_the_driver_is_left_alone() {
    for down in ["", "down"] {
        let ended = child::run("leaves_a_live_pool_behind", &[("SIMCUDA_LIBRARY", &library()), (DOWN, down)]);
        assert!(ended.success, "{}", ended.text);
        let said = ended.text.lines().find(|line| line.starts_with("calls at exit: "));
        assert_eq!(said, Some("calls at exit: 0"), "{}", ended.text);
    }
}

const DOWN: &str = "BFC_TEST_DRIVER_IS_DOWN";

fn library() -> String {
    crate::common::simcuda::library().to_str().expect("UTF-8").to_owned()
}

static CALLS_BEFORE: AtomicU64 = AtomicU64::new(0);
static SIMULATION: Mutex<Option<Simulation>> = Mutex::new(None);

/// The last handler of the process, because it was registered first.
extern "C" fn tell_the_calls() {
    let sim = SIMULATION.lock().unwrap().expect("it was loaded");
    println!("\ncalls at exit: {}", sim.all_calls() - CALLS_BEFORE.load(Relaxed));
}

#[test]
fn leaves_a_live_pool_behind() {
    if !child::is_child("leaves_a_live_pool_behind") {
        return;
    }
    simulated("leaves_a_live_pool_behind", |sim| {
        *SIMULATION.lock().unwrap() = Some(sim);
        // SAFETY: the function does nothing that is forbidden at exit.
        assert_eq!(unsafe { libc::atexit(tell_the_calls) }, 0);
        let pool = cuda_pool(0);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let stream = gpu.stream(false);
        sim.hold(pointer(stream));
        let live = pool.alloc_on(MIB, stream).unwrap();
        sim.fill(pointer(stream), live, MIB, 7);
        let freed = pool.alloc_on(MIB, stream).unwrap();
        assert_eq!(pool.free_on(freed, stream), BFC_OK);
        pool.alloc_on(2 * MIB, 0).unwrap();
        let is_down = std::env::var(DOWN).is_ok_and(|down| !down.is_empty());
        if is_down {
            sim.shutdown();
            // Frees and destruction afterwards, as in a program's destructors, return no error.
            assert_eq!(pool.free_on(live, stream), BFC_OK);
            assert_eq!(pool.destroy_forced(), BFC_OK);
            assert_eq!(bfc_destroy(0), BFC_ERROR_NO_ALLOCATOR);
        }
        // The pool is not destroyed.
        std::mem::forget(pool);
        CALLS_BEFORE.store(sim.all_calls(), Relaxed);
        std::process::exit(0);
    });
}
