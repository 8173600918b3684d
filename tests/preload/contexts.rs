//! Contexts under the interposer, on the simulated driver (a simulation, and no device): however one is created,
//! retained or ended, a pool waits for the work of all contexts that may use its memory, and lives as long as its
//! device's context.

/// The ends of contexts.
mod ends;

use crate::common::gpu::Gpu;
use crate::common::hooked::Hooked;
use crate::common::hooks::{call, found, green, must};
use crate::common::preload::{self, Interposer};
use crate::common::receive::Receive;
use crate::common::simcuda::steer::{CONTEXTS, EVENTS};
use crate::common::simcuda::{Simulation, simulated_with};
use crate::common::*;
use cuda_sys::*;
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::time::Duration;

/// The limit of a pool, and a request that takes most of it, so that the next one needs its memory.
const LIMIT: &str = "128k";
const BYTES: u64 = 100 * KIB;

/// Runs a program in a process of its own, on two devices.
fn preloaded(test: &str, more: &[(&str, &str)], program: impl Fn(Hooked)) {
    let mut variables = vec![("BFC_MEMORY_LIMIT", LIMIT), ("SIMCUDA_DEVICES", "2")];
    variables.extend(more);
    if !child::is_child(test) {
        variables.push(("LD_PRELOAD", preload::library(Interposer::Shipped).to_str().expect("UTF-8")));
    }
    simulated_with(test, &variables, |sim: Simulation| program(Hooked::new(Gpu::new(sim))));
}

/// Runs a program on a driver of CUDA 12, whose cuStreamGetCtx does not know green contexts, and of CUDA 13.
fn on_versions(test: &str, program: impl Fn(Hooked)) {
    for version in ["12090", "13050"] {
        preloaded(test, &[("SIMCUDA_DRIVER_VERSION", version)], &program);
        if child::is_child(test) {
            return;
        }
    }
}

fn stream_of(green: CUgreenCtx) -> u64 {
    let mut stream = null_mut();
    must!(cuGreenCtxStreamCreate(&mut stream, green, CU_STREAM_NON_BLOCKING, 0));
    stream as u64
}

/// Memory of the pool is reused only once the work of a held stream that uses it has completed.
#[track_caller]
fn waits_for(gpu: Hooked, primary: u64, user: u64, stream: u64) {
    gpu.set_current(primary);
    let memory = gpu.alloc(BYTES).expect("there is room");
    gpu.set_current(user);
    gpu.hold(stream);
    gpu.fill(stream, memory, BYTES, 1);
    assert_eq!(gpu.pending(stream), 1);
    gpu.set_current(primary);
    assert_eq!(gpu.free(memory), Ok(()));
    let again = gpu.alloc(BYTES).expect("it is free");
    gpu.set_current(user);
    assert_eq!(gpu.pending(stream), 0, "the memory is handed out while a context works on it");
    gpu.set_current(primary);
    assert_eq!(gpu.free(again), Ok(()));
}

fn was_well_used(gpu: Hooked) {
    assert_eq!((gpu.sim.misuse_texts(), gpu.sim.mismatches()), (Vec::new(), 0));
}

/// The primary contexts of two devices. The second is current, and its work may touch the first one's memory.
fn peers(gpu: Hooked) -> (u64, u64) {
    let (there, here) = (gpu.enter(1), gpu.enter(0));
    gpu.set_current(there);
    gpu.enable_peer(here);
    (here, there)
}

