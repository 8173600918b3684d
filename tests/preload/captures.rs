//! Captures under the interposer, on the simulated driver (a simulation, and no device): its own queries end none,
//! whatever the driver returns for a query about a stream, and none is counted forever.

use crate::common::gpu::{Gpu, PER_THREAD};
use crate::common::hooked::Hooked;
use crate::common::preload::{self, Interposer};
use crate::common::simcuda::simulated_with;
use crate::common::*;
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUstreamCaptureMode,
};

const MODES: [CUstreamCaptureMode; 3] =
    [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED];

/// The possible results of cuStreamGetCtx during a capture: refused as an unsafe call, for a captured stream even in
/// the relaxed mode, or accepted.
const ANSWERS: [[(&str, &str); 2]; 3] = [
    [("SIMCUDA_STREAM_QUERIES_UNSAFE", "1"), ("SIMCUDA_CAPTURED_STREAMS_HIDE", "0")],
    [("SIMCUDA_STREAM_QUERIES_UNSAFE", "1"), ("SIMCUDA_CAPTURED_STREAMS_HIDE", "1")],
    [("SIMCUDA_STREAM_QUERIES_UNSAFE", "0"), ("SIMCUDA_CAPTURED_STREAMS_HIDE", "0")],
];

/// Runs a program on two devices in processes of their own, one with each result of the driver.
fn preloaded(test: &str, settings: &[(&'static str, &'static str)], program: impl Fn(Hooked)) {
    for answers in ANSWERS {
        let mut variables = vec![("SIMCUDA_DEVICES", "2")];
        variables.extend(answers);
        variables.extend(settings);
        if !child::is_child(test) {
            variables.push(("LD_PRELOAD", preload::library(Interposer::Shipped).to_str().expect("UTF-8")));
        }
        simulated_with(test, &variables, |sim| program(Hooked::new(Gpu::new(sim))));
        if child::is_child(test) {
            return;
        }
    }
}

/// Enters a device's context, and allocates pooled memory.
fn begin(gpu: Hooked, device: i32) -> (u64, u64) {
    let context = gpu.enter(device);
    (context, gpu.alloc(MIB).expect("there is room"))
}

#[track_caller]
fn end_whole(gpu: Hooked, stream: u64) {
    match gpu.try_end_capture(stream) {
        Ok(graph) => gpu.destroy_graph(graph),
        Err(code) => panic!("the capture is broken: {code}"),
    }
}

/// Undoes [`begin`].
fn end(gpu: Hooked, device: i32, (context, memory): (u64, u64)) {
    gpu.set_current(context);
    assert_eq!(gpu.free(memory), Ok(()));
    gpu.leave(device);
}

/// Copies, fills, and a second capture, as for conditional nodes, on streams whose creation the interposer saw, and on
/// those that it did not see.
#[test]
fn work_on_a_captured_stream_leaves_it_whole() {
    preloaded("work_on_a_captured_stream_leaves_it_whole", &[], |gpu| {
        let (second, there) = begin(gpu, 1);
        let (first, here) = begin(gpu, 0);
        for mode in MODES {
            for is_seen in [true, false] {
                let make = || if is_seen { gpu.stream(false) } else { (*gpu).stream(false) };
                let streams = [make(), make()];
                gpu.begin_capture_in(streams[0], mode);
                gpu.set_bytes(streams[0], here, KIB);
                gpu.copy(here, first, there, second, KIB, streams[0]);
                gpu.begin_capture_in(streams[1], mode);
                gpu.set_bytes(streams[1], here, KIB);
                streams.into_iter().for_each(|stream| end_whole(gpu, stream));
                streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
            }
        }
        end(gpu, 0, (first, here));
        end(gpu, 1, (second, there));
    });
}

/// cuMemFreeAsync of pooled memory on a thread in the usual mode.
#[test]
fn frees_in_stream_order_leave_another_thread_s_capture_whole() {
    let test = "frees_in_stream_order_leave_another_thread_s_capture_whole";
    for asynchronous in ["0", "1"] {
        preloaded(test, &[("BFC_PRELOAD_ASYNC", asynchronous)], |gpu| {
            let (second, there) = begin(gpu, 1);
            let (first, here) = begin(gpu, 0);
            let streams = [gpu.stream(false), gpu.stream(false), (*gpu).stream(false)];
            let more = gpu.alloc(MIB).expect("there is room");
            gpu.begin_capture_in(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    gpu.set_current(first);
                    assert_eq!(gpu.free_async(here, streams[1]), Ok(()));
                    assert_eq!(gpu.free_async(more, streams[2]), Ok(()));
                });
            });
            end_whole(gpu, streams[0]);
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
            gpu.leave(0);
            gpu.set_current(second);
            assert_eq!(gpu.free(there), Ok(()));
            gpu.leave(1);
        });
    }
}

/// Returns how many contexts a request that needs the memory just freed queries or waits for.
fn contexts_waited_for(gpu: Hooked, bytes: u64) -> u64 {
    let counted = || gpu.sim.calls("cuCtxSynchronize") + gpu.sim.calls("cuCtxRecordEvent");
    let chunk = gpu.alloc(bytes).expect("there is room");
    assert_eq!(gpu.free(chunk), Ok(()));
    let before = counted();
    let again = gpu.alloc(bytes).expect("what was freed serves it");
    let waited = counted() - before;
    assert_eq!(gpu.free(again), Ok(()));
    waited
}

