//! Handles: stale ones are counted, or end the process, or come back as others; and what a stream's handle says of it.

mod common;
use common::*;

fn query<T>(call: impl FnOnce(*mut T) -> CUresult) -> Answer<T> {
    // SAFETY: handles and numbers.
    let mut result: T = unsafe { std::mem::zeroed() };
    answer(call(&raw mut result))?;
    Ok(result)
}

impl Machine {
    fn context_of(&self, stream: CUstream) -> Answer<CUcontext> {
        let function = self.driver.cuStreamGetCtx().unwrap();
        // SAFETY: the result lives.
        query(|result| unsafe { function(stream, result) })
    }

    fn contexts_of(&self, stream: CUstream) -> Answer<(CUcontext, CUgreenCtx)> {
        let function = self.driver.cuStreamGetCtx_v2().unwrap();
        let mut green = std::ptr::dangling_mut::<u8>().cast();
        // SAFETY: both results live.
        let context = query(|result| unsafe { function(stream, result, &raw mut green) })?;
        Ok((context, green))
    }

    fn id_of(&self, stream: CUstream) -> Answer<u64> {
        let function = self.driver.cuStreamGetId().unwrap();
        // SAFETY: the result lives.
        query(|result| unsafe { function(stream, result) })
    }

    fn device_of(&self, stream: CUstream) -> Answer<CUdevice> {
        let function = self.driver.cuStreamGetDevice().unwrap();
        // SAFETY: the result lives.
        query(|result| unsafe { function(stream, result) })
    }
}