/// "This API will retain the primary context on device dev" (cuGreenCtxCreate): the program's own last release does not
/// end it.
#[test]
fn a_green_context_keeps_the_pool() {
    on_versions("a_green_context_keeps_the_pool", |gpu| {
        let primary = gpu.enter(0);
        let memory = gpu.alloc(BYTES).expect("there is room");
        let (green, context) = green(0);
        let stream = stream_of(green);
        gpu.set_current(context);
        gpu.sim.fail(Some("cuGreenCtxDestroy"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(call!(cuGreenCtxDestroy(green)), CUDA_ERROR_UNKNOWN);
        must!(cuDevicePrimaryCtxRelease_v2(0));
        gpu.fill(stream, memory, BYTES, 1);
        gpu.expect(stream, memory, BYTES, 1);
        gpu.set_current(primary);
        assert_eq!(gpu.free(memory), Ok(()));
        waits_for(gpu, primary, context, stream);
        must!(cuGreenCtxDestroy(green));
        assert_eq!((gpu.sim.used(0), gpu.sim.live(CONTEXTS)), (0, 0), "the last hold ends context and pool");
        was_well_used(gpu);
        gpu.enter(0);
        let memory = gpu.alloc(BYTES).expect("a new pool");
        assert_eq!(gpu.free(memory), Ok(()));
        gpu.leave(0);
        assert_eq!(gpu.sim.used(0), 0);
    });
}

/// The context of another device's green context continues to use a pool's memory after the program's own last release.
#[test]
fn a_green_context_stays_a_user_of_another_device() {
    on_versions("a_green_context_stays_a_user_of_another_device", |gpu| {
        let (here, _) = peers(gpu);
        let (green, context) = green(1);
        let stream = stream_of(green);
        must!(cuDevicePrimaryCtxRelease_v2(1));
        waits_for(gpu, here, context, stream);
        must!(cuGreenCtxDestroy(green));
        waits_for_nothing(gpu, here);
        was_well_used(gpu);
    });
}

/// A green context is the program's first context there, and alone holds the primary context.
#[test]
fn a_green_context_makes_its_primary_context_known() {
    on_versions("a_green_context_makes_its_primary_context_known", |gpu| {
        let here = gpu.enter(0);
        let (green, context) = green(1);
        gpu.set_current(context);
        gpu.enable_peer(here);
        let stream = stream_of(green);
        waits_for(gpu, here, context, stream);
        // It does not relate this device to the other one's memory.
        let (own, plain) = (gpu.stream(false), (*gpu).alloc(KIB));
        gpu.hold(own);
        gpu.fill(own, plain, KIB, 1);
        waits_for_nothing(gpu, gpu.enter(1));
        assert_eq!(gpu.pending(own), 1, "work is waited for that cannot use the memory");
        gpu.leave(1);
        must!(cuGreenCtxDestroy(green));
        waits_for_nothing(gpu, here);
        was_well_used(gpu);
    });
}

/// Freed memory is handed out again.
#[track_caller]
fn waits_for_nothing(gpu: Hooked, primary: u64) {
    gpu.set_current(primary);
    for _ in 0..3 {
        let memory = gpu.alloc(BYTES).expect("freed memory is found again");
        assert_eq!(gpu.free(memory), Ok(()));
    }
}

/// cuCtxDetach "destroys the context if the usage count goes to 0".
#[test]
fn the_last_detach_ends_a_context() {
    preloaded("the_last_detach_ends_a_context", &[], |gpu| {
        let primary = gpu.enter(0);
        let context = gpu.own_context(0);
        let stream = gpu.stream(false);
        let mut again = null_mut();
        must!(cuCtxAttach(&mut again, 0 as c_uint));
        must!(cuCtxDetach(again));
        waits_for(gpu, primary, context, stream);
        assert_eq!(call!(cuCtxDetach(context as CUcontext)), CUDA_ERROR_INVALID_CONTEXT, "it is not current");
        waits_for(gpu, primary, context, stream);
        gpu.set_current(context);
        must!(cuCtxDetach(context as CUcontext));
        waits_for_nothing(gpu, primary);
        // The use count of a destroyed context is not that of the next one.
        let context = gpu.own_context(0);
        must!(cuCtxAttach(&mut again, 0 as c_uint));
        gpu.destroy_context(context);
        let context = gpu.own_context(0);
        must!(cuCtxDetach(context as CUcontext));
        waits_for_nothing(gpu, primary);
        was_well_used(gpu);
        gpu.leave(0);
    });
}

/// A pool can wait for any number of contexts, of its own device or of others that may use its memory.
#[test]
fn each_of_many_contexts_is_waited_for() {
    preloaded("each_of_many_contexts_is_waited_for", &[], |gpu| {
        let primary = gpu.enter(0);
        for device in [0, 1] {
            let create = |_| {
                let context = gpu.own_context(device);
                if device == 1 {
                    gpu.enable_peer(primary);
                }
                context
            };
            let contexts: Vec<u64> = (0..150).map(create).collect();
            for &context in [64, 65, 149].map(|number: usize| &contexts[number]) {
                gpu.set_current(context);
                let stream = gpu.stream(false);
                waits_for(gpu, primary, context, stream);
            }
            contexts.into_iter().for_each(|context| gpu.destroy_context(context));
            waits_for_nothing(gpu, primary);
        }
        was_well_used(gpu);
    });
}

/// A probe has an event in each context. A context that ends takes its own event along, and no other event is lost.
#[test]
fn probes_leave_no_events_behind() {
    preloaded("probes_leave_no_events_behind", &[], |gpu| {
        let (here, _) = peers(gpu);
        let mut events = Vec::new();
        for _ in 0..8 {
            gpu.own_context(0);
            waits_for_nothing(gpu, here);
            events.push(gpu.sim.live(EVENTS));
            let context = gpu.own_context(0);
            gpu.destroy_context(context);
        }
        assert!(gpu.sim.calls("cuCtxRecordEvent") > 0, "nothing was probed");
        // One more context each time, and one event.
        let first = events[0];
        let most: Vec<u64> = (0..8).map(|number| first + number).collect();
        assert!(events.iter().zip(&most).all(|(events, most)| events <= most), "{events:?}");
        was_well_used(gpu);
    });
}

/// Memory that another context begins to use, and that is freed, while a synchronization of the first context is about
/// to begin: the synchronization does not cover it.
#[test]
fn a_synchronization_covers_what_was_freed_before_it_was_looked_who_uses_it() {
    let test = "a_synchronization_covers_what_was_freed_before_it_was_looked_who_uses_it";
    // Granules: the driver is asked which devices may use them.
    let more = [("BFC_BACKEND", "cuda_vmm"), ("BFC_MEMORY_LIMIT", "8m"), ("SIMCUDA_PEERS", "0")];
    preloaded(test, &more, |gpu| {
        const MIB: u64 = 1 << 20;
        let there = gpu.enter(1);
        let here = gpu.enter(0);
        let memory = gpu.alloc(6 * MIB).expect("there is room");
        let small = gpu.alloc(MIB).expect("there is room");
        assert_eq!(gpu.free(small), Ok(()), "something waits");
        gpu.set_current(there);
        let (stream, plain) = (gpu.stream(false), (*gpu).alloc(6 * MIB));
        gpu.hold(stream);
        gpu.set_current(here);
        gpu.sim.delay(c"cuDeviceCanAccessPeer".as_ptr(), Duration::from_millis(300).as_nanos() as u64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.set_current(here);
                gpu.synchronize_context();
            });
            std::thread::sleep(Duration::from_millis(100));
            gpu.copy(plain, there, memory, here, 6 * MIB, stream);
            assert_eq!(gpu.free(memory), Ok(()));
        });
        gpu.sim.clear_faults();
        let again = gpu.alloc(6 * MIB).expect("it is free");
        assert_eq!(gpu.pending(stream), 0, "the memory is handed out while the other device copies it");
        assert_eq!(gpu.free(again), Ok(()));
        was_well_used(gpu);
    });
}

