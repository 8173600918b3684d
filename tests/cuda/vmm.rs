//! `BFC_BACKEND_CUDA_VMM` on the simulated driver: a simulation, which shows the calls of the driver and their
//! order, and not the behaviour of a device. It refuses what the driver's manual forbids: unmapping a part of a
//! mapping, a mapping over another, access to unmapped addresses.

use crate::common::gpu::Gpu;
use crate::common::simcuda::steer::{MAPPINGS, PHYSICAL, RESERVATIONS, RETAINS, VMM};
use crate::common::simcuda::{Simulation, simulated, simulated_with};
use crate::common::*;
use cuda_sys::*;

const GRANULE: u64 = 2 * MIB;

fn vmm(limit: u64) -> Pool {
    Pool::on_device(0, |options| {
        (options.backend, options.flags, options.memory_limit) =
            (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH, limit);
    })
}

/// The memory that the driver has allocated is what the pool holds.
#[track_caller]
fn agree(sim: &Simulation, pool: &Pool) {
    pool.check();
    let held = pool.stats().pool_bytes;
    assert_eq!(sim.used(0), held, "the device's memory in use");
    assert_eq!([PHYSICAL, MAPPINGS].map(|kind| sim.live(kind)), [held / GRANULE; 2]);
}

#[track_caller]
fn nothing_is_left(sim: &Simulation) {
    assert_eq!(sim.misuse_texts(), [""; 0]);
    assert_eq!([PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind)), [0; 4]);
}

/// Eight bytes at an address of the device.
fn write(driver: Driver, at: u64, value: u64) {
    // SAFETY: live memory of the pool, and a value of that size.
    let code = unsafe { driver.cuMemcpyHtoD_v2().unwrap()(at, (&raw const value).cast(), 8) };
    assert_eq!(code, CUDA_SUCCESS);
}

fn read(driver: Driver, at: u64) -> u64 {
    let mut value = 0u64;
    // SAFETY: as above.
    let code = unsafe { driver.cuMemcpyDtoH_v2().unwrap()((&raw mut value).cast(), at, 8) };
    assert_eq!(code, CUDA_SUCCESS);
    value
}

/// Makes the device's context current in this thread, as in a program.
fn enter(driver: Driver) {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { driver.cuDevicePrimaryCtxRetain().unwrap()(&mut context, 0) }, CUDA_SUCCESS);
    // SAFETY: the context was retained just now.
    assert_eq!(unsafe { driver.cuCtxSetCurrent().unwrap()(context) }, CUDA_SUCCESS);
}

#[test]
fn a_range_that_grows_and_is_remapped() {
    simulated("a_range_that_grows_and_is_remapped", |sim| {
        let pool = vmm(64 * MIB);
        assert_eq!(
            [RESERVATIONS, PHYSICAL].map(|kind| sim.live(kind)),
            [1, 0],
            "nothing before the first request"
        );
        let driver = sim.driver();
        let all: Vec<u64> = (0..8).map(|_| pool.get(8 * MIB)).collect();
        agree(&sim, &pool);
        assert_eq!((pool.stats().num_regions, pool.stats().pool_bytes), (1, 64 * MIB));
        enter(driver);
        for &address in &all {
            (0..4).for_each(|part| write(driver, address + part * GRANULE, address + part));
        }
        let (gone, kept): (Vec<u64>, Vec<u64>) =
            all.iter().partition(|&&address| (address / MIB / 8).is_multiple_of(2));
        gone.iter().for_each(|&address| pool.put(address));
        let created = sim.calls("cuMemCreate");
        // No piece is large enough.
        let large = pool.get(4 * gone.len() as u64 * GRANULE);
        assert_eq!(sim.calls("cuMemCreate"), created, "granules move with their handles");
        assert_eq!(sim.calls("cuMemRelease"), 0);
        assert!(sim.calls("cuCtxSynchronize") >= 1, "the device is idle before anything is unmapped");
        agree(&sim, &pool);
        for &address in &kept {
            (0..4).for_each(|part| assert_eq!(read(driver, address + part * GRANULE), address + part));
        }
        (0..4 * gone.len() as u64).for_each(|part| write(driver, large + part * GRANULE, part));
        pool.put(large);
        assert_eq!(pool.trim(0), 8 * MIB * gone.len() as u64);
        agree(&sim, &pool);
        kept.iter().for_each(|&address| assert_eq!(read(driver, address), address));
        kept.iter().for_each(|&address| pool.put(address));
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        // SAFETY: it was retained above.
        assert_eq!(unsafe { driver.cuDevicePrimaryCtxRelease_v2().unwrap()(0) }, CUDA_SUCCESS);
        nothing_is_left(&sim);
    });
}

/// What must hold after a call of the driver has failed: granules that were not released are still allocated on the
/// device.
#[track_caller]
fn agree_but_for_refusals(sim: &Simulation, pool: &Pool) {
    pool.check();
    let (held, limit) = (pool.stats().pool_bytes, pool.stats().bytes_limit);
    assert_eq!(sim.live(MAPPINGS), held / GRANULE);
    let used = sim.used(0);
    assert!(held <= used && used <= limit, "{used} bytes of the device, {held} in the books");
}

