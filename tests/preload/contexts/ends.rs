//! A context that ends: no probe uses it meanwhile or loses its data about others, and the last reference ends pool and
//! context.

use std::env;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::time::Duration;

use cuda_sys::*;

use super::{BYTES, on_versions, peers, preloaded, stream_of, waits_for, waits_for_nothing, was_well_used};
use crate::common::hooks::{call, green, must};
use crate::common::simcuda::steer::{CONTEXTS, EVENTS};
use crate::common::*;

/// A context whose work a probe in progress does not cover may be created and destroyed, and so may all but the last
/// reference to one.
#[test]
fn contexts_that_end_keep_no_frees_waiting() {
    let test = "contexts::ends::contexts_that_end_keep_no_frees_waiting";
    preloaded(test, &[("BFC_MEMORY_LIMIT", "8g")], |gpu| {
        let primary = gpu.enter(0);
        let stream = gpu.stream(false);
        gpu.hold(stream);
        let plain = (*gpu).alloc(KIB);
        let most_used = |comes_and_goes: &dyn Fn()| {
            let used = (0..60).map(|step| {
                // Some work is always queued.
                let memory = gpu.alloc(64 * MIB).expect("there is room");
                gpu.fill(stream, plain, KIB, step);
                assert_eq!(gpu.free(memory), Ok(()));
                while gpu.pending(stream) > 2 {
                    gpu.step(stream, 1);
                }
                comes_and_goes();
                gpu.sim.used(0)
            });
            used.max().unwrap_or(0)
        };
        let without = most_used(&|| ());
        let hold = || {
            let mut again = null_mut();
            must!(cuDevicePrimaryCtxRetain(&mut again, 0));
            must!(cuDevicePrimaryCtxRelease_v2(0));
        };
        let green = || must!(cuGreenCtxDestroy(green(0).0));
        let created = || {
            gpu.destroy_context(gpu.own_context(0));
            gpu.set_current(primary);
        };
        let with = [most_used(&hold), most_used(&green), most_used(&created)];
        assert!(with.iter().all(|&used| used <= 2 * without), "{without}, hold, green, created: {with:?}");
        was_well_used(gpu);
    });
}

/// The table of contexts has few places, and green contexts that have ended take none.
#[test]
fn a_green_context_that_ended_is_forgotten() {
    on_versions("contexts::ends::a_green_context_that_ended_is_forgotten", |gpu| {
        let primary = gpu.enter(0);
        let asks = |context: u64| {
            gpu.set_current(context);
            let before = gpu.sim.calls("cuDevicePrimaryCtxGetState");
            let memory = gpu.alloc(KIB).expect("there is room");
            assert_eq!(gpu.free(memory), Ok(()));
            gpu.sim.calls("cuDevicePrimaryCtxGetState") - before
        };
        for _ in 0..20 {
            let (green, context) = green(0);
            assert_ne!(asks(context), 0);
            gpu.set_current(primary);
            must!(cuGreenCtxDestroy(green));
        }
        let context = gpu.own_context(0);
        assert_eq!([asks(context) != 0, asks(context) != 0], [true, false], "it is asked about once");
        was_well_used(gpu);
    });
}

/// Memory that a context may use must not become usable by one that is created after its end.
#[test]
fn a_new_context_has_no_relations() {
    preloaded("contexts::ends::a_new_context_has_no_relations", &[], |gpu| {
        let here = gpu.enter(0);
        let related = gpu.own_context(1);
        gpu.enable_peer(here);
        gpu.destroy_context(related);
        gpu.own_context(1);
        let (stream, plain) = (gpu.stream(false), (*gpu).alloc(KIB));
        gpu.hold(stream);
        gpu.fill(stream, plain, KIB, 1);
        waits_for_nothing(gpu, here);
        assert_eq!(gpu.pending(stream), 1, "work is waited for that cannot use the memory");
        was_well_used(gpu);
    });
}

