//! `BFC_BACKEND_CUDA_VMM` and other devices, on the simulated driver: which devices may access the memory of a pool, after
//! each way in which granules are mapped, and the number of driver calls.

use crate::common::gpu::Gpu;
use crate::common::log::Collected;
use crate::common::lost::lost;
use crate::common::simcuda::steer::{MAPPINGS, PEERS, PHYSICAL, RESERVATIONS, RETAINS, VMM};
use crate::common::simcuda::{Simulation, simulated, simulated_saying};
use crate::common::*;
use cuda_sys::*;
use std::ffi::c_void;

const GRANULE: u64 = 2 * MIB;

/// Values of `SIMCUDA_PEERS`: which device can access which memory.
const NEIGHBOURS: i64 = 2;
const LOWER_ORDINALS: i64 = 3;

fn vmm_on(device: i32, limit: u64) -> Pool {
    Pool::on_device(device, |options| {
        (options.backend, options.flags, options.memory_limit) =
            (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH, limit);
    })
}

/// Loads the driver with this many devices, and initializes it.
fn machine(sim: Simulation, devices: i32) -> Gpu {
    assert_eq!(sim.configure(devices, GIB), 0);
    Gpu::new(sim)
}

/// Returns whether a device may read and write a granule.
fn may_access(sim: Simulation, device: i32, at: u64) -> bool {
    let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    let mut flags = 0;
    let get = sim.driver().cuMemGetAccess().unwrap();
    // SAFETY: both pointers are valid.
    assert_eq!(unsafe { get(&mut flags, &location, at) }, CUDA_SUCCESS, "{at:#x} is not mapped");
    flags == u64::from(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

/// Returns for each device of the machine whether it may access a whole chunk. Access to a part of it is an error.
#[track_caller]
fn accessors(sim: Simulation, devices: i32, chunk: u64, bytes: u64) -> Vec<bool> {
    let of = |device: i32| {
        let first = chunk / GRANULE * GRANULE;
        let granules = (first..chunk + bytes).step_by(GRANULE as usize);
        let all: Vec<bool> = granules.map(|at| may_access(sim, device, at)).collect();
        assert!(all.iter().all(|&may| may == all[0]), "device {device}, {chunk:#x}: {all:?}");
        all[0]
    };
    (0..devices).map(of).collect()
}

#[track_caller]
fn nothing_is_left(sim: Simulation) {
    assert_eq!(sim.misuse_texts(), [""; 0]);
    assert_eq!([PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind)), [0; 4]);
}

/// A kernel of one device fills memory of another's pool, and a kernel of that one finds it there: cuMemSetAccess decides,
/// whether or not the contexts have enabled access to each other.
#[test]
fn kernels_of_a_peer_touch_the_memory() {
    simulated("kernels_of_a_peer_touch_the_memory", |sim| {
        for enabled in [false, true] {
            let gpu = machine(sim, 2);
            let contexts = [0, 1].map(|device| gpu.enter(device));
            if enabled {
                gpu.enable_peer(contexts[0]);
                gpu.set_current(contexts[0]);
                gpu.enable_peer(contexts[1]);
            }
            let pools = [0, 1].map(|device| vmm_on(device, 16 * MIB));
            for (device, pool) in (0..).zip(&pools) {
                let chunk = pool.get(5 * MIB);
                let [own, peer] = [contexts[device], contexts[1 - device]];
                gpu.set_current(peer);
                let stream = gpu.stream(false);
                gpu.fill(stream, chunk, 5 * MIB, 0x77);
                gpu.synchronize(stream);
                gpu.destroy_stream(stream);
                gpu.set_current(own);
                let stream = gpu.stream(false);
                gpu.expect(stream, chunk, 5 * MIB, 0x77);
                gpu.synchronize(stream);
                gpu.destroy_stream(stream);
                pool.put(chunk);
            }
            assert_eq!(sim.mismatches(), 0);
            drop(pools);
            gpu.leave(1);
            gpu.release(0);
            nothing_is_left(sim);
        }
    });
}

/// Copies in both directions, with the device of the one and of the other current.
#[test]
fn copies_between_devices() {
    simulated("copies_between_devices", |sim| {
        let gpu = machine(sim, 2);
        let contexts = [0, 1].map(|device| gpu.enter(device));
        let pools = [0, 1].map(|device| vmm_on(device, 16 * MIB));
        let chunks = [0, 1].map(|device| pools[device].get(3 * MIB));
        let (copy, copy_async) =
            (sim.driver().cuMemcpyDtoD_v2().unwrap(), sim.driver().cuMemcpyAsync().unwrap());
        for (round, [from, to]) in (1..).zip([[0, 1], [1, 0]]) {
            for current in contexts {
                gpu.set_current(contexts[from]);
                let stream = gpu.stream(false);
                gpu.fill(stream, chunks[from], 3 * MIB, round);
                gpu.synchronize(stream);
                gpu.destroy_stream(stream);
                gpu.set_current(current);
                // SAFETY: memory of that size.
                let code = unsafe { copy(chunks[to], chunks[from], 2 * MIB as usize) };
                assert_eq!(code, CUDA_SUCCESS, "{from} to {to}");
                let stream = gpu.stream(false);
                let [to, from] = [chunks[to], chunks[from]].map(|chunk| chunk + 2 * MIB);
                // SAFETY: as above, and the stream lives.
                assert_eq!(unsafe { copy_async(to, from, MIB as usize, stream as CUstream) }, CUDA_SUCCESS);
                gpu.synchronize(stream);
                gpu.expect(stream, to - 2 * MIB, 3 * MIB, round);
                gpu.synchronize(stream);
                gpu.destroy_stream(stream);
            }
            let stream = gpu.stream(false);
            gpu.copy(chunks[to], contexts[to], chunks[from], contexts[from], MIB, stream);
            gpu.synchronize(stream);
            gpu.destroy_stream(stream);
        }
        assert_eq!((sim.mismatches(), sim.misuse_texts()), (0, vec![]));
        (0..2).for_each(|device| pools[device].put(chunks[device]));
        drop(pools);
        gpu.leave(1);
        gpu.release(0);
        nothing_is_left(sim);
    });
}

/// Growth, moved granules, granules mapped again after a failure, and a pool's life after a reset.
#[test]
fn each_way_of_mapping_gives_the_same_access() {
    simulated("each_way_of_mapping_gives_the_same_access", |sim| {
        let gpu = machine(sim, 3);
        let all = vec![true; 3];
        let pool = vmm_on(1, 16 * MIB);
        for _ in 0..2 {
            let chunks: Vec<u64> = (0..8).map(|_| pool.get(GRANULE)).collect();
            chunks.iter().for_each(|&chunk| assert_eq!(accessors(sim, 3, chunk, GRANULE), all));
            // Half of them move.
            chunks.iter().step_by(2).for_each(|&chunk| pool.put(chunk));
            let large = pool.get(8 * MIB);
            assert_eq!(accessors(sim, 3, large, 8 * MIB), all, "moved");
            pool.put(large);
            chunks.iter().skip(1).step_by(2).for_each(|&chunk| pool.put(chunk));
            gpu.reset(1);
            lost(1);
        }
        pool.put(pool.get(16 * MIB));
        // The nth call of a remapping fails: everything mapped in the end is as accessible as before.
        let mut failed = 0;
        for function in ["cuMemUnmap", "cuMemMap", "cuMemSetAccess"] {
            for nth in 1..=4 {
                let [first, kept, last] = [3, 2, 3].map(|granules| pool.get(granules * GRANULE));
                [first, last].into_iter().for_each(|chunk| pool.put(chunk));
                sim.fail(Some(function), nth, CUDA_ERROR_UNKNOWN);
                match pool.alloc(6 * GRANULE) {
                    Ok(large) => {
                        assert_eq!(accessors(sim, 3, large, 6 * GRANULE), all, "{function} {nth}");
                        pool.put(large);
                    }
                    Err(_) => failed += 1,
                }
                sim.clear_faults();
                assert_eq!(accessors(sim, 3, kept, 2 * GRANULE), all, "{function} {nth}, in use");
                let rest: Vec<u64> = (0..6).map(|_| pool.get(GRANULE)).collect();
                for chunk in rest {
                    assert_eq!(accessors(sim, 3, chunk, GRANULE), all, "{function} {nth}, free before");
                    pool.put(chunk);
                }
                pool.put(kept);
                pool.check();
            }
        }
        assert!(failed > 3, "{failed} remappings failed");
        assert_eq!(pool.destroy_forced(), BFC_OK);
    });
}

/// Devices that cannot access the pool's device are left out, which is not a failure.
#[test]
fn devices_that_are_no_peers() {
    simulated("devices_that_are_no_peers", |sim| {
        let cases: [(i64, i32, [bool; 4]); 5] = [
            (0, 1, [false, true, false, false]),
            (1, 1, [true; 4]),
            (NEIGHBOURS, 0, [true, true, false, false]),
            (NEIGHBOURS, 3, [false, false, true, true]),
            // Devices 2 and 3 reach device 1; device 0 reaches none.
            (LOWER_ORDINALS, 1, [false, true, true, true]),
        ];
        for (peers, device, expected) in cases {
            machine(sim, 4);
            assert_eq!(sim.set(PEERS, peers), 0);
            let pool = vmm_on(device, 16 * MIB);
            let chunk = pool.get(5 * MIB);
            assert_eq!(accessors(sim, 4, chunk, 5 * MIB), expected, "peers {peers}, device {device}");
            pool.put(chunk);
            assert_eq!(pool.destroy(), BFC_OK);
            nothing_is_left(sim);
        }
    });
}

/// `BFC_LOG=info` lists them.
#[test]
fn the_log_lists_the_devices_with_access() {
    let test = "the_log_lists_the_devices_with_access";
    let said = simulated_saying(test, &[("BFC_LOG", "info")], |sim| {
        for (devices, peers) in [(1, 1), (2, 1), (2, 0), (4, 1)] {
            machine(sim, devices);
            assert_eq!(sim.set(PEERS, peers), 0);
            assert_eq!(vmm_on(0, 16 * MIB).destroy(), BFC_OK);
        }
    });
    if !said.is_empty() {
        let lines = said.lines().filter(|line| line.contains("devices with access"));
        let lists: Vec<&str> = lines.filter_map(|line| line.rsplit(": ").next()).collect();
        assert_eq!(lists, ["1", "no other", "1, 2, 3"], "{said}");
    }
}

/// Peers are queried once for each life of the pool, and one call gives access to a mapped span.
#[test]
fn the_number_of_calls() {
    simulated("the_number_of_calls", |sim| {
        let calls = |names: [&str; 2]| names.map(|name| sim.calls(name));
        for devices in [1, 2, 8] {
            let gpu = machine(sim, devices);
            let peers = u64::try_from(devices - 1).unwrap();
            let pool = vmm_on(0, 64 * MIB);
            let names = ["cuDeviceCanAccessPeer", "cuMemSetAccess"];
            assert_eq!(calls(names), [peers, 0]);
            let chunks: Vec<u64> = (1..=4).map(|_| pool.get(16 * MIB)).collect();
            assert_eq!(calls(names), [peers, 4], "{devices} devices");
            chunks.iter().step_by(2).for_each(|&chunk| pool.put(chunk));
            pool.put(pool.get(32 * MIB));
            let [asked, set] = calls(names);
            assert!(asked == peers && set <= 6, "{devices} devices: {asked}, {set}");
            gpu.reset(0);
            lost(0);
            pool.get(16 * MIB);
            assert_eq!(calls(names), [2 * peers, set + 1], "after the reset");
            assert_eq!(pool.destroy_forced(), BFC_OK);
        }
    });
}

/// A peer that is refused access is left out afterwards, with a message. The own device and the others have access.
#[test]
fn a_peer_that_is_refused_access() {
    simulated("a_peer_that_is_refused_access", |sim| {
        machine(sim, 3);
        let log = Collected::start();
        let pool = vmm_on(0, 64 * MIB);
        // All at once; then the own device (the 2nd call) gets it, and device 1 (the 3rd) is refused.
        [1, 3].into_iter().for_each(|nth| sim.fail(Some("cuMemSetAccess"), nth, CUDA_ERROR_INVALID_DEVICE));
        let chunk = pool.get(16 * MIB);
        assert_eq!((sim.struck(), sim.calls("cuMemSetAccess")), (2, 4));
        assert_eq!(accessors(sim, 3, chunk, 16 * MIB), [true, false, true]);
        let said = log.with("device 1");
        assert_eq!(said.len(), 1, "{:?}", log.messages());
        assert!(
            said[0].contains("cuMemSetAccess") && said[0].contains("CUDA_ERROR_INVALID_DEVICE"),
            "{said:?}"
        );
        let later = pool.get(16 * MIB);
        assert_eq!(sim.calls("cuMemSetAccess"), 5, "one call, without device 1");
        assert_eq!(accessors(sim, 3, later, 16 * MIB), [true, false, true]);
        assert_eq!(log.with("device 1").len(), 1, "said once");
        [chunk, later].into_iter().for_each(|chunk| pool.put(chunk));
        assert_eq!(pool.destroy(), BFC_OK);
        nothing_is_left(sim);
    });
}

/// A temporary failure, such as no memory for page tables, is retried at the next mapping.
#[test]
fn a_peer_without_memory_for_page_tables() {
    simulated("a_peer_without_memory_for_page_tables", |sim| {
        machine(sim, 3);
        let log = Collected::start();
        let pool = vmm_on(0, 64 * MIB);
        [1, 3].into_iter().for_each(|nth| sim.fail(Some("cuMemSetAccess"), nth, CUDA_ERROR_OUT_OF_MEMORY));
        let chunk = pool.get(16 * MIB);
        assert_eq!(accessors(sim, 3, chunk, 16 * MIB), [true, false, true]);
        assert_eq!(log.with("device 1").len(), 1, "{:?}", log.messages());
        let later = pool.get(16 * MIB);
        assert_eq!(accessors(sim, 3, later, 16 * MIB), [true; 3]);
        [chunk, later].into_iter().for_each(|chunk| pool.put(chunk));
        assert_eq!(pool.destroy(), BFC_OK);
        nothing_is_left(sim);
    });
}

/// Without access for the pool's own device the request fails, and nothing is kept.
#[test]
fn the_own_device_is_required() {
    simulated("the_own_device_is_required", |sim| {
        for devices in [1, 3] {
            machine(sim, devices);
            let pool = vmm_on(0, 64 * MIB);
            let last = if devices == 1 { 1 } else { 2 };
            (1..=last).for_each(|nth| sim.fail(Some("cuMemSetAccess"), nth, CUDA_ERROR_UNKNOWN));
            assert_eq!(pool.alloc(16 * MIB), Err(BFC_ERROR_BACKEND_FAILED));
            assert!(last_error().contains("cuMemSetAccess"), "{}", last_error());
            assert_eq!((sim.live(MAPPINGS), sim.calls("cuMemSetAccess")), (0, last));
            pool.put(pool.get(16 * MIB));
            assert_eq!(pool.destroy(), BFC_OK);
            nothing_is_left(sim);
        }
    });
}

/// A query that the driver does not answer leaves that device out.
#[test]
fn a_question_that_fails() {
    simulated("a_question_that_fails", |sim| {
        machine(sim, 3);
        let log = Collected::start();
        sim.fail(Some("cuDeviceCanAccessPeer"), 2, CUDA_ERROR_UNKNOWN);
        let pool = vmm_on(1, 64 * MIB);
        let chunk = pool.get(16 * MIB);
        assert_eq!(accessors(sim, 3, chunk, 16 * MIB), [true, true, false]);
        assert_eq!(log.with("device 2").len(), 1, "{:?}", log.messages());
        pool.put(chunk);
        assert_eq!(pool.destroy(), BFC_OK);
        // The first count is for the pool's own device.
        sim.fail(Some("cuDeviceGetCount"), 2, CUDA_ERROR_UNKNOWN);
        let pool = vmm_on(1, 64 * MIB);
        let chunk = pool.get(16 * MIB);
        assert_eq!(accessors(sim, 3, chunk, 16 * MIB), [true, true, false]);
        assert_eq!(log.with("cuDeviceGetCount").len(), 1, "{:?}", log.messages());
        pool.put(chunk);
        assert_eq!(pool.destroy(), BFC_OK);
        nothing_is_left(sim);
    });
}

/// Whether an address can be registered with GPUDirect RDMA.
fn is_rdma_capable(sim: Simulation, at: u64) -> bool {
    let mut capable = 9u32;
    let get = sim.driver().cuPointerGetAttribute().unwrap();
    let which = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
    // SAFETY: the pointer is valid for what the attribute is.
    let code = unsafe { get((&raw mut capable).cast::<c_void>(), which, at) };
    assert_eq!(code, CUDA_SUCCESS);
    capable == 1
}

/// The flag is set only if attribute 110 reports that the device supports it.
#[test]
fn memory_for_gpudirect_rdma() {
    simulated("memory_for_gpudirect_rdma", |sim| {
        // SIMCUDA_VMM 2: virtual memory management without that flag.
        for (vmm, capable) in [(1, true), (2, false)] {
            machine(sim, 1);
            assert_eq!(sim.set(VMM, vmm), 0);
            let pool = vmm_on(0, 16 * MIB);
            let chunk = pool.get(5 * MIB);
            assert_eq!(is_rdma_capable(sim, chunk), capable, "SIMCUDA_VMM {vmm}");
            pool.put(chunk);
            assert_eq!(pool.destroy(), BFC_OK);
            nothing_is_left(sim);
        }
    });
}

/// A driver that reports the flag as supported and then refuses it: memory without it, and a message.
#[test]
fn a_refused_flag_is_left_out() {
    simulated("a_refused_flag_is_left_out", |sim| {
        let refusals = [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED];
        for function in ["cuMemGetAllocationGranularity", "cuMemCreate"] {
            for code in refusals {
                machine(sim, 1);
                let log = Collected::start();
                sim.fail(Some(function), 1, code);
                let pool = vmm_on(0, 16 * MIB);
                let chunk = pool.get(5 * MIB);
                assert!(!is_rdma_capable(sim, chunk), "{function} {code}");
                assert_eq!(log.with("GPUDirect RDMA").len(), 1, "{:?}", log.messages());
                let calls = sim.calls("cuMemCreate");
                let later = pool.get(3 * MIB);
                assert!(!is_rdma_capable(sim, later));
                assert!(sim.calls("cuMemCreate") - calls <= 2, "the flag is not tried again");
                [chunk, later].into_iter().for_each(|chunk| pool.put(chunk));
                assert_eq!(pool.destroy(), BFC_OK);
                nothing_is_left(sim);
            }
        }
    });
}

/// In one address range either all memory has the flag or none: "All the physical allocations backing the address range
/// must [...] have identical allocation properties" (cuMemGetHandleForAddressRange). So a refusal is a failure once
/// there is some, and so is any other failure.
#[test]
fn memory_with_the_flag_and_without_is_never_mixed() {
    simulated("memory_with_the_flag_and_without_is_never_mixed", |sim| {
        machine(sim, 1);
        let pool = vmm_on(0, 16 * MIB);
        let log = Collected::start();
        sim.fail(Some("cuMemCreate"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_BACKEND_FAILED));
        let chunk = pool.get(3 * MIB);
        sim.fail(Some("cuMemCreate"), 1, CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_BACKEND_FAILED));
        let later = pool.get(8 * MIB);
        assert!([chunk, later].into_iter().all(|chunk| is_rdma_capable(sim, chunk)));
        assert!(log.with("RDMA").is_empty(), "{:?}", log.messages());
        [chunk, later].into_iter().for_each(|chunk| pool.put(chunk));
        assert_eq!(pool.destroy(), BFC_OK);
        nothing_is_left(sim);
    });
}