/// "Passing an invalid handle will result in undefined behavior" (cuStreamGetCtx, cuStreamGetId). Here every function that
/// takes one fails, and the use is counted.
#[test]
fn each_use_of_a_destroyed_handle_is_counted_by_its_kind() {
    let machine = ready();
    let (stream, event) = (stream(&machine), machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let (live, memory) = (machine.stream(0).unwrap(), machine.alloc(512).unwrap());
    machine.stream_destroy(stream).unwrap();
    let invalid = CUDA_ERROR_INVALID_HANDLE;
    let uses: [(&str, &dyn Fn() -> Answer); 14] = [
        ("cuStreamGetCtx", &|| machine.context_of(stream).map(drop)),
        ("cuStreamGetCtx_v2", &|| machine.contexts_of(stream).map(drop)),
        ("cuStreamGetId", &|| machine.id_of(stream).map(drop)),
        ("cuStreamGetDevice", &|| machine.device_of(stream).map(drop)),
        ("cuStreamIsCapturing", &|| machine.capture_status(stream).map(drop)),
        ("cuStreamQuery", &|| machine.stream_query(stream)),
        ("cuStreamSynchronize", &|| machine.stream_synchronize(stream)),
        ("cuStreamWaitEvent", &|| machine.stream_wait(stream, event, 0)),
        ("cuEventRecord", &|| machine.record(event, stream)),
        ("cuStreamBeginCapture", &|| machine.begin_capture(stream, 0)),
        ("cuMemAllocAsync", &|| machine.alloc_async(512, stream).map(drop)),
        ("cuMemsetD8Async", &|| machine.set8_async(memory, 0, 1, stream)),
        ("cuLaunchHostFunc", &|| machine.host_function(stream, None, std::ptr::null_mut())),
        ("cuStreamDestroy", &|| machine.stream_destroy(stream)),
    ];
    for (number, (name, call)) in (1..).zip(uses) {
        assert_eq!(call(), Err(invalid), "{name}");
        assert_eq!(machine.steer.stale(steer::STREAMS), number, "{name}");
    }
    assert_eq!((machine.steer.stale(steer::EVENTS), machine.steer.stale(-1)), (0, 14));
    machine.event_destroy(event).unwrap();
    assert_eq!(machine.event_query(event), Err(invalid));
    assert_eq!(machine.event_synchronize(event), Err(invalid));
    assert_eq!(machine.record(event, live), Err(invalid));
    assert_eq!(machine.stream_wait(live, event, 0), Err(invalid));
    assert_eq!(machine.event_destroy(event), Err(invalid));
    assert_eq!((machine.steer.stale(steer::EVENTS), machine.steer.misuses()), (5, 19));
    machine.steer.reset();
    assert_eq!(machine.steer.stale(-1), 0);
}

#[test]
fn destroyed_handles_come_back_if_a_test_wants_it() {
    let machine = ready();
    machine.steer.set(steer::RECYCLE_HANDLES, 1);
    let (first, event) = (stream(&machine), machine.event(0).unwrap());
    let before = machine.id_of(first).unwrap();
    let memory = machine.alloc(512).unwrap();
    machine.hold(first);
    machine.fill(first, memory, 512, 1).unwrap();
    machine.stream_destroy(first).unwrap();
    machine.event_destroy(event).unwrap();
    // At once, although work is left.
    let again = stream(&machine);
    assert_eq!((again, machine.event(0).unwrap()), (first, event));
    assert_eq!(machine.stream_query(again), Ok(()), "the other one's work is not this one's");
    // "The Id is unique for the life of the program."
    assert!(machine.id_of(again).unwrap() > before);
    machine.was_well_used();
}

/// A stream that is destroyed with work left has lost its handle; the end of the context takes nothing from the stream
/// that has the handle now.
#[test]
fn a_handle_that_came_back_is_not_given_out_twice() {
    let machine = ready();
    machine.steer.set(steer::RECYCLE_HANDLES, 1);
    let primary = machine.current().unwrap();
    let context = machine.context(0, 0).unwrap();
    let stream = machine.stream(0).unwrap();
    machine.hold(stream);
    machine.set8_async(machine.alloc(512).unwrap(), 0, 1, stream).unwrap();
    machine.stream_destroy(stream).unwrap();
    machine.set_current(primary).unwrap();
    let reused = machine.stream(0).unwrap();
    assert_eq!(reused, stream);
    machine.context_destroy(context).unwrap();
    assert_eq!(machine.stream_query(reused), Ok(()));
    assert_ne!(machine.stream(0).unwrap(), reused);
    machine.was_well_used();
}

#[test]
fn a_stream_tells_its_context_and_its_number() {
    let machine = machine(2);
    let first = machine.enter(0);
    let here = [machine.stream(0).unwrap(), stream(&machine)];
    let second = machine.context(0, 1).unwrap();
    let there = stream(&machine);
    // "The returned context is the context that was active in the calling thread when the stream was created", "the
    // regular context in pCtx and NULL in pGreenCtx".
    for (stream, context, device) in [(here[0], first, 0), (here[1], first, 0), (there, second, 1)] {
        assert_eq!(machine.context_of(stream), Ok(context));
        assert_eq!(machine.contexts_of(stream), Ok((context, std::ptr::null_mut())));
        assert_eq!(machine.device_of(stream), Ok(device));
    }
    // "Specifying any of the special handles will return the context current to the calling thread."
    let special = [LEGACY, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD];
    let mut numbers = vec![machine.id_of(here[0]).unwrap(), machine.id_of(here[1]).unwrap()];
    numbers.push(machine.id_of(there).unwrap());
    for context in [first, second] {
        machine.set_current(context).unwrap();
        for stream in special {
            assert_eq!(machine.context_of(stream), Ok(context));
        }
        assert_eq!(machine.id_of(LEGACY), machine.id_of(CU_STREAM_LEGACY));
        numbers.extend([LEGACY, CU_STREAM_PER_THREAD].map(|stream| machine.id_of(stream).unwrap()));
    }
    let id = std::thread::scope(|scope| {
        let (machine, context) = (&machine, second as usize);
        let thread = scope.spawn(move || {
            machine.set_current(context as CUcontext).unwrap();
            machine.id_of(CU_STREAM_PER_THREAD).unwrap()
        });
        thread.join().unwrap()
    });
    numbers.push(id);
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "each stream has its own");
    // "If no context is current to the calling thread, CUDA_ERROR_INVALID_CONTEXT is returned": the special ones only.
    machine.set_current(std::ptr::null_mut()).unwrap();
    machine.set_current(std::ptr::null_mut()).unwrap();
    assert_eq!(machine.current(), Ok(std::ptr::null_mut()));
    for stream in special {
        assert_eq!(machine.context_of(stream), Err(CUDA_ERROR_INVALID_CONTEXT));
    }
    assert_eq!(machine.context_of(there), Ok(second));
    machine.was_well_used();
}