/// An unanswered query does not relate a pool to other contexts forever.
#[test]
fn a_stream_that_cannot_be_asked_about_is_asked_about_later() {
    let test = "a_stream_that_cannot_be_asked_about_is_asked_about_later";
    preloaded(test, &[("BFC_MEMORY_LIMIT", "8m")], |gpu| {
        let (second, there) = begin(gpu, 1);
        let (first, here) = begin(gpu, 0);
        assert_eq!(contexts_waited_for(gpu, 6 * MIB), 1, "its own");
        let stream = (*gpu).stream(false);
        // Not while it is captured, and not while the driver fails.
        gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        gpu.set_bytes(stream, here, KIB);
        end_whole(gpu, stream);
        assert_eq!(contexts_waited_for(gpu, 6 * MIB), 1, "its own");
        gpu.sim.fail(Some("cuStreamGetCtx"), 1, CUDA_ERROR_UNKNOWN);
        gpu.set_bytes(stream, here, KIB);
        gpu.sim.clear_faults();
        assert_eq!(contexts_waited_for(gpu, 6 * MIB), 1, "its own");
        gpu.destroy_stream(stream);
        end(gpu, 0, (first, here));
        end(gpu, 1, (second, there));
    });
}

/// In a capture nothing is queried, so the interposer queries before one. Another device's work may use the memory, so
/// no synchronization of a single device is sufficient.
#[test]
fn what_is_done_before_a_capture_serves_requests_in_it() {
    let test = "what_is_done_before_a_capture_serves_requests_in_it";
    preloaded(test, &[("BFC_MEMORY_LIMIT", "8m")], |gpu| {
        let (second, there) = begin(gpu, 1);
        let (first, here) = begin(gpu, 0);
        gpu.set_current(second);
        let elsewhere = gpu.stream(false);
        gpu.copy(here, first, there, second, KIB, elsewhere);
        gpu.set_current(first);
        let stream = gpu.stream(false);
        for round in 0..8 {
            gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            let chunk = gpu.alloc(5 * MIB).unwrap_or_else(|code| panic!("round {round}: {code}"));
            end_whole(gpu, stream);
            assert_eq!(gpu.free(chunk), Ok(()));
        }
        [stream, elsewhere].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        end(gpu, 0, (first, here));
        end(gpu, 1, (second, there));
    });
}

/// When this returns, the thread no longer exists for the system either.
fn on_a_thread_that_ends(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
}

/// The thread ends in a capture of its own default stream, or of another one that only it can end. Nothing can then
/// wait for that context, not even the program, but memory is reused, there and elsewhere.
#[test]
fn a_thread_that_ends_in_a_capture_is_not_counted_forever() {
    preloaded("a_thread_that_ends_in_a_capture_is_not_counted_forever", &[], |gpu| {
        let (second, there) = begin(gpu, 1);
        let (first, here) = begin(gpu, 0);
        for (is_created, mode) in [(false, MODES[1]), (false, MODES[2]), (true, MODES[1])] {
            let stream = if is_created { gpu.stream(false) } else { PER_THREAD };
            on_a_thread_that_ends(|| {
                gpu.set_current(first);
                gpu.begin_capture_in(stream, mode);
            });
            // The default stream of a living thread, with the same handle.
            gpu.begin_capture_in(PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED);
            end_whole(gpu, PER_THREAD);
            for context in [second, first] {
                gpu.set_current(context);
                for round in 0..24 {
                    let address = gpu.alloc(4 * GIB).unwrap_or_else(|code| panic!("round {round}: {code}"));
                    assert_eq!(gpu.free(address), Ok(()));
                }
            }
        }
        end(gpu, 0, (first, here));
        end(gpu, 1, (second, there));
    });
}

/// Another thread may end a relaxed capture, which counts until then.
#[test]
fn a_relaxed_capture_outlives_its_thread() {
    preloaded("a_relaxed_capture_outlives_its_thread", &[("BFC_MEMORY_LIMIT", "8m")], |gpu| {
        let (first, here) = begin(gpu, 0);
        let stream = gpu.stream(false);
        on_a_thread_that_ends(|| {
            gpu.set_current(first);
            gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        });
        let chunk = gpu.alloc(6 * MIB).expect("there is room");
        assert_eq!(gpu.free(chunk), Ok(()));
        assert_ne!(
            gpu.alloc(6 * MIB).err().unwrap_or(CUDA_SUCCESS),
            CUDA_SUCCESS,
            "it waits for the capture"
        );
        end_whole(gpu, stream);
        let chunk = gpu.alloc(6 * MIB).expect("what was freed serves it");
        [chunk, here].into_iter().for_each(|address| assert_eq!(gpu.free(address), Ok(())));
        gpu.destroy_stream(stream);
        gpu.leave(0);
    });
}

/// The driver refuses a second capture of a stream. The thread that tried it may end: the first capture goes on, and no
/// request synchronizes.
#[test]
fn a_refused_capture_does_not_take_the_place_of_another() {
    preloaded("a_refused_capture_does_not_take_the_place_of_another", &[], |gpu| {
        let (first, here) = begin(gpu, 0);
        let stream = gpu.stream(false);
        gpu.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        on_a_thread_that_ends(|| {
            gpu.set_current(first);
            assert!(gpu.try_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).is_err());
        });
        on_a_thread_that_ends(|| {
            gpu.set_current(first);
            for _ in 0..24 {
                let address = gpu.alloc(4 * GIB);
                address.into_iter().for_each(|address| assert_eq!(gpu.free(address), Ok(())));
            }
        });
        end_whole(gpu, stream);
        gpu.destroy_stream(stream);
        end(gpu, 0, (first, here));
    });
}
