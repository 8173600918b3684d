//! Order of device work under the interposer, on the simulated driver (a simulation, and no device): programs
//! that run without the interposer neither deadlock, nor read wrong data, nor fail, especially with
//! `BFC_PRELOAD_ASYNC=1`.

use super::{Mark, send};
use crate::common::gpu::Gpu;
use crate::common::hooked::Hooked;
use crate::common::preload::{self, Interposer};
use crate::common::receive::Receive;
use crate::common::simcuda::simulated_with;
use crate::common::*;
use crate::harness;
use cuda_sys::CUDA_ERROR_INVALID_VALUE;

/// For each backend a limit, and the request that takes most of it.
const POOLS: [(&str, &str, u64); 2] = [("cuda", "128k", 100 * KIB), ("cuda_vmm", "8m", 6 * MIB)];

/// Runs a program in processes of their own, one with each backend.
fn preloaded(program: impl Fn(Hooked, u64)) {
    preloaded_with(&[("BFC_PRELOAD_ASYNC", "1")], program);
}

fn preloaded_with(settings: &[(&str, &str)], program: impl Fn(Hooked, u64)) {
    for (backend, limit, bytes) in POOLS {
        let mut variables = vec![("BFC_BACKEND", backend), ("BFC_MEMORY_LIMIT", limit)];
        variables.extend(settings);
        let bytes_text = bytes.to_string();
        variables.extend([("ORDER_BYTES", &*bytes_text), ("SIMCUDA_DEVICES", "2")]);
        if !child::is_child(&harness::test()) {
            variables.push(("LD_PRELOAD", preload::library(Interposer::Shipped).to_str().expect("UTF-8")));
        }
        simulated_with(&harness::test(), &variables, |sim| {
            let bytes = std::env::var("ORDER_BYTES").expect("set above").parse().expect("a number");
            program(Hooked::new(Gpu::new(sim)), bytes);
        });
        if child::is_child(&harness::test()) {
            return;
        }
    }
}

/// A communication stream frees and posts a receive; the memory then serves the stream that sends.
#[track_caller]
fn receive_after_free(gpu: Hooked, bytes: u64, is_async: bool) {
    gpu.enter(0);
    let (comm, compute) = (gpu.stream(false), gpu.stream(false));
    let known = [comm, compute].map(|stream| gpu.alloc_async(KIB, stream).expect("there is room"));
    let chunk = gpu.alloc_async(bytes, comm).expect("there is room");
    gpu.fill(comm, chunk, bytes, 1);
    assert_eq!(gpu.free_async(chunk, comm), Ok(()));
    let receive = Receive::post(*gpu, comm);
    let got = if is_async { gpu.alloc_async(bytes, compute) } else { gpu.alloc(bytes) };
    let judged = send(*gpu, receive, got.map_err(|code| format!("{code}")), bytes, compute, &[]);
    assert_eq!(judged, Ok(()));
    for address in known.into_iter().chain(got) {
        assert_eq!(gpu.free_async(address, compute), Ok(()));
    }
    assert_eq!(gpu.sim.mismatches(), 0);
    gpu.leave(0);
}

#[test]
fn an_asynchronous_request_waits_for_nothing_behind_the_free() {
    preloaded(|gpu, bytes| receive_after_free(gpu, bytes, true));
}

#[test]
fn a_plain_request_waits_for_nothing_behind_the_free() {
    preloaded(|gpu, bytes| receive_after_free(gpu, bytes, false));
}

/// Memory that is freed in the order of a stream of the program's own context, which still works on it.
#[test]
fn a_stream_of_another_context_is_waited_for() {
    preloaded(|gpu, bytes| {
        let primary = gpu.enter(0);
        let own = gpu.own_context(0);
        let there = gpu.stream(false);
        gpu.hold(there);
        gpu.set_current(primary);
        let (here, other) = (gpu.stream(false), gpu.stream(false));
        let known = [here, other].map(|stream| gpu.alloc_async(KIB, stream).expect("there is room"));
        for is_async in [true, false] {
            let chunk = gpu.alloc_async(bytes, here).expect("there is room");
            gpu.fill(here, chunk, bytes, 1);
            let event = gpu.recorded(here);
            gpu.set_current(own);
            gpu.wait(there, event);
            gpu.set_current(primary);
            gpu.destroy_event(event);
            gpu.expect(there, chunk, bytes, 1);
            let done = Mark::queue(*gpu, there);
            gpu.set_current(own);
            assert_eq!(gpu.free_async(chunk, there), Ok(()));
            gpu.set_current(primary);
            let got = if is_async { gpu.alloc_async(bytes, other) } else { gpu.alloc(bytes) };
            let address = got.unwrap_or_else(|code| panic!("the request fails: {code}"));
            gpu.fill(other, address, bytes, 2);
            let is_early = done.is_overtaken(*gpu, other);
            assert!(!is_early, "the memory is handed out while the other context works on it");
            gpu.synchronize(there);
            gpu.synchronize(other);
            assert_eq!(gpu.free_async(address, other), Ok(()));
        }
        known.into_iter().for_each(|address| assert_eq!(gpu.free_async(address, other), Ok(())));
        assert_eq!((gpu.sim.mismatches(), gpu.sim.misuse_texts()), (0, Vec::new()));
        gpu.destroy_context(own);
        gpu.set_current(primary);
        gpu.leave(0);
    });
}