/// A created stream determines its context, so cuMemFreeAsync needs no current context.
#[test]
fn a_free_on_a_stream_needs_no_current_context() {
    for is_async in ["0", "1"] {
        let test = "a_free_on_a_stream_needs_no_current_context";
        preloaded(test, &[("BFC_PRELOAD_ASYNC", is_async)], |gpu| {
            let primary = gpu.enter(0);
            let stream = gpu.stream(false);
            for destroys in [false, true] {
                gpu.set_current(primary);
                let memory = gpu.alloc(KIB).expect("there is room");
                gpu.set_current(0);
                if destroys {
                    // It stays current in this thread.
                    let context = gpu.own_context(0) as usize;
                    std::thread::scope(|scope| {
                        scope.spawn(|| gpu.destroy_context(context as u64)).join().unwrap()
                    });
                }
                // A default stream belongs to the current context.
                let missing =
                    if destroys { CUDA_ERROR_CONTEXT_IS_DESTROYED } else { CUDA_ERROR_INVALID_CONTEXT };
                assert_eq!(gpu.free_async(memory, 0), Err(missing));
                assert_eq!(gpu.free_async(memory, stream), Ok(()), "destroyed: {destroys}");
                assert_eq!(gpu.free_async(memory, stream), Err(CUDA_ERROR_INVALID_VALUE));
            }
            gpu.set_current(primary);
            waits_for_nothing(gpu, primary);
            was_well_used(gpu);
        });
        if child::is_child(test) {
            return;
        }
    }
}

