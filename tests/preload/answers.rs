//! The results of the driver's functions under the interposer, on the simulated driver (a simulation, and no device):
//! in every context, after a deferred free, and if the memory that they need is the pool's.

use crate::common::gpu::Gpu;
use crate::common::hooked::Hooked;
use crate::common::hooks::{call, green, must};
use crate::common::preload::{self, Interposer};
use crate::common::simcuda::simulated_with;
use crate::common::*;
use cuda_sys::*;
use std::ptr::null_mut;
use std::sync::Barrier;

/// Runs a program in a process of its own.
fn preloaded(test: &str, more: &[(&str, &str)], program: impl Fn(Hooked)) {
    let mut variables = more.to_vec();
    if !child::is_child(test) {
        variables.push(("LD_PRELOAD", preload::library(Interposer::Shipped).to_str().expect("UTF-8")));
    }
    simulated_with(test, &variables, |sim| program(Hooked::new(Gpu::new(sim))));
}

/// The pool's unused memory is free for every context of the device.
#[test]
fn free_memory_is_the_same_in_every_context_of_a_device() {
    preloaded("free_memory_is_the_same_in_every_context_of_a_device", &[], |gpu| {
        let primary = gpu.enter(0);
        let before = gpu.free_memory();
        let memory = gpu.alloc(512 * MIB).expect("there is room");
        assert_eq!(gpu.free(memory), Ok(()));
        let created = gpu.own_context(0);
        let (green, of_green) = green(0);
        for context in [primary, created, of_green] {
            gpu.set_current(context);
            assert_eq!(gpu.free_memory(), before);
        }
        must!(cuGreenCtxDestroy(green));
        gpu.destroy_context(created);
        gpu.set_current(primary);
        gpu.leave(0);
    });
}

/// A capture defers cudaFree with BFC_PRELOAD_ASYNC=1. To the program the memory is free: in the capture, and
/// afterwards.
#[test]
fn a_free_that_is_put_off_is_a_free() {
    preloaded("a_free_that_is_put_off_is_a_free", &[("BFC_PRELOAD_ASYNC", "1")], |gpu| {
        gpu.enter(0);
        let (stream, other) = (gpu.stream(false), gpu.stream(false));
        let before = gpu.free_memory();
        let memory = gpu.alloc(64 * MIB).expect("there is room");
        let is_free = || {
            let (mut base, mut bytes) = (0, 0);
            assert_eq!(gpu.free_memory(), before);
            assert_eq!(call!(cuMemGetAddressRange_v2(&mut base, &mut bytes, memory)), CUDA_ERROR_NOT_FOUND);
            assert_eq!(gpu.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
            assert_eq!(gpu.free_async(memory, other), Err(CUDA_ERROR_INVALID_VALUE));
        };
        gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        assert_eq!(gpu.free(memory), Ok(()));
        is_free();
        assert!(gpu.try_end_capture(stream).is_ok());
        is_free();
        let two = [(); 2].map(|()| gpu.alloc_async(64 * MIB, other).expect("there is room"));
        assert_ne!(two[0], two[1], "handed out twice");
        two.into_iter().for_each(|address| assert_eq!(gpu.free_async(address, other), Ok(())));
    });
}

/// A driver without memory for a call on a green context's stream. Up to CUDA 12.9 a green context is current to one
/// thread at a time.
#[test]
fn room_for_a_green_stream_needs_no_current_green_context() {
    let test = "room_for_a_green_stream_needs_no_current_green_context";
    preloaded(test, &[("SIMCUDA_DRIVER_VERSION", "12090")], |gpu| {
        let primary = gpu.enter(0);
        let memory = gpu.alloc(MIB).expect("there is room");
        assert_eq!(gpu.free(memory), Ok(()));
        let (green, context) = green(0);
        let mut stream = null_mut();
        must!(cuGreenCtxStreamCreate(&mut stream, green, CU_STREAM_NON_BLOCKING, 0));
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.set_current(context);
                both.wait();
                both.wait();
                gpu.set_current(0);
            });
            both.wait();
            gpu.set_current(primary);
            let (pool, mut address) = (gpu.memory_pool(0), 0);
            gpu.sim.fail(Some("cuMemAllocFromPoolAsync"), 1, CUDA_ERROR_OUT_OF_MEMORY);
            must!(cuMemAllocFromPoolAsync(&mut address, 1024, pool as CUmemoryPool, stream));
            both.wait();
        });
        assert_eq!(gpu.sim.misuse_texts(), Vec::<String>::new());
    });
}

/// Registered host memory must stay in place, like pinned memory, so both share what there is.
#[test]
fn idle_pinned_memory_serves_registrations() {
    preloaded("idle_pinned_memory_serves_registrations", &[("BFC_PRELOAD_PINNED", "1")], |gpu| {
        gpu.enter(0);
        let pinned = gpu.alloc_host(MIB).expect("there is room");
        assert_eq!(gpu.free_host(pinned), Ok(()));
        let mut buffer = vec![0_u8; 1 << 20];
        gpu.sim.fail(Some("cuMemHostRegister"), 1, CUDA_ERROR_OUT_OF_MEMORY);
        must!(cuMemHostRegister_v2(buffer.as_mut_ptr().cast(), buffer.len(), 0));
        must!(cuMemHostUnregister(buffer.as_mut_ptr().cast()));
        gpu.leave(0);
    });
}