/// "It is the responsibility of the calling function to ensure that no API call issues using ctx while cuCtxDestroy() is
/// executing" (cuCtxDestroy): not even a request of another thread that queries its work.
#[test]
fn no_handle_of_a_context_that_ends_is_used() {
    let test = "contexts::ends::no_handle_of_a_context_that_ends_is_used";
    preloaded(test, &[("SIMCUDA_STALE_ABORTS", "1")], |gpu| {
        let delay = |name: &CStr, millis| {
            gpu.sim.delay(name.as_ptr(), Duration::from_millis(millis).as_nanos() as u64);
        };
        let here = gpu.enter(0);
        for end in ["destroy", "reset", "release"] {
            let context = if end == "destroy" { gpu.own_context(0) } else { gpu.enter(1) };
            if end != "destroy" {
                gpu.enable_peer(here);
            }
            gpu.set_current(here);
            // The probe has an event in each context.
            waits_for_nothing(gpu, here);
            delay(c"cuEventDestroy", 60);
            delay(c"cuEventQuery", 40);
            std::thread::scope(|scope| {
                scope.spawn(|| match end {
                    "destroy" => gpu.destroy_context(context),
                    "reset" => gpu.reset(1),
                    _ => gpu.leave(1),
                });
                std::thread::sleep(Duration::from_millis(20));
                waits_for_nothing(gpu, here);
            });
            gpu.sim.clear_faults();
            waits_for_nothing(gpu, here);
        }
        was_well_used(gpu);
    });
}

/// A probe of a pool that has ended covers that pool's frees, which are counted separately from those of the next pool.
#[test]
fn a_probe_in_progress_says_nothing_of_the_next_pool() {
    for end in ["reset", "release"] {
        let test = "contexts::ends::a_probe_in_progress_says_nothing_of_the_next_pool";
        preloaded(test, &[("END", end), ("BFC_MEMORY_LIMIT", "9m")], |gpu| {
            let begin = || {
                gpu.enter(0);
                let stream = gpu.stream(false);
                gpu.hold(stream);
                stream
            };
            let stream = begin();
            let plain = (*gpu).alloc(KIB);
            gpu.fill(stream, plain, KIB, 1);
            // Enough to begin one, and more than in the next pool.
            for _ in 0..1100 {
                let memory = gpu.alloc(KIB).expect("there is room");
                assert_eq!(gpu.free(memory), Ok(()));
            }
            assert!(gpu.sim.calls("cuCtxRecordEvent") > 0 && gpu.pending(stream) == 1);
            if env::var("END").is_ok_and(|end| end == "reset") {
                gpu.reset(0)
            } else {
                gpu.leave(0)
            }
            let stream = begin();
            let memory = gpu.alloc(5 * MIB).expect("there is room");
            gpu.fill(stream, memory, MIB, 1);
            assert_eq!(gpu.free(memory), Ok(()));
            gpu.alloc(5 * MIB).expect("it is free");
            assert_eq!(gpu.pending(stream), 0, "the memory is handed out while work uses it");
            was_well_used(gpu);
        });
        if child::is_child(test) {
            return;
        }
    }
}