/// Old programs, and those that look up a function without its version; OpenGL and VDPAU.
#[test]
fn a_context_of_every_creator_is_waited_for() {
    preloaded("a_context_of_every_creator_is_waited_for", &[], |gpu| {
        let primary = gpu.enter(0);
        let three: [fns::cuCtxCreate; 3] =
            [found!(cuCtxCreate), found!(cuGLCtxCreate), found!(cuGLCtxCreate_v2)];
        let video: [fns::cuVDPAUCtxCreate; 2] = [found!(cuVDPAUCtxCreate), found!(cuVDPAUCtxCreate_v2)];
        for creator in 0..5 {
            let mut context = null_mut();
            let code = match three.get(creator) {
                // SAFETY: a place for a context, and a device.
                Some(create) => unsafe { create(&mut context, 0, 0) },
                // SAFETY: as above, and the simulation does not support VDPAU.
                None => unsafe { video[creator - 3](&mut context, 0, 0, 0, null_mut()) },
            };
            assert_eq!(code, CUDA_SUCCESS);
            let stream = gpu.stream(false);
            waits_for(gpu, primary, context as u64, stream);
            gpu.destroy_context(context as u64);
        }
        was_well_used(gpu);
    });
}

/// A default stream belongs to the current context. "Never waits": the memory's stream waits for a send that comes
/// after the free.
#[test]
fn a_free_on_a_default_stream_of_another_context_waits_for_nothing() {
    let test = "a_free_on_a_default_stream_of_another_context_waits_for_nothing";
    let more = [("BFC_PRELOAD_ASYNC", "1"), ("SIMCUDA_DEADLOCK_MILLISECONDS", "500")];
    preloaded(test, &more, |gpu| {
        let (here, there) = peers(gpu);
        let created = gpu.own_context(0);
        let (green, of_green) = green(0);
        gpu.set_current(here);
        let (stream, other) = (gpu.stream(false), gpu.stream(false));
        for context in [of_green, created, there] {
            for default in [0, 1, 2] {
                gpu.set_current(here);
                let memory = gpu.alloc_async(BYTES, stream).expect("there is room");
                let receive = Receive::post(*gpu, stream);
                gpu.set_current(context);
                gpu.hold(default);
                gpu.fill(default, memory, BYTES, 1);
                assert_eq!(gpu.free_async(memory, default), Ok(()));
                gpu.set_current(here);
                let is_forced = receive.is_forced();
                receive.send(*gpu, other);
                receive.deliver(*gpu);
                assert!(!is_forced, "deadlock: the free has waited in the host for the receive");
                let again = gpu.alloc(BYTES).expect("it is free");
                gpu.set_current(context);
                assert_eq!(gpu.pending(default), 0, "the memory is handed out while the stream works on it");
                gpu.set_current(here);
                assert_eq!(gpu.free(again), Ok(()));
            }
        }
        gpu.destroy_context(created);
        must!(cuGreenCtxDestroy(green));
        gpu.leave(1);
        gpu.set_current(here);
        let again = gpu.alloc(BYTES).expect("no context has taken it along");
        assert_eq!(gpu.free(again), Ok(()));
        was_well_used(gpu);
    });
}
