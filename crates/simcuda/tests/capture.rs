//! Stream capture and graphs.

mod common;
use common::*;

const GLOBAL: u32 = CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: u32 = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn a_graph_does_its_work_at_each_launch_and_not_at_capture() {
    let machine = ready();
    let (stream, memory) = (stream(&machine), machine.alloc(4096).unwrap());
    assert_eq!(machine.capture_status(stream), Ok(CU_STREAM_CAPTURE_STATUS_NONE));
    machine.begin_capture(stream, GLOBAL).unwrap();
    assert_eq!(machine.begin_capture(stream, GLOBAL), Err(CUDA_ERROR_ILLEGAL_STATE));
    assert_eq!(machine.capture_status(stream), Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE));
    machine.set8_async(memory, 1, 64, stream).unwrap();
    machine.copy_async(memory + 64, memory, 64, stream).unwrap();
    assert_eq!(machine.byte(memory), 0);
    let graph = machine.end_capture(stream).unwrap();
    assert_eq!(machine.capture_status(stream), Ok(CU_STREAM_CAPTURE_STATUS_NONE));
    let executable = machine.instantiate(graph, 0).unwrap();
    machine.graph_destroy(graph).unwrap();
    for _ in 0..2 {
        machine.set8(memory, 0, 128).unwrap();
        machine.hold(stream);
        machine.graph_launch(executable, stream).unwrap();
        assert_eq!((machine.byte(memory), machine.steer.pending(stream.cast())), (0, 2));
        machine.release(stream);
        assert_eq!((machine.byte(memory), machine.byte(memory + 127)), (1, 1));
    }
    machine.executable_destroy(executable).unwrap();
    assert_eq!(machine.steer.live(steer::GRAPHS), 0);
    machine.was_well_used();
    assert_eq!(machine.graph_launch(executable, stream), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_wait_for_a_captured_event_pulls_another_stream_in() {
    let machine = ready();
    let (first, second) = (stream(&machine), stream(&machine));
    let [fork, join] = [0, 0].map(|_| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let memory = machine.alloc(4096).unwrap();
    for joins in [true, false] {
        machine.begin_capture(first, GLOBAL).unwrap();
        machine.set8_async(memory, 1, 1, first).unwrap();
        machine.record(fork, first).unwrap();
        machine.stream_wait(second, fork, 0).unwrap();
        assert_eq!(machine.capture_status(second), Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE));
        machine.set8_async(memory + 1, 2, 1, second).unwrap();
        machine.record(join, second).unwrap();
        if joins {
            machine.stream_wait(first, join, 0).unwrap();
            let graph = machine.end_capture(first).unwrap();
            let executable = machine.instantiate(graph, 0).unwrap();
            machine.graph_launch(executable, first).unwrap();
            assert_eq!((machine.byte(memory), machine.byte(memory + 1)), (1, 2));
        } else {
            assert_eq!(machine.end_capture(first), Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
        }
        assert_eq!(machine.capture_status(second), Ok(CU_STREAM_CAPTURE_STATUS_NONE));
    }
    machine.was_well_used();
}

/// "The node creation order while recapturing the graph must be identical to the original graph." The graph keeps its handle;
/// after a failure it is "in an undefined state": here without a node.
#[test]
fn a_graph_is_captured_again_in_its_own_topology() {
    let machine = ready();
    let (stream, memory) = (stream(&machine), machine.alloc(4096).unwrap());
    let null = std::ptr::null_mut();
    machine.begin_capture(stream, GLOBAL).unwrap();
    machine.set8_async(memory, 1, 64, stream).unwrap();
    let graph = machine.end_capture(stream).unwrap();
    assert_eq!(machine.begin_recapture(stream, 3, graph, None, null), Err(CUDA_ERROR_INVALID_VALUE));
    let launched = |graph| {
        let executable = machine.instantiate(graph, 0).unwrap();
        machine.set8(memory, 0, 64).unwrap();
        machine.graph_launch(executable, stream).unwrap();
        machine.executable_destroy(executable).unwrap();
        machine.byte(memory)
    };
    machine.begin_recapture(stream, RELAXED, graph, None, null).unwrap();
    assert_eq!(machine.capture_status(stream), Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE));
    assert_eq!(machine.begin_recapture(stream, RELAXED, graph, None, null), Err(CUDA_ERROR_ILLEGAL_STATE));
    machine.set8_async(memory, 2, 64, stream).unwrap();
    assert_eq!(machine.end_capture(stream), Ok(graph));
    assert_eq!(launched(graph), 2);
    // One node too many fails at once, one too few at the end.
    for nodes in [0, 2] {
        machine.begin_recapture(stream, GLOBAL, graph, None, null).unwrap();
        let noted: Vec<_> = (0..nodes).map(|_| machine.set8_async(memory, 3, 64, stream)).collect();
        assert_eq!(noted.last().copied().unwrap_or(Ok(())).is_err(), nodes == 2);
        assert_eq!(machine.end_capture(stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    assert_eq!(launched(graph), 0);
    machine.graph_destroy(graph).unwrap();
    machine.was_well_used();
    assert_eq!(machine.begin_recapture(stream, GLOBAL, graph, None, null), Err(CUDA_ERROR_INVALID_VALUE));
}

/// What a call answers during a capture of that mode, on the capturing thread in its own mode, and whether the
/// capture survives it.
fn during(machine: &Machine, mode: u32, own: u32, call: impl Fn() -> Answer) -> (Answer, bool) {
    let stream = stream(machine);
    machine.begin_capture(stream, mode).unwrap();
    let before = machine.exchange_mode(own);
    let answer = call();
    machine.exchange_mode(before);
    let survives = machine.capture_status(stream) == Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_eq!(machine.end_capture(stream).is_ok(), survives);
    machine.stream_destroy(stream).unwrap();
    (answer, survives)
}

#[test]
fn unsafe_calls_are_forbidden_as_the_modes_say() {
    let machine = ready();
    let event = machine.event(0).unwrap();
    let memory = machine.alloc(512).unwrap();
    let pool = machine.default_pool(0).unwrap();
    let attribute = |writes: bool| {
        let mut threshold = 0_u64;
        let value = (&raw mut threshold).cast();
        let (get, set) = (machine.driver.cuMemPoolGetAttribute(), machine.driver.cuMemPoolSetAttribute());
        let function = if writes { set } else { get }.unwrap();
        // SAFETY: the value lives.
        answer(unsafe { function(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value) })
    };
    let calls: [(&str, &dyn Fn() -> Answer); 6] = [
        ("cuMemAlloc", &|| machine.alloc(512).map(drop)),
        ("cuMemFree", &|| machine.free(memory)),
        ("cuEventQuery", &|| machine.event_query(event)),
        ("cuMemCreate", &|| machine.physical(2 << 20).map(drop)),
        ("cuMemPoolGetAttribute", &|| attribute(false)),
        ("cuMemPoolSetAttribute", &|| attribute(true)),
    ];
    let forbidden = (Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), false);
    for (name, call) in &calls {
        for mode in [GLOBAL, LOCAL] {
            for own in [GLOBAL, LOCAL] {
                assert_eq!(during(&machine, mode, own, call), forbidden, "{name} in {mode}, thread in {own}");
            }
        }
    }
    for (name, call) in &calls[2..] {
        assert_eq!(during(&machine, RELAXED, GLOBAL, call), (Ok(()), true), "{name}");
        assert_eq!(during(&machine, GLOBAL, RELAXED, call), (Ok(()), true), "{name}");
    }
}

#[test]
fn other_threads_are_concerned_by_a_global_capture_only() {
    let machine = ready();
    for (mode, own, allowed) in
        [(GLOBAL, GLOBAL, false), (GLOBAL, LOCAL, true), (LOCAL, GLOBAL, true), (GLOBAL, RELAXED, true)]
    {
        let stream = stream(&machine);
        machine.begin_capture(stream, mode).unwrap();
        std::thread::scope(|scope| {
            let machine = &machine;
            let thread = scope.spawn(move || {
                machine.enter(0);
                machine.exchange_mode(own);
                machine.alloc(512).is_ok()
            });
            assert_eq!(thread.join().unwrap(), allowed, "{mode} {own}");
        });
        assert_eq!(machine.end_capture(stream).is_ok(), allowed);
    }
}

#[test]
fn what_conflicts_with_capture_does_so_in_every_mode() {
    let machine = ready();
    machine.exchange_mode(RELAXED);
    let (captured, event) = (stream(&machine), machine.event(0).unwrap());
    let begin = || {
        machine.begin_capture(captured, RELAXED).unwrap();
        machine.record(event, captured).unwrap();
    };
    let invalid = || {
        assert_eq!(machine.capture_status(captured), Ok(CU_STREAM_CAPTURE_STATUS_INVALIDATED));
        assert_eq!(machine.set8_async(0, 0, 0, captured), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        assert_eq!(machine.end_capture(captured), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    };
    begin();
    assert_eq!(machine.stream_query(captured), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    invalid();
    begin();
    assert_eq!(machine.stream_synchronize(captured), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    invalid();
    begin();
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    invalid();
    begin();
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_CAPTURED_EVENT));
    invalid();
    // Work that was not captured cannot be waited for in the capture.
    let (outside, other) = (machine.event(0).unwrap(), stream(&machine));
    machine.record(outside, other).unwrap();
    begin();
    assert_eq!(machine.stream_wait(captured, outside, 0), Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    invalid();
    // Two captures cannot be joined.
    begin();
    machine.begin_capture(other, RELAXED).unwrap();
    assert_eq!(machine.stream_wait(other, event, 0), Err(CUDA_ERROR_STREAM_CAPTURE_MERGE));
    invalid();
    assert_eq!(machine.end_capture(other), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    // Other streams are not concerned.
    begin();
    machine.stream_synchronize(other).unwrap();
    machine.end_capture(captured).unwrap();
}

#[test]
fn a_captured_blocking_stream_makes_the_legacy_stream_unusable() {
    let machine = ready();
    let (blocking, memory) = (machine.stream(0).unwrap(), machine.alloc(512).unwrap());
    assert_eq!(machine.begin_capture(LEGACY, RELAXED), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    machine.begin_capture(blocking, RELAXED).unwrap();
    // "The blocking stream capture is not invalidated."
    assert_eq!(machine.capture_status(LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert_eq!(machine.capture_status(blocking), Ok(CU_STREAM_CAPTURE_STATUS_ACTIVE));
    assert_eq!(machine.set8_async(memory, 0, 1, LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert_eq!(machine.end_capture(blocking), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    machine.set8_async(memory, 0, 1, LEGACY).unwrap();
}

#[test]
fn only_a_relaxed_capture_ends_in_another_thread() {
    let machine = ready();
    for (mode, answer) in [(GLOBAL, Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)), (RELAXED, Ok(()))] {
        let stream = stream(&machine);
        machine.begin_capture(stream, mode).unwrap();
        let handle = stream as usize;
        let there = std::thread::scope(|scope| {
            let machine = &machine;
            scope.spawn(move || machine.end_capture(handle as CUstream).map(drop)).join().unwrap()
        });
        assert_eq!(there, answer);
        assert_eq!(machine.end_capture(stream).is_ok(), answer.is_err());
    }
}

#[test]
fn a_capture_ends_with_its_stream_and_its_context() {
    let machine = ready();
    let first = stream(&machine);
    machine.begin_capture(first, GLOBAL).unwrap();
    machine.stream_destroy(first).unwrap();
    assert_eq!(machine.steer.live(steer::CAPTURES), 0);
    machine.alloc(512).unwrap();
    let second = stream(&machine);
    machine.begin_capture(second, GLOBAL).unwrap();
    machine.primary_reset(0).unwrap();
    assert_eq!((machine.steer.live(steer::CAPTURES), machine.steer.live(steer::STREAMS)), (0, 0));
    machine.enter(0);
    machine.alloc(512).unwrap();
}

/// "It is invalid to wait on a non-captured event from a stream which is being captured without specifying the
/// cudaEventWaitExternal flag" (Programming Guide, Prohibited and Unhandled Operations): also on one that was never
/// recorded.
#[test]
fn a_captured_stream_waits_for_no_event_from_outside() {
    let machine = ready();
    let (captured, other) = (stream(&machine), stream(&machine));
    for is_recorded in [false, true] {
        let event = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
        if is_recorded {
            machine.record(event, other).unwrap();
        }
        machine.begin_capture(captured, GLOBAL).unwrap();
        assert_eq!(machine.stream_wait(captured, event, 0), Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
        assert_eq!(machine.end_capture(captured), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    machine.was_well_used();
}

/// "If this is called on CU_STREAM_LEGACY while a blocking stream in the same context is capturing"
/// (cuStreamIsCapturing): in the same one.
#[test]
fn the_legacy_stream_of_another_context_is_free_during_a_capture() {
    let machine = machine(2);
    for context in [machine.primary(1).unwrap(), machine.context(0, 0).unwrap()] {
        let here = machine.enter(0);
        let blocking = machine.stream(0).unwrap();
        machine.begin_capture(blocking, RELAXED).unwrap();
        machine.set_current(context).unwrap();
        assert_eq!(machine.capture_status(LEGACY), Ok(CU_STREAM_CAPTURE_STATUS_NONE));
        machine.exchange_mode(RELAXED);
        machine.stream_query(LEGACY).unwrap();
        machine.synchronize().unwrap();
        machine.set_current(here).unwrap();
        machine.end_capture(blocking).unwrap();
    }
    machine.was_well_used();
}

/// "The legacy stream handle at all times encompasses these other streams" (Programming Guide, Prohibited and Unhandled
/// Operations): of a captured per-thread default stream too, which blocks.
#[test]
fn a_captured_per_thread_default_stream_makes_the_legacy_stream_unusable() {
    let machine = ready();
    machine.begin_capture(CU_STREAM_PER_THREAD, RELAXED).unwrap();
    assert_eq!(machine.capture_status(LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    machine.end_capture(CU_STREAM_PER_THREAD).unwrap();
    machine.begin_capture(CU_STREAM_PER_THREAD, RELAXED).unwrap();
    assert_eq!(machine.stream_query(LEGACY), Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
    assert_eq!(machine.end_capture(CU_STREAM_PER_THREAD), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    machine.was_well_used();
}

/// "It is invalid to synchronize or query the execution status of a stream which is being captured": an upload enqueues.
#[test]
fn a_graph_is_uploaded_by_handles_that_live() {
    let machine = ready();
    let upload = |executable, stream| {
        let function = machine.driver.cuGraphUpload().unwrap();
        // SAFETY: handles.
        answer(unsafe { function(executable, stream) })
    };
    let first = stream(&machine);
    machine.begin_capture(first, GLOBAL).unwrap();
    let graph = machine.end_capture(first).unwrap();
    let executable = machine.instantiate(graph, 0).unwrap();
    upload(executable, first).unwrap();
    machine.begin_capture(first, GLOBAL).unwrap();
    assert_eq!(upload(executable, first), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    machine.end_capture(first).unwrap_err();
    machine.was_well_used();
    machine.executable_destroy(executable).unwrap();
    assert_eq!(upload(executable, first), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.steer.stale(steer::GRAPHS), 1);
}

/// Dependencies order the nodes of a graph, and nothing else does: branches that share memory race.
#[test]
fn branches_of_a_graph_run_in_either_order() {
    let machine = ready();
    let (first, second) = (stream(&machine), stream(&machine));
    let [fork, join] = [0, 0].map(|_| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let memory = machine.alloc(512).unwrap();
    for (reversed, is_ordered, last) in [(0, false, 2), (1, false, 1), (0, true, 2), (1, true, 2)] {
        machine.steer.set(steer::GRAPH_ORDER, reversed);
        machine.begin_capture(first, GLOBAL).unwrap();
        machine.record(fork, first).unwrap();
        machine.stream_wait(second, fork, 0).unwrap();
        machine.set8_async(memory, 1, 1, first).unwrap();
        if is_ordered {
            machine.record(fork, first).unwrap();
            machine.stream_wait(second, fork, 0).unwrap();
        }
        machine.set8_async(memory, 2, 1, second).unwrap();
        machine.record(join, second).unwrap();
        machine.stream_wait(first, join, 0).unwrap();
        machine.copy_async(memory + 8, memory, 1, first).unwrap();
        let graph = machine.end_capture(first).unwrap();
        let executable = machine.instantiate(graph, 0).unwrap();
        machine.graph_launch(executable, first).unwrap();
        assert_eq!(machine.byte(memory + 8), last, "reversed {reversed}, ordered {is_ordered}");
    }
    machine.was_well_used();
}

/// "The next node to be captured in the stream will depend on this set of nodes" (cuStreamGetCaptureInfo): PyTorch asks for
/// them to know what a free in a capture comes after.
#[test]
fn a_captured_stream_tells_what_its_next_node_depends_on() {
    let machine = ready();
    let (first, second) = (stream(&machine), stream(&machine));
    let info = |stream| {
        let function = machine.driver.cuStreamGetCaptureInfo_v2().unwrap();
        let (mut status, mut id, mut graph) = (0, 0, std::ptr::null_mut());
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        let (status_at, id_at, graph_at) = (&raw mut status, &raw mut id, &raw mut graph);
        // SAFETY: all results live.
        answer(unsafe { function(stream, status_at, id_at, graph_at, &raw mut nodes, &raw mut count) })
            .unwrap();
        // SAFETY: the array is valid until the next call on the stream.
        let read = |index| unsafe { nodes.wrapping_add(index).read() };
        let nodes = (0..count).map(|index| read(index) as u64).collect::<Vec<_>>();
        (status, id, nodes)
    };
    assert_eq!(info(first), (CU_STREAM_CAPTURE_STATUS_NONE, 0, vec![]));
    let memory = machine.alloc(512).unwrap();
    machine.begin_capture(first, GLOBAL).unwrap();
    let (status, id, nodes) = info(first);
    assert_eq!((status, nodes), (CU_STREAM_CAPTURE_STATUS_ACTIVE, vec![]));
    let event = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    machine.set8_async(memory, 1, 1, first).unwrap();
    let one = info(first).2;
    machine.record(event, first).unwrap();
    machine.stream_wait(second, event, 0).unwrap();
    assert_eq!((info(second).1, info(second).2), (id, one.clone()));
    machine.set8_async(memory, 2, 1, second).unwrap();
    let two = info(second).2;
    assert!(one.len() == 1 && two.len() == 1 && one != two, "{one:x?} {two:x?}");
    machine.record(event, second).unwrap();
    machine.stream_wait(first, event, 0).unwrap();
    assert_eq!(info(first).2, [one, two].concat());
    machine.stream_query(second).unwrap_err();
    // An invalid capture has no valid data.
    assert_eq!(info(first), (CU_STREAM_CAPTURE_STATUS_INVALIDATED, 0, vec![]));
    machine.end_capture(first).unwrap_err();
    machine.was_well_used();
}