/// A context that is destroyed by a call that fails is not destroyed.
#[test]
fn a_context_that_could_not_be_destroyed_is_waited_for() {
    preloaded("contexts::ends::a_context_that_could_not_be_destroyed_is_waited_for", &[], |gpu| {
        let primary = gpu.enter(0);
        let context = gpu.own_context(0);
        let stream = gpu.stream(false);
        gpu.sim.fail(Some("cuCtxDestroy"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(call!(cuCtxDestroy_v2(context as CUcontext)), CUDA_ERROR_UNKNOWN);
        waits_for(gpu, primary, context, stream);
        was_well_used(gpu);
    });
}

/// The same for a primary context, which cuCtxDestroy and cuCtxDetach refuse.
#[test]
fn a_primary_context_is_not_destroyed() {
    preloaded("contexts::ends::a_primary_context_is_not_destroyed", &[], |gpu| {
        let (here, there) = peers(gpu);
        let stream = gpu.stream(false);
        assert_eq!(call!(cuCtxDestroy_v2(there as CUcontext)), CUDA_ERROR_INVALID_CONTEXT);
        waits_for(gpu, here, there, stream);
        gpu.set_current(there);
        assert_eq!(call!(cuCtxDetach(there as CUcontext)), CUDA_ERROR_INVALID_CONTEXT);
        waits_for(gpu, here, there, stream);
        was_well_used(gpu);
    });
}

/// A probe in progress does not lose a context that the driver could not destroy.
#[test]
fn a_probe_in_progress_waits_for_a_context_that_was_not_destroyed() {
    let test = "contexts::ends::a_probe_in_progress_waits_for_a_context_that_was_not_destroyed";
    preloaded(test, &[("BFC_MEMORY_LIMIT", "9m")], |gpu| {
        let primary = gpu.enter(0);
        let memory = gpu.alloc(5 * MIB).expect("there is room");
        let context = gpu.own_context(0);
        let stream = gpu.stream(false);
        gpu.hold(stream);
        gpu.fill(stream, memory, MIB, 1);
        gpu.set_current(primary);
        assert_eq!(gpu.free(memory), Ok(()));
        // Enough to begin one.
        for _ in 0..1100 {
            let memory = gpu.alloc(KIB).expect("there is room");
            assert_eq!(gpu.free(memory), Ok(()));
        }
        assert!(gpu.sim.calls("cuCtxRecordEvent") > 0 && gpu.pending(stream) == 1);
        let events = gpu.sim.live(EVENTS);
        gpu.sim.fail(Some("cuCtxDestroy"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(call!(cuCtxDestroy_v2(context as CUcontext)), CUDA_ERROR_UNKNOWN);
        gpu.alloc(5 * MIB).expect("it is free");
        assert_eq!(gpu.pending(stream), 0, "the memory is handed out while work uses it");
        assert_eq!(gpu.sim.live(EVENTS), events);
        was_well_used(gpu);
    });
}

/// A context ends while a request waits for its work, which ends with it.
#[test]
fn the_end_of_another_context_fails_no_request() {
    for end in ["reset", "release", "destroy"] {
        let test = "contexts::ends::the_end_of_another_context_fails_no_request";
        preloaded(test, &[("END", end), ("SIMCUDA_SYNCHRONIZE_WAITS", "1")], |gpu| {
            let (here, mut there) = peers(gpu);
            let end = env::var("END").expect("it is set");
            if end == "destroy" {
                there = gpu.own_context(0);
            }
            let stream = gpu.stream(false);
            gpu.set_current(here);
            let memory = gpu.alloc(BYTES).expect("there is room");
            gpu.set_current(there);
            gpu.hold(stream);
            gpu.fill(stream, memory, BYTES, 1);
            gpu.set_current(here);
            assert_eq!(gpu.free(memory), Ok(()));
            let again = std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    gpu.set_current(here);
                    gpu.alloc(BYTES)
                });
                std::thread::sleep(Duration::from_millis(200));
                match end.as_str() {
                    "reset" => gpu.reset(1),
                    "release" => gpu.leave(1),
                    _ => gpu.destroy_context(there),
                }
                waits.join().expect("it has not panicked")
            });
            assert!(again.is_ok(), "{end}: {again:?}");
            was_well_used(gpu);
        });
        if child::is_child(test) {
            return;
        }
    }
}

fn is_active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    must!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
    active != 0
}

/// The driver's calls are slow, in two threads at once: the last of two releases ends the context with the pool, and
/// one that is concurrent with a retain or the creation of a green context does not.
#[test]
fn holds_of_several_threads_are_counted() {
    preloaded("contexts::ends::holds_of_several_threads_are_counted", &[], |gpu| {
        let retain = || {
            let mut context = null_mut();
            must!(cuDevicePrimaryCtxRetain(&mut context, 0));
        };
        let release = || must!(cuDevicePrimaryCtxRelease_v2(0));
        let delay = |name: &CStr| {
            gpu.sim.clear_faults();
            gpu.sim.delay(name.as_ptr(), Duration::from_millis(100).as_nanos() as u64);
        };
        gpu.enter(0);
        gpu.alloc(BYTES).expect("there is room");
        let used = gpu.sim.used(0);
        delay(c"cuDevicePrimaryCtxRetain");
        std::thread::scope(|scope| {
            scope.spawn(retain);
            std::thread::sleep(Duration::from_millis(30));
            scope.spawn(release);
        });
        assert_eq!(gpu.sim.used(0), used, "the pool ends although the context is held");
        delay(c"cuGreenCtxCreate");
        let green = std::thread::scope(|scope| {
            let created = scope.spawn(|| green(0).0 as usize);
            std::thread::sleep(Duration::from_millis(30));
            scope.spawn(release);
            created.join().expect("it has not panicked")
        });
        assert_eq!(gpu.sim.used(0), used, "the pool ends although the green context holds the context");
        gpu.sim.clear_faults();
        retain();
        must!(cuGreenCtxDestroy(green as CUgreenCtx));
        retain();
        delay(c"cuDevicePrimaryCtxRelease_v2");
        std::thread::scope(|scope| {
            scope.spawn(release);
            scope.spawn(release);
        });
        assert_eq!((gpu.sim.used(0), is_active(0)), (0, false));
        was_well_used(gpu);
    });
}