/// Growth, a trim and a remapping of several pieces.
fn program(pool: &Pool, sim: &Simulation) -> bool {
    let mut live = Vec::new();
    let mut well = true;
    let agree = || if sim.struck() == 0 { agree(sim, pool) } else { agree_but_for_refusals(sim, pool) };
    let mut get = |live: &mut Vec<u64>, bytes: u64| {
        match pool.alloc(bytes) {
            Ok(address) => live.push(address),
            Err(status) => {
                assert!([BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED].contains(&status), "{status}");
                well = false;
            }
        }
        agree();
    };
    (0..6).for_each(|_| get(&mut live, 3 * MIB));
    let mut place = 0;
    live.retain(|&address| {
        place += 1;
        if place % 2 == 0 {
            pool.put(address);
        }
        place % 2 != 0
    });
    get(&mut live, 5 * MIB);
    let trimmed = pool.try_trim(14 * MIB);
    assert!(trimmed.is_ok() || trimmed == Err(BFC_ERROR_BACKEND_FAILED));
    agree();
    get(&mut live, 9 * MIB);
    live.iter().for_each(|&address| pool.put(address));
    agree();
    well && trimmed.is_ok()
}

/// Every call of the driver made to fail at every position, with peers, which are optional for a mapping: an error,
/// nothing leaks, and the invariants hold.
#[test]
fn every_call_of_the_driver_fails_once() {
    simulated_with("every_call_of_the_driver_fails_once", &[("SIMCUDA_DEVICES", "3")], |sim| {
        for code in [CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN] {
            let (mut noticed, mut nth) = (0, 0);
            loop {
                nth += 1;
                let pool = vmm(24 * MIB);
                sim.fail(None, nth, code);
                let well = program(&pool, &sim);
                let struck = sim.struck() != 0;
                noticed += u64::from(!well);
                // Everything works again.
                sim.clear_faults();
                let all = pool.get(24 * MIB);
                pool.put(all);
                assert_eq!(pool.trim(0), 24 * MIB);
                agree(&sim, &pool);
                assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
                nothing_is_left(&sim);
                if !struck {
                    break;
                }
            }
            assert!(nth > 100 && noticed > 20, "{nth} calls, {noticed} noticed");
        }
    });
}

/// Releases succeed silently, as with BFC_BACKEND_CUDA. Requests for new memory, and moves, are refused.
#[test]
fn a_driver_past_its_end_is_no_error_for_what_goes_back() {
    let test = "a_driver_past_its_end_is_no_error_for_what_goes_back";
    simulated(test, |sim| {
        for remapping in [false, true] {
            assert_eq!(sim.configure(1, GIB), 0);
            let pool = vmm(16 * MIB);
            let all: Vec<u64> = (0..8).map(|_| pool.get(2 * MIB)).collect();
            all.iter().step_by(2).for_each(|&address| pool.put(address));
            sim.shutdown();
            if remapping {
                assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_SHUTTING_DOWN));
                pool.check();
            }
            assert_eq!(pool.get(2 * MIB), all[0], "what is there is there");
            assert_eq!(pool.free(12345), BFC_ERROR_INVALID_POINTER);
            let said = last_error();
            assert_eq!((pool.free(all[0]), pool.try_trim(0)), (BFC_OK, Ok(8 * MIB)), "{}", last_error());
            assert_eq!(last_error(), said, "a success leaves the last error");
            assert_eq!(pool.stats().pool_bytes, 8 * MIB);
            pool.check();
            all.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
            assert_eq!(pool.try_trim(0), Ok(8 * MIB));
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        }
    });
}

/// Memory that one stream's work may still touch stays mapped until the work has completed, because unmapping on a
/// device does not wait.
#[test]
fn granules_go_back_when_the_work_on_them_is_done() {
    simulated("granules_go_back_when_the_work_on_them_is_done", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let stream = gpu.stream(false);
        type Way = fn(&Pool, u64);
        let ways: [(&str, Way); 3] = [
            ("a trim", |pool, _| assert_eq!(pool.trim(0), 8 * MIB)),
            ("a remapping", |pool, stream| pool.put_on(pool.get_on(8 * MIB, stream), stream)),
            ("the end", |pool, _| assert_eq!(pool.destroy_forced(), BFC_OK)),
        ];
        for (name, way) in ways {
            let pool = vmm(16 * MIB);
            gpu.hold(stream);
            let all: Vec<u64> = (0..8).map(|_| pool.get_on(2 * MIB, stream)).collect();
            for &address in all.iter().step_by(2) {
                gpu.fill(stream, address, 2 * MIB, address);
                gpu.expect(stream, address, 2 * MIB, address);
                pool.put_on(address, stream);
            }
            assert_eq!((gpu.pending(stream), sim.calls("cuMemUnmap")), (8, 0), "{name}");
            way(&pool, stream);
            assert!(sim.calls("cuMemUnmap") >= 4, "{name}");
            assert_eq!((gpu.pending(stream), sim.misuse_texts()), (0, vec![]), "{name}");
            drop(pool);
            sim.clear_log();
        }
        gpu.destroy_stream(stream);
        gpu.leave(0);
        nothing_is_left(&sim);
    });
}