/// The driver's cudaFree waits only for the memory's own context. A peer's kernel, which waits for this thread's
/// next action, keeps the memory from being reused, but does not block the host.
#[test]
fn a_plain_free_waits_for_no_peer() {
    for is_async in ["1", "0"] {
        let settings = [("BFC_PRELOAD_ASYNC", is_async), ("BFC_PRELOAD_FREE", "sync")];
        preloaded_with(&settings, |gpu, bytes| {
            let there = gpu.enter(1);
            let peers = gpu.stream(false);
            let here = gpu.enter(0);
            gpu.set_current(there);
            gpu.enable_peer(here);
            gpu.set_current(here);
            let own = gpu.stream(false);
            for _ in 0..3 {
                let chunk = gpu.alloc(bytes).expect("there is room");
                gpu.set_current(there);
                gpu.hold(peers);
                gpu.fill(peers, chunk, bytes, 1);
                let receive = Receive::post(*gpu, peers);
                gpu.set_current(here);
                gpu.hold(own);
                gpu.fill(own, chunk, bytes, 2);
                assert_eq!(gpu.free(chunk), Ok(()));
                assert_eq!(gpu.pending(own), 0, "cudaFree is a barrier of its own device");
                assert_eq!(gpu.free(chunk), Err(CUDA_ERROR_INVALID_VALUE), "freed twice");
                assert_eq!(gpu.free_async(chunk, own), Err(CUDA_ERROR_INVALID_VALUE), "freed twice");
                let is_forced = receive.is_forced();
                receive.send(*gpu, own);
                receive.deliver(*gpu);
                assert!(!is_forced, "deadlock: the free has waited in the host for a peer's receive");
                let again = gpu.alloc(bytes).expect("it is free");
                assert_eq!(gpu.pending(peers), 0, "the memory is handed out while a peer works on it");
                assert_eq!(gpu.free(again), Ok(()));
            }
            assert_eq!(gpu.sim.misuse_texts(), Vec::<String>::new());
        });
        if child::is_child(&harness::test()) {
            return;
        }
    }
}

/// Requests for a memory pool of the program's own go to the driver, as long as that pool is the device's current one.
#[test]
fn memory_pools_of_the_programs_own_are_the_drivers() {
    preloaded(|gpu, _| {
        gpu.enter(0);
        let stream = gpu.stream(false);
        for is_new in [false, true] {
            let served = |serves: bool| {
                let before = gpu.sim.calls("cuMemAllocAsync");
                let address = gpu.alloc_async(KIB, stream).expect("there is room");
                assert_eq!(gpu.sim.calls("cuMemAllocAsync") - before, u64::from(serves));
                address
            };
            let pooled = served(false);
            let own = gpu.memory_pool(0);
            gpu.set_memory_pool(0, own, is_new);
            let theirs = served(true);
            assert!(gpu.used_of_memory_pool(own) >= KIB);
            for address in [pooled, theirs] {
                assert_eq!(gpu.free_async(address, stream), Ok(()));
            }
            assert_eq!(gpu.used_of_memory_pool(own), 0);
            gpu.set_memory_pool(0, gpu.default_memory_pool(0), is_new);
            let pooled = served(false);
            gpu.set_memory_pool(0, own, is_new);
            gpu.destroy_memory_pool(own);
            let again = served(false);
            for address in [pooled, again] {
                assert_eq!(gpu.free_async(address, stream), Ok(()));
            }
        }
        gpu.synchronize(stream);
        assert_eq!(gpu.sim.misuse_texts(), Vec::<String>::new());
        gpu.destroy_stream(stream);
        gpu.leave(0);
    });
}

/// Streams end with `cuStreamDestroy`, or with their context.
#[test]
fn a_destroyed_stream_spoils_no_request() {
    preloaded(|gpu, bytes| {
        let primary = gpu.enter(0);
        let other = gpu.stream(false);
        let known = gpu.alloc_async(KIB, other).expect("there is room");
        for round in 0..8 {
            let (is_async, with_context) = (round % 2 == 0, round / 2 % 2 == 0);
            let own = with_context.then(|| gpu.own_context(0));
            let dying = gpu.stream(false);
            gpu.set_current(primary);
            let chunk = gpu.alloc_async(bytes, other).unwrap_or_else(|code| panic!("round {round}: {code}"));
            gpu.fill(other, chunk, bytes, round);
            gpu.synchronize(other);
            gpu.set_current(own.unwrap_or(primary));
            gpu.expect(dying, chunk, bytes, round);
            assert_eq!(gpu.free_async(chunk, dying), Ok(()));
            gpu.synchronize(dying);
            match own {
                Some(own) => gpu.destroy_context(own),
                None => gpu.destroy_stream(dying),
            }
            gpu.set_current(primary);
            let got = if is_async { gpu.alloc_async(bytes, other) } else { gpu.alloc(bytes) };
            let address = got.unwrap_or_else(|code| {
                panic!("round {round}, with its context: {with_context}: the request fails: {code}")
            });
            gpu.fill(other, address, bytes, round);
            assert_eq!(gpu.free_async(address, other), Ok(()));
        }
        assert_eq!(gpu.free_async(known, other), Ok(()));
        assert_eq!((gpu.sim.mismatches(), gpu.sim.misuse_texts()), (0, Vec::new()));
        gpu.leave(0);
    });
}