/// The pool's end would break a capture of another device, so the last release ends it with the capture, unless the program
/// holds the context again.
#[test]
fn a_last_release_during_a_capture_ends_the_context_after_it() {
    preloaded("contexts::ends::a_last_release_during_a_capture_ends_the_context_after_it", &[], |gpu| {
        let there = gpu.enter(1);
        let other = gpu.alloc(KIB).expect("there is room");
        for destroys in [false, true] {
            for holds_again in [true, false] {
                gpu.enter(0);
                let memory = gpu.alloc(BYTES).expect("there is room");
                gpu.set_current(there);
                let stream = gpu.stream(false);
                gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
                gpu.set_bytes(stream, other, KIB);
                must!(cuDevicePrimaryCtxRelease_v2(0));
                if holds_again {
                    gpu.enter(0);
                    gpu.set_current(there);
                }
                if !destroys {
                    gpu.destroy_graph(gpu.try_end_capture(stream).expect("the capture is whole"));
                }
                gpu.destroy_stream(stream);
                assert_eq!((gpu.sim.used(0) != 0, is_active(0)), (holds_again, holds_again));
                if holds_again {
                    assert_eq!(gpu.free(memory), Ok(()));
                    must!(cuDevicePrimaryCtxRelease_v2(0));
                    assert_eq!((gpu.sim.used(0), is_active(0)), (0, false));
                }
            }
        }
        was_well_used(gpu);
    });
}

/// "Destroys and cleans up all resources associated with the current device" (cuDevicePrimaryCtxReset): a capture in a green
/// context is no longer counted.
#[test]
fn a_reset_ends_captures_in_green_contexts() {
    on_versions("contexts::ends::a_reset_ends_captures_in_green_contexts", |gpu| {
        let primary = gpu.enter(0);
        waits_for_nothing(gpu, primary);
        let stream = stream_of(green(0).0);
        gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        gpu.set_current(0);
        gpu.reset(0);
        let primary = gpu.enter(0);
        waits_for_nothing(gpu, primary);
        was_well_used(gpu);
    });
}

/// The events that another device's pool has recorded on its streams are not used either.
#[test]
fn a_reset_ends_streams_of_green_contexts() {
    let test = "contexts::ends::a_reset_ends_streams_of_green_contexts";
    preloaded(test, &[("BFC_PRELOAD_ASYNC", "1")], |gpu| {
        let (here, _) = peers(gpu);
        let (handle, of_green) = green(1);
        let streams = [stream_of(handle), 0, 2];
        for stream in streams {
            gpu.set_current(here);
            let own = gpu.stream(false);
            let memory = gpu.alloc_async(BYTES / 4, own).expect("there is room");
            gpu.set_current(of_green);
            gpu.hold(stream);
            gpu.fill(stream, memory, KIB, 1);
            assert_eq!(gpu.free_async(memory, stream), Ok(()));
        }
        gpu.set_current(here);
        gpu.reset(1);
        let again = gpu.alloc(BYTES).expect("it is free");
        assert_eq!(gpu.free(again), Ok(()));
        was_well_used(gpu);
    });
}

/// A green context ends its capture, and the pool too if it was the last reference to the primary context.
#[test]
fn a_captured_green_context_takes_the_pool_along() {
    on_versions("contexts::ends::a_captured_green_context_takes_the_pool_along", |gpu| {
        let primary = gpu.enter(0);
        waits_for_nothing(gpu, primary);
        let (handle, _) = green(0);
        let stream = stream_of(handle);
        gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        gpu.leave(0);
        must!(cuGreenCtxDestroy(handle));
        assert_eq!((gpu.sim.used(0), gpu.sim.live(CONTEXTS)), (0, 0), "the last hold ends context and pool");
        was_well_used(gpu);
    });
}

/// A thread ends in a capture in a green context, so its primary context can no longer be synchronized. The driver
/// serves requests that the pool cannot.
#[test]
fn an_abandoned_capture_in_a_green_context_fails_no_request() {
    let test = "contexts::ends::an_abandoned_capture_in_a_green_context_fails_no_request";
    preloaded(test, &[("BFC_MEMORY_LIMIT", "0")], |gpu| {
        let primary = gpu.enter(0);
        let (handle, _) = green(0);
        gpu.set_current(primary);
        let stream = stream_of(handle);
        std::thread::scope(|scope| {
            let work = || {
                gpu.set_current(primary);
                gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            };
            scope.spawn(work).join().expect("no panic");
        });
        for round in 0..24 {
            let address = gpu.alloc(4 << 30).unwrap_or_else(|code| panic!("round {round}: {code}"));
            assert_eq!(gpu.free(address), Ok(()));
        }
        was_well_used(gpu);
    });
}