/// The range is freed, and the context released, if the allocator cannot be created.
#[test]
fn a_creation_that_fails_leaves_nothing() {
    simulated("a_creation_that_fails_leaves_nothing", |sim| {
        let create = || {
            let mut wanted = options();
            (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA_VMM, GIB);
            create(0, Some(&wanted))
        };
        for function in ["cuMemAddressReserve", "cuMemGetAllocationGranularity", "cuDeviceGetAttribute"] {
            sim.fail(Some(function), 1, CUDA_ERROR_UNKNOWN);
            let status = create();
            assert!(
                [BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED].contains(&status),
                "{function}"
            );
            nothing_is_left(&sim);
        }
        // Fewer addresses are sufficient.
        sim.fail(Some("cuMemAddressReserve"), 1, CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(create(), BFC_OK, "{}", last_error());
        assert_eq!(create(), BFC_ERROR_ALREADY_EXISTS);
        assert_eq!(bfc_destroy(0), BFC_OK);
        nothing_is_left(&sim);
    });
}

fn no_vmm() -> String {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA_VMM, GIB);
    assert_eq!(create(0, Some(&wanted)), BFC_ERROR_BACKEND_UNAVAILABLE);
    let words = last_error();
    // Existing memory serves the request.
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA, GIB);
    let pool = Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
    pool.put(pool.get(MIB));
    words
}

/// cuMemCreate and related functions were added in CUDA 10.2.
#[test]
fn a_driver_from_before_granules_is_told_so() {
    let variables = [("SIMCUDA_DRIVER_VERSION", "10010")];
    simulated_with("a_driver_from_before_granules_is_told_so", &variables, |sim| {
        let words = no_vmm();
        assert!(words.contains("too old") && words.contains("needs CUDA 10.2"), "{words}");
        nothing_is_left(&sim);
    });
}

#[test]
fn a_device_without_granules_is_told_so() {
    simulated("a_device_without_granules_is_told_so", |sim| {
        assert_eq!(sim.set(VMM, 0), 0);
        let words = no_vmm();
        assert!(words.contains("no virtual memory management") && words.contains("BFC_BACKEND_CUDA"));
        nothing_is_left(&sim);
        assert_eq!(sim.set(VMM, 1), 0);
        let pool = vmm(16 * MIB);
        pool.put(pool.get(MIB));
        drop(pool);
        nothing_is_left(&sim);
    });
}

/// The device has less than the limit, so free pieces move.
#[test]
fn the_device_is_full_before_the_limit() {
    simulated("the_device_is_full_before_the_limit", |sim| {
        assert_eq!(sim.configure(1, 512 * MIB), 0);
        let pool = vmm(GIB);
        let mut all = Vec::new();
        while let Ok(address) = pool.alloc(16 * MIB) {
            all.push(address);
        }
        assert_eq!(all.len(), 32);
        let held = pool.stats().pool_bytes;
        all.iter().step_by(2).for_each(|&address| pool.put(address));
        let large = pool.get(16 * MIB * (all.len() as u64 / 2));
        assert!(pool.stats().pool_bytes <= held + GRANULE);
        pool.put(large);
        agree(&sim, &pool);
        assert_eq!(pool.destroy_forced(), BFC_OK);
        nothing_is_left(&sim);
    });
}

/// A granule that cannot be unmapped does not keep the others.
#[test]
fn at_the_end_all_that_can_go_goes() {
    simulated("at_the_end_all_that_can_go_goes", |sim| {
        let pool = vmm(GIB);
        let chunks: Vec<u64> = (0..8).map(|_| pool.get(GRANULE)).collect();
        chunks.into_iter().for_each(|chunk| pool.put(chunk));
        // They are tried once more, after the others.
        (2..=4).for_each(|nth| sim.fail(Some("cuMemUnmap"), nth, CUDA_ERROR_UNKNOWN));
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!(sim.struck(), 3);
        nothing_is_left(&sim);
    });
}

/// Intermediate refusals are not reported.
#[test]
fn a_success_leaves_the_last_error() {
    simulated_with("a_success_leaves_the_last_error", &[("SIMCUDA_MEMORY", "33554432")], |_| {
        let pool = vmm(GIB);
        // The device is full, and every second granule is idle.
        let chunks: Vec<u64> = (0..16).map_while(|_| pool.alloc(GRANULE).ok()).collect();
        chunks.iter().step_by(2).for_each(|&chunk| pool.put(chunk));
        assert_eq!(pool.free(12345), BFC_ERROR_INVALID_POINTER);
        let before = last_error();
        let moved = pool.get(3 * GRANULE);
        assert_eq!(last_error(), before);
        pool.put(moved);
    });
}
