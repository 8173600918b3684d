//! A program that ends the context its device memory belongs to, on the simulated driver: a simulation, whose rules
//! about primary contexts are those of NVIDIA's manual (its README) and were compared with no real driver.

mod common;

use common::simcuda::steer::{EVENTS, POISON, RETAINS, REUSE_ADDRESSES};
use common::simcuda::{Simulation, simulated, simulated_with};
use common::*;
use cuda_sys::*;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn pool_with(device: i32, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA, GIB);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    change(&mut wanted);
    Pool::create(device, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

fn cuda_pool(device: i32) -> Pool {
    pool_with(device, |_| ())
}

/// A call of the driver as a program makes it.
macro_rules! cu {
    ($driver:expr, $function:ident($($argument:expr),*)) => {{
        let call = $driver.$function().unwrap();
        // SAFETY: the arguments are what the driver's manual asks for.
        let code = unsafe { call($($argument),*) };
        assert_eq!(code, CUDA_SUCCESS, stringify!($function));
    }};
}

fn reset(driver: Driver, device: CUdevice) {
    cu!(driver, cuDevicePrimaryCtxReset_v2(device));
}

/// As the CUDA runtime does before its first work.
fn enter(driver: Driver, device: CUdevice) {
    let mut context = ptr::null_mut();
    cu!(driver, cuInit(0));
    cu!(driver, cuDevicePrimaryCtxRetain(&mut context, device));
    cu!(driver, cuCtxSetCurrent(context));
}

fn leave(driver: Driver, device: CUdevice) {
    cu!(driver, cuCtxSetCurrent(ptr::null_mut()));
    cu!(driver, cuDevicePrimaryCtxRelease_v2(device));
}

fn lost(device: i32) {
    assert_eq!(bfc_device_lost(device), BFC_OK, "{}", last_error());
}

fn alloc_on(device: i32, bytes: u64, stream: CUstream) -> Result<u64, Status> {
    let mut out = pointer(1);
    // SAFETY: the out-pointer is valid for writing.
    match unsafe { bfc_alloc_async(device, bytes as usize, stream.cast(), &mut out) } {
        BFC_OK => Ok(out as u64),
        status => Err(status),
    }
}

fn free_on(device: i32, address: u64, stream: CUstream) -> Status {
    bfc_free_async(device, pointer(address), stream.cast())
}

fn new_stream(driver: Driver) -> CUstream {
    let mut stream = ptr::null_mut();
    cu!(driver, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
    stream
}

/// Nothing of the library takes an address for its own.
fn assert_refused(pool: &Pool, address: u64) {
    let device = pool.device();
    let none = ptr::null_mut();
    assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER);
    assert_eq!(bfc_free_async(device, pointer(address), none), BFC_ERROR_INVALID_POINTER);
    assert_eq!(bfc_record_stream(device, pointer(address), none), BFC_ERROR_INVALID_POINTER);
    assert_eq!(pool.requested_size(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.allocated_size(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.allocation_id(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.range(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
}

/// There is nothing left, and the books say so.
fn assert_empty(pool: &Pool) {
    pool.check();
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.num_regions, stats.num_chunks), (0, 0, 0));
    assert_eq!((stats.bytes_in_use, stats.bytes_requested), (0, 0));
    assert_eq!(stats.num_allocs, stats.num_frees, "what was live counts as freed");
}

#[test]
fn a_pool_forgets_what_the_program_reset() {
    simulated("a_pool_forgets_what_the_program_reset", |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let live = [MIB, 300, 3 * MIB, 7 * MIB].map(|bytes| pool.get(bytes));
        pool.put(live[2]);
        let (last, peak) = (pool.allocation_id(live[3]).unwrap(), pool.stats().peak_bytes_in_use);
        reset(driver, 0);
        assert_eq!((sim.used(0), sim.live(RETAINS)), (0, 1), "a reset releases nothing");
        let (frees, destroys) = (sim.calls("cuMemFree"), sim.calls("cuEventDestroy"));
        lost(0);
        assert_eq!((sim.calls("cuMemFree"), sim.calls("cuEventDestroy")), (frees, destroys));
        assert_empty(&pool);
        assert_eq!(pool.stats().peak_bytes_in_use, peak);
        live.into_iter().for_each(|address| assert_refused(&pool, address));
        let calls = sim.all_calls();
        assert_eq!((pool.trim(0), pool.occupancy().is_empty()), (0, false));
        pool.report();
        pool.memory_map();
        assert_eq!(sim.all_calls(), calls, "nothing to ask the driver about");

        let again = pool.get(5 * MIB);
        assert!(!live.contains(&again) && sim.used(0) == pool.stats().pool_bytes, "from the driver, anew");
        assert_eq!((pool.allocation_id(again), sim.live(RETAINS)), (Ok(last + 1), 1));
        live.into_iter().for_each(|address| assert_refused(&pool, address));
        pool.check();
        pool.put(again);
        assert!(pool.trim(0) >= 5 * MIB);
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!(sim.calls("cuDevicePrimaryCtxRetain"), sim.calls("cuDevicePrimaryCtxRelease_v2"));
        sim.assert_clean();
    });
}

/// The context is back, by the same handle, before anybody has said anything: what is in it is the program's.
#[test]
fn another_life_of_the_context_is_noticed_without_a_word() {
    simulated("another_life_of_the_context_is_noticed_without_a_word", |sim| {
        for told in [false, true] {
            let (pool, driver) = (cuda_pool(0), sim.driver());
            let old = pool.get(MIB);
            let free = pool.get(2 * MIB + MIB / 2);
            pool.put(free);
            enter(driver, 0);
            reset(driver, 0);
            enter(driver, 0);
            // At the addresses where ours were: of the region in use, and of the one that is free.
            let theirs = [2, 4].map(|mib| {
                let mut address = 0;
                cu!(driver, cuMemAlloc_v2(&mut address, mib * MIB as usize));
                address
            });
            assert_eq!(theirs, [old, free]);
            if told {
                lost(0);
                assert_empty(&pool);
            }
            // It needs a region, or would give some back, which are others'.
            assert_eq!(pool.trim(0), 0);
            let new = pool.get(64 * MIB);
            assert_refused(&pool, old);
            pool.check();
            assert_eq!(sim.used(0), pool.stats().pool_bytes + 6 * MIB, "theirs is there");
            pool.put(new);
            assert_eq!(pool.destroy(), BFC_OK);
            for address in theirs {
                cu!(driver, cuMemFree_v2(address));
            }
            leave(driver, 0);
            leave(driver, 0);
            sim.assert_clean();
        }
    });
}

/// A request that finds nothing meets the loss itself, and is served.
#[test]
fn a_request_that_meets_the_loss_is_served() {
    simulated("a_request_that_meets_the_loss_is_served", |sim| {
        let (pool, driver) = (cuda_pool(0), sim.driver());
        for round in 0..5 {
            let old = [MIB, 4 * MIB].map(|bytes| pool.get(bytes));
            reset(driver, 0);
            // Nobody knows yet: what is free is handed out.
            let unknown = pool.get(256);
            let served = pool.get((32 << round) * MIB);
            assert_eq!(pool.stats().num_regions, 1, "round {round}");
            [old[0], old[1], unknown].into_iter().for_each(|address| {
                assert!(address == served || pool.free(address) == BFC_ERROR_INVALID_POINTER);
            });
            pool.check();
            assert_eq!(pool.stats().num_failures, 0);
            pool.put(served);
        }
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn what_is_there_is_not_forgotten() {
    simulated("what_is_there_is_not_forgotten", |sim| {
        let (pool, driver) = (cuda_pool(0), sim.driver());
        lost(0);
        let kept = pool.get(MIB);
        lost(0);
        pool.put(kept);
        // A context of the program's own is nothing to us.
        let (mut own, kept) = (ptr::null_mut(), pool.get(MIB));
        cu!(driver, cuCtxCreate_v2(&mut own, 0, 0));
        cu!(driver, cuCtxDestroy_v2(own));
        lost(0);
        pool.get(5 * MIB);
        pool.put(kept);
        // Who comes late to say so finds that it was noticed, and that a new life has begun.
        reset(driver, 0);
        lost(0);
        let new = pool.get(MIB);
        lost(0);
        pool.put(new);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_context_that_somebody_released_too_often() {
    simulated("a_context_that_somebody_released_too_often", |sim| {
        for told in [true, false] {
            let (pool, driver) = (cuda_pool(0), sim.driver());
            let old = pool.get(MIB);
            cu!(driver, cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!((sim.live(RETAINS), sim.used(0)), (0, 0));
            if told {
                lost(0);
            }
            let new = pool.get(8 * MIB);
            assert_eq!((sim.live(RETAINS), sim.used(0)), (1, pool.stats().pool_bytes));
            assert!(old == new || pool.free(old) == BFC_ERROR_INVALID_POINTER);
            pool.put(new);
            assert_eq!(pool.destroy(), BFC_OK);
            sim.assert_clean();
        }
    });
}

#[test]
fn only_the_device_that_was_reset() {
    simulated_with("only_the_device_that_was_reset", &[("SIMCUDA_DEVICES", "2")], |sim| {
        let pools = [0, 1].map(cuda_pool);
        let live = [&pools[0], &pools[1]].map(|pool| pool.get(MIB));
        reset(sim.driver(), 1);
        lost(0);
        lost(1);
        assert_empty(&pools[1]);
        assert_refused(&pools[1], live[1]);
        assert_eq!((owner(live[0]), pools[0].requested_size(live[0])), (Ok(0), Ok(MIB)));
        pools[0].put(live[0]);
        pools[1].put(pools[1].get(MIB));
        pools.iter().for_each(Pool::check);
        drop(pools);
        sim.assert_clean();
    });
}

#[test]
fn a_pool_is_destroyed_and_created_after_a_reset() {
    simulated("a_pool_is_destroyed_and_created_after_a_reset", |sim| {
        let driver = sim.driver();
        for (told, forced) in [(true, false), (false, true), (true, true)] {
            let pool = cuda_pool(0);
            let old = pool.get(MIB);
            reset(driver, 0);
            if told {
                lost(0);
            }
            assert_eq!(bfc_device_lost(1), BFC_ERROR_NO_ALLOCATOR);
            let frees = sim.calls("cuMemFree");
            assert_eq!(if forced { pool.destroy_forced() } else { pool.destroy() }, BFC_OK);
            assert_eq!((sim.calls("cuMemFree"), sim.live(RETAINS)), (frees, 0), "there was nothing to free");
            let pool = cuda_pool(0);
            assert_eq!(pool.free(old), BFC_ERROR_INVALID_POINTER);
            pool.put(pool.get(MIB));
            drop(pool);
            sim.assert_clean();
        }
    });
}

#[test]
fn a_context_that_does_not_come_back() {
    simulated("a_context_that_does_not_come_back", |sim| {
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let old = pool.get(MIB);
        reset(driver, 0);
        lost(0);
        let calls = [
            ("cuDevicePrimaryCtxRetain", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
            ("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, BFC_ERROR_OUT_OF_MEMORY),
            ("cuCtxPushCurrent", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
            ("cuCtxGetId", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
        ];
        for (function, code, status) in calls {
            sim.fail(Some(function), 1, code);
            assert_eq!(pool.alloc(MIB), Err(status), "{function}");
            let words = last_error();
            assert!(words.contains(function) && words.contains("was reset or destroyed"), "{words}");
            assert_empty(&pool);
            assert_eq!((sim.struck(), sim.live(RETAINS)), (1, 1));
            sim.clear_faults();
            sim.clear_log();
        }
        assert_refused(&pool, old);
        assert_eq!(pool.stats().num_failures, calls.len() as u64);
        pool.put(pool.get(MIB));
        reset(driver, 0);
        lost(0);
        sim.fail(Some("cuDevicePrimaryCtxRetain"), 1, CUDA_ERROR_UNKNOWN);
        assert!(pool.alloc(MIB).is_err());
        // Ours is released even so.
        assert_eq!(pool.destroy(), BFC_OK);
        sim.assert_clean();
    });
}

/// Streams, events that are out, recorded uses, private pools: nothing of it is left, and nothing of it is destroyed,
/// which with the real driver would be a use of what is gone.
#[test]
fn streams_events_and_private_pools_are_forgotten() {
    simulated("streams_events_and_private_pools_are_forgotten", |sim| {
        for told in [true, false] {
            sim.set(REUSE_ADDRESSES, 0);
            let (pool, driver) = (pool_with(0, |options| options.memory_limit = 16 * MIB), sim.driver());
            enter(driver, 0);
            let [one, other] = [0; 2].map(|_| new_stream(driver));
            sim.hold(one.cast());
            let recorded = alloc_on(0, MIB, other).unwrap();
            assert_eq!(bfc_record_stream(0, pointer(recorded), one.cast()), BFC_OK);
            let mut live = vec![alloc_on(0, MIB, one).unwrap(), alloc_on(0, MIB, other).unwrap()];
            for _ in 0..3 {
                let address = alloc_on(0, 2 * MIB, one).unwrap();
                sim.fill(one.cast(), address, MIB, 7);
                live.push(address);
            }
            for address in live.drain(2..) {
                assert_eq!(free_on(0, address, one), BFC_OK);
            }
            assert_eq!(free_on(0, recorded, other), BFC_OK);
            // More than the limit leaves: the other stream is put behind the work of the first.
            live.push(alloc_on(0, 7 * MIB, other).unwrap());
            assert!(sim.live(EVENTS) > 0, "an event is out");
            assert_eq!(bfc_pool_begin(0, 5, other.cast()), BFC_OK);
            live.push(alloc_on(0, 256, other).unwrap());
            reset(driver, 0);
            assert_eq!(sim.live(EVENTS), 0);
            if told {
                lost(0);
                assert_empty(&pool);
            }
            enter(driver, 0);
            let stream = new_stream(driver);
            // Nothing of what it would have waited for is there.
            let new = alloc_on(0, 15 * MIB, stream).unwrap();
            live.into_iter().for_each(|address| assert_refused(&pool, address));
            assert_eq!(bfc_pool_end(0, 5, other.cast()), BFC_ERROR_INVALID_ARGUMENT);
            assert_eq!(bfc_pool_release(0, 5), BFC_ERROR_INVALID_ARGUMENT);
            assert_eq!(bfc_forget_stream(0, other.cast()), BFC_OK);
            assert_eq!(free_on(0, new, stream), BFC_OK);
            pool.check();
            let same = alloc_on(0, 15 * MIB, stream).unwrap();
            assert_eq!(same, new, "on one stream at once");
            pool.put(same);
            assert_eq!(pool.destroy(), BFC_OK);
            cu!(driver, cuStreamDestroy_v2(stream));
            leave(driver, 0);
            leave(driver, 0);
            sim.assert_clean();
        }
    });
}

/// A pool that has had streams begins with one again: the placements are those of a fresh one.
#[test]
fn the_next_life_is_as_the_first() {
    simulated("the_next_life_is_as_the_first", |sim| {
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let program = |pool: &Pool, stream: CUstream| {
            let mut random = Random::new(7);
            let (mut live, mut placed) = (Vec::new(), Vec::new());
            for _ in 0..2000 {
                if live.len() < 20 || random.below(2) == 0 {
                    let address = alloc_on(0, 1 + random.below(MIB), stream).unwrap();
                    live.push(address);
                    placed.push(address);
                } else {
                    let place = random.below(live.len() as u64) as usize;
                    assert_eq!(free_on(0, live.swap_remove(place), stream), BFC_OK);
                }
            }
            pool.check();
            placed
        };
        enter(driver, 0);
        let first = program(&pool, new_stream(driver));
        // In between more than one.
        alloc_on(0, MIB, ptr::null_mut()).unwrap();
        for _ in 0..2 {
            reset(driver, 0);
            lost(0);
            enter(driver, 0);
            assert_eq!(program(&pool, new_stream(driver)), first);
            leave(driver, 0);
        }
        drop(pool);
        leave(driver, 0);
        sim.assert_clean();
    });
}

#[derive(Default)]
struct Told {
    held: Mutex<Vec<(u64, u64)>>,
    calls: AtomicU64,
}

unsafe extern "C" fn told(user_data: *mut c_void, _: i32, base: *mut c_void, bytes: usize, event: i32) {
    // SAFETY: the tests pass a reference that outlives the pool.
    let told = unsafe { &*user_data.cast::<Told>() };
    let region = (base as u64, bytes as u64);
    let mut held = told.held.lock().unwrap();
    told.calls.fetch_add(1, Relaxed);
    if event == BFC_REGION_OBTAINED {
        let overlaps = |other: &(u64, u64)| other.0 < region.0 + region.1 && region.0 < other.0 + other.1;
        assert!(!held.iter().any(overlaps), "{region:x?} is registered already");
        held.push(region);
    } else {
        let place = held.iter().position(|&other| other == region).expect("it is registered");
        held.swap_remove(place);
    }
}

fn listen(pool: &Pool) -> &'static Told {
    let told_of: &'static Told = Box::leak(Box::default());
    let user_data = ptr::from_ref(told_of).cast_mut().cast();
    // SAFETY: it lives for ever, and may be called from any thread.
    let status = unsafe { bfc_set_region_callback(pool.device(), Some(told), user_data) };
    assert_eq!(status, BFC_OK, "{}", last_error());
    told_of
}

#[test]
fn who_listens_is_told_of_what_went() {
    simulated("who_listens_is_told_of_what_went", |sim| {
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let told = listen(&pool);
        let live = [MIB, 8 * MIB, 30 * MIB].map(|bytes| pool.get(bytes));
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (3, 3));
        reset(driver, 0);
        lost(0);
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (0, 6));
        lost(0);
        pool.put(pool.get(MIB));
        assert_eq!((told.held.lock().unwrap().len(), told.calls.load(Relaxed)), (1, 7));
        // Met on the way of a region back: the others go too, all once.
        let [kept, free, _] = [MIB, 8 * MIB, 30 * MIB].map(|bytes| pool.get(bytes));
        pool.put(free);
        reset(driver, 0);
        enter(driver, 0);
        assert_eq!(pool.trim(0), 0);
        assert!(told.held.lock().unwrap().is_empty());
        assert_empty(&pool);
        assert_refused(&pool, kept);
        assert_refused(&pool, live[2]);
        drop(pool);
        leave(driver, 0);
        sim.assert_clean();
    });
}

/// Threads allocate and free on streams of their own and on none while the device is reset again and again. What they
/// do to the driver in the midst of that is the program's fault; here the library has to come through it: it hangs
/// nowhere, keeps its books, and touches nothing of a context that is not its own.
#[test]
fn threads_come_through_resets() {
    simulated("threads_come_through_resets", |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let pool = pool_with(0, |options| (options.memory_limit, options.retry_timeout_ms) = (64 * MIB, 1));
        let told = listen(&pool);
        let over = AtomicBool::new(false);
        let served = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (over, served, pool) = (&over, &served, &pool);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut live: Vec<u64> = Vec::new();
                    while !over.load(Relaxed) {
                        if live.len() < 12 && random.below(3) != 0 {
                            match pool.alloc(1 + random.below(6 * MIB)) {
                                Ok(address) => live.push(address),
                                Err(status) => assert!(
                                    [BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED].contains(&status),
                                    "{status}: {}",
                                    last_error()
                                ),
                            }
                            served.fetch_add(1, Relaxed);
                        } else if !live.is_empty() {
                            let place = random.below(live.len() as u64) as usize;
                            let status = pool.free(live.swap_remove(place));
                            assert!([BFC_OK, BFC_ERROR_INVALID_POINTER].contains(&status), "{status}");
                        } else if random.below(4) == 0 {
                            let _ = try_trim_of(0);
                        }
                    }
                });
            }
            let driver = sim.driver();
            for round in 0..300 {
                std::thread::sleep(Duration::from_micros(round % 7 * 300));
                reset(driver, 0);
                if round % 3 != 0 {
                    lost(0);
                }
                pool.check();
            }
            over.store(true, Relaxed);
        });
        assert!(served.load(Relaxed) > 1000);
        reset(sim.driver(), 0);
        lost(0);
        assert_empty(&pool);
        assert!(told.held.lock().unwrap().is_empty());
        assert_eq!(pool.destroy(), BFC_OK);
        sim.assert_clean();
    });
}

/// A thread in the middle of `cuMemAlloc` comes back to a pool that has forgotten: what it brings is not added.
#[test]
fn what_comes_from_before_is_not_added() {
    simulated("what_comes_from_before_is_not_added", |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let told = listen(&pool);
        let kept = pool.get(MIB);
        // The number of the context is asked for behind the allocation, and both are in front of the reset.
        sim.delay(c"cuCtxPopCurrent".as_ptr(), 400_000_000);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pool.alloc(8 * MIB));
            let since = std::time::Instant::now();
            while sim.calls("cuMemAlloc") < 2 {
                assert!(since.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
            reset(driver, 0);
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

/// cuCtxGetId came with CUDA 12.0. Before, what is in the context tells, or the program is believed.
#[test]
fn a_driver_that_numbers_no_contexts_will_do() {
    let variables = [("SIMCUDA_DRIVER_VERSION", "11080")];
    simulated_with("a_driver_that_numbers_no_contexts_will_do", &variables, |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let old = pool.get(MIB);
        lost(0);
        reset(driver, 0);
        assert_eq!(pool.requested_size(old), Ok(MIB), "it was there when that was said");
        let new = pool.get(16 * MIB);
        assert_refused(&pool, old);
        // The context is active again before it is told of: nothing of ours is in it.
        reset(driver, 0);
        enter(driver, 0);
        lost(0);
        assert_refused(&pool, new);
        pool.put(pool.get(MIB));
        leave(driver, 0);
        assert_eq!(sim.calls("cuCtxGetId"), 0);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn there_is_nothing_to_lose_on_the_host() {
    for backend in [BFC_BACKEND_HOST, BFC_BACKEND_HOST_VMM] {
        let pool = Pool::host(16 * MIB, |options| options.backend = backend);
        let kept = pool.get(MIB);
        assert_eq!(bfc_device_lost(pool.device()), BFC_ERROR_UNSUPPORTED);
        let words = last_error();
        assert!(words.contains("bfc_device_lost") && words.contains("host"), "{words}");
        pool.put(kept);
    }
    let pool = Pool::custom(Backend::new(16 * MIB), 16 * MIB, |_| ());
    assert_eq!(bfc_device_lost(pool.device()), BFC_ERROR_UNSUPPORTED);
    assert_eq!(bfc_device_lost(-1), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_device_lost(fresh_device()), BFC_ERROR_NO_ALLOCATOR);
}

/// What a program does that resets its device, so that each call of the driver can fail.
fn program(driver: Driver) -> Vec<Status> {
    let mut failed = Vec::new();
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit, wanted.flags) = (BFC_BACKEND_CUDA, GIB, BFC_ALLOW_GROWTH);
    let pool = match Pool::create(0, &wanted, None) {
        Ok(pool) => pool,
        Err(status) => return vec![status],
    };
    for round in 0..3 {
        let got = [MIB, 3 * MIB, 9 * MIB].map(|bytes| pool.alloc(bytes));
        failed.extend(got.into_iter().filter_map(Result::err));
        pool.check();
        // SAFETY: it takes any device, and may be made to fail.
        let _ = unsafe { driver.cuDevicePrimaryCtxReset_v2().unwrap()(0) };
        if round != 1 {
            assert_eq!(bfc_device_lost(0), BFC_OK);
        }
        pool.check();
    }
    assert_eq!(pool.destroy_forced(), BFC_OK);
    failed
}

#[test]
fn every_call_around_a_reset_may_fail() {
    simulated("every_call_around_a_reset_may_fail", |sim| {
        let driver = sim.driver();
        assert_eq!(program(driver), [0; 0]);
        for code in [CUDA_ERROR_UNKNOWN, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT] {
            let (mut nth, mut unreleased) = (1, 0);
            loop {
                sim.configure(1, GIB);
                sim.fail(None, nth, code);
                let failed = program(driver);
                if sim.struck() == 0 {
                    break;
                }
                let fine = [BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED];
                assert!(failed.iter().all(|status| fine.contains(status)), "call {nth}: {failed:?}");
                sim.clear_faults();
                assert_eq!(sim.misuses(), 0, "call {nth}: {:?}", sim.misuse_texts());
                unreleased += sim.live(RETAINS);
                assert!(sim.live(RETAINS) <= 1, "call {nth}, code {code}");
                nth += 1;
            }
            assert!(nth > 60, "only {nth} calls were made to fail");
            // The release itself, at the end and behind each of the three resets.
            assert!(unreleased <= 4, "{unreleased}, code {code}");
        }
    });
}

/// At exit nothing is freed: the log of the simulation ends where the program does.
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
    common::simcuda::library().to_str().expect("UTF-8").to_owned()
}

static CALLS_BEFORE: AtomicU64 = AtomicU64::new(0);
static SIMULATION: Mutex<Option<Simulation>> = Mutex::new(None);

/// The last thing that the process does: registered first of all.
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
        enter(sim.driver(), 0);
        let stream = new_stream(sim.driver());
        sim.hold(stream.cast());
        let live = alloc_on(0, MIB, stream).unwrap();
        sim.fill(stream.cast(), live, MIB, 7);
        let freed = alloc_on(0, MIB, stream).unwrap();
        assert_eq!(free_on(0, freed, stream), BFC_OK);
        alloc_on(0, 2 * MIB, ptr::null_mut()).unwrap();
        let is_down = std::env::var(DOWN).is_ok_and(|down| !down.is_empty());
        if is_down {
            sim.shutdown();
            // Who frees and destroys in spite of that, as destructors of a program may, sees no error.
            assert_eq!(free_on(0, live, stream), BFC_OK);
            assert_eq!(pool.destroy_forced(), BFC_OK);
            assert_eq!(bfc_destroy(0), BFC_ERROR_NO_ALLOCATOR);
        }
        // The pool lives on: nobody destroys it.
        std::mem::forget(pool);
        CALLS_BEFORE.store(sim.all_calls(), Relaxed);
        std::process::exit(0);
    });
}

/// Freed memory of a context that is gone is poisoned, not unmapped, so that a stray access of the library's would be
/// seen as a change and not as a crash.
#[test]
fn nothing_is_written_to_what_is_gone() {
    simulated("nothing_is_written_to_what_is_gone", |sim| {
        sim.set(POISON, 1);
        let (pool, driver) = (cuda_pool(0), sim.driver());
        let old = pool.get(MIB);
        reset(driver, 0);
        // SAFETY: the simulation keeps it mapped.
        let word = || unsafe { (old as *const u64).read_volatile() };
        let poison = word();
        lost(0);
        assert_eq!((pool.free(old), word()), (BFC_ERROR_INVALID_POINTER, poison));
        drop(pool);
        sim.assert_clean();
    });
}

/// A thread that asks about events meanwhile comes back to a pool that has none: what it brings back is kept by nobody.
#[test]
fn who_asks_about_events_comes_back_to_none() {
    simulated("who_asks_about_events_comes_back_to_none", |sim| {
        let (pool, driver) = (pool_with(0, |options| options.memory_limit = 16 * MIB), sim.driver());
        for function in [c"cuEventQuery", c"cuCtxSynchronize"] {
            enter(driver, 0);
            let streams = [0; 3].map(|_| new_stream(driver));
            for stream in &streams[..2] {
                sim.hold(stream.cast());
                let address = alloc_on(0, 4 * MIB, *stream).unwrap();
                sim.fill(stream.cast(), address, MIB, 7);
                assert_eq!(free_on(0, address, *stream), BFC_OK);
            }
            let before = sim.calls_of(function);
            // Behind the call, for in front of it the event would be one that was destroyed.
            sim.delay(c"cuCtxPopCurrent".as_ptr(), 300_000_000);
            std::thread::scope(|scope| {
                let last = streams[2] as usize;
                let asks_for_events = function == c"cuEventQuery";
                let other = scope.spawn(move || match asks_for_events {
                    true => alloc_on(0, 15 * MIB, last as CUstream)
                        .map(|address| assert_eq!(free(0, address), BFC_OK)),
                    false => match try_trim_of(0) {
                        BFC_OK => Ok(()),
                        status => Err(status),
                    },
                });
                let since = std::time::Instant::now();
                while sim.calls_of(function) == before {
                    assert!(since.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(30));
                reset(driver, 0);
                lost(0);
                assert_empty(&pool);
                other.join().unwrap().expect("it is served, or has nothing to do");
            });
            sim.clear_faults();
            pool.check();
            // Its stream was the old life's, and is known in the new one now: away with that too. An event that was kept
            // would be there still.
            reset(driver, 0);
            lost(0);
            enter(driver, 0);
            let streams = [0; 2].map(|_| new_stream(driver));
            sim.hold(streams[0].cast());
            let address = alloc_on(0, 15 * MIB, streams[0]).unwrap();
            sim.fill(streams[0].cast(), address, MIB, 7);
            assert_eq!(free_on(0, address, streams[0]), BFC_OK);
            let behind = alloc_on(0, 15 * MIB, streams[1]).unwrap_or_else(|_| panic!("{}", last_error()));
            assert_eq!(free_on(0, behind, streams[1]), BFC_OK);
            pool.check();
            assert_eq!(sim.misuse_texts(), [""; 0]);
            reset(driver, 0);
            lost(0);
            leave(driver, 0);
            leave(driver, 0);
        }
        drop(pool);
        sim.assert_clean();
    });
}

fn try_trim_of(device: i32) -> Status {
    let mut released = u64::MAX;
    // SAFETY: the out-pointer is valid for writing.
    unsafe { bfc_trim(device, 0, &mut released) }
}