/// CCCL's stream_pool.cuh: during a capture cuStreamGetId and cudaStreamGetDevice "would be rejected with
/// cudaErrorStreamCaptureUnsupported and would *invalidate* the in-flight capture". A thread in relaxed mode may ask, unless a
/// test wants to be sure that nothing does.
#[test]
fn a_stream_is_not_identified_during_a_capture() {
    let machine = ready();
    let context = machine.current().unwrap();
    let (blocking, other) = (machine.stream(0).unwrap(), stream(&machine));
    let calls: [(&str, &dyn Fn(CUstream) -> Answer); 4] = [
        ("cuStreamGetCtx", &|stream| machine.context_of(stream).map(drop)),
        ("cuStreamGetCtx_v2", &|stream| machine.contexts_of(stream).map(drop)),
        ("cuStreamGetId", &|stream| machine.id_of(stream).map(drop)),
        ("cuStreamGetDevice", &|stream| machine.device_of(stream).map(drop)),
    ];
    let unsupported = Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    for (name, call) in calls {
        for stream in [blocking, other, LEGACY] {
            machine.begin_capture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            assert_eq!(call(stream), unsupported, "{name}");
            assert_eq!(machine.end_capture(blocking), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{name}");

            machine.begin_capture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            let mode = machine.exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
            assert_eq!(call(stream), Ok(()), "{name}");
            machine.steer.set(steer::CAPTURED_STREAMS_HIDE, 1);
            let is_captured = stream == blocking;
            assert_eq!(call(stream), if is_captured { unsupported } else { Ok(()) }, "{name}");
            machine.steer.set(steer::CAPTURED_STREAMS_HIDE, 0);
            machine.exchange_mode(mode);
            assert_eq!(machine.end_capture(blocking).is_ok(), !is_captured, "{name}");
        }
    }
    // The other answer: no capture forbids it, in any mode.
    machine.steer.set(steer::STREAM_QUERIES_UNSAFE, 0);
    for (name, call) in calls {
        machine.begin_capture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        for stream in [blocking, other, LEGACY] {
            assert_eq!(call(stream), Ok(()), "{name}");
        }
        assert!(machine.end_capture(blocking).is_ok(), "{name}");
    }
    machine.steer.set(steer::STREAM_QUERIES_UNSAFE, 1);
    assert_eq!(machine.context_of(blocking), Ok(context));
    machine.was_well_used();
}

#[test]
fn a_stale_handle_ends_the_process_if_a_test_wants_it() {
    const CHILD: &str = "SIMCUDA_TEST_STALE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let machine = ready();
        let stream = machine.stream(0).unwrap();
        machine.stream_destroy(stream).unwrap();
        let _ = machine.stream_query(stream);
        return;
    }
    for (aborts, succeeds) in [("0", true), ("1", false)] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_stale_handle_ends_the_process_if_a_test_wants_it", "--nocapture"]);
        let child = child.env(CHILD, "1").env("SIMCUDA_STALE_ABORTS", aborts).output().unwrap();
        assert_eq!(child.status.success(), succeeds);
        let said = String::from_utf8_lossy(&child.stderr).contains("is one that was destroyed");
        assert_eq!(said, !succeeds);
    }
}