/// Granules stay mapped until a peer's work on them has completed.
#[test]
fn granules_that_a_peer_still_uses() {
    simulated("granules_that_a_peer_still_uses", |sim| {
        type Way = fn(&Pool, u64);
        let ways: [(&str, Way); 3] = [
            ("a trim", |pool, _| _ = pool.try_trim(0)),
            ("a remapping", |pool, _| _ = pool.alloc(12 * MIB).map(|large| pool.put(large))),
            ("the end", |pool, _| assert_eq!(pool.destroy_forced(), BFC_OK)),
        ];
        for (name, way) in ways {
            let gpu = machine(sim, 2);
            let contexts = [0, 1].map(|device| gpu.enter(device));
            let there = gpu.stream(false);
            gpu.hold(there);
            gpu.set_current(contexts[0]);
            let own = gpu.stream(false);
            let pool = vmm_on(0, 16 * MIB);
            let all: Vec<u64> = (0..8).map(|_| pool.get_on(2 * MIB, own)).collect();
            for chunk in [&all[..3], &all[5..]].concat() {
                gpu.set_current(contexts[1]);
                gpu.fill(there, chunk, 2 * MIB, 7);
                gpu.set_current(contexts[0]);
                assert_eq!(bfc_record_stream(0, pointer(chunk), pointer(there)), BFC_OK);
                pool.put_on(chunk, own);
            }
            way(&pool, own);
            gpu.set_current(contexts[1]);
            sim.release_all();
            assert_eq!(sim.misuse_texts(), [""; 0], "{name}");
            pool.destroy_forced();
            for device in 0..2 {
                gpu.leave(device);
            }
        }
    });
}
