//! Streams that are held and stepped, events, and the default streams.

mod common;
use common::*;

const A: u64 = 0x1111_1111_1111_1111;
const B: u64 = 0x2222_2222_2222_2222;

#[test]
fn work_is_done_at_once_unless_it_is_held() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc(4096).unwrap();
    machine.fill(stream, memory, 4096, A).unwrap();
    assert_eq!(machine.byte(memory + 4095), 0x11);
    assert_eq!(machine.stream_query(stream), Ok(()));

    machine.hold(stream);
    machine.fill(stream, memory, 8, B).unwrap();
    machine.set8_async(memory, 0x33, 8, stream).unwrap();
    assert_eq!((machine.byte(memory), machine.steer.pending(stream.cast())), (0x11, 2));
    assert_eq!(machine.stream_query(stream), Err(CUDA_ERROR_NOT_READY));
    assert_eq!(machine.step(stream, 1), 1);
    assert_eq!(machine.byte(memory), 0x22);
    assert_eq!(machine.step(stream, 5), 1);
    assert_eq!(machine.byte(memory), 0x33);
    assert_eq!(machine.stream_query(stream), Ok(()));

    machine.fill(stream, memory, 8, A).unwrap();
    machine.release(stream);
    assert_eq!(machine.byte(memory), 0x11);
    machine.was_well_used();
}

#[test]
fn a_reuse_race_shows_in_a_mismatch() {
    let machine = ready();
    let [first, second] = [0, 0].map(|_| machine.stream(CU_STREAM_NON_BLOCKING).unwrap());
    let memory = machine.alloc(256).unwrap();
    machine.hold(first);
    machine.fill(first, memory, 256, A).unwrap();
    machine.expect(first, memory, 256, A).unwrap();
    machine.step(first, 1);
    machine.fill(second, memory + 8, 1, B).unwrap();
    machine.release(first);
    assert_eq!((machine.steer.mismatches(), machine.steer.misuses()), (1, 0));
    assert!(machine.steer.misuse_texts()[0].contains("found 0x22 at byte 8"));
}

#[test]
fn synchronising_runs_held_work_only_as_far_as_it_is_needed() {
    let machine = ready();
    let [first, second] = [0, 0].map(|_| machine.stream(CU_STREAM_NON_BLOCKING).unwrap());
    let (event, memory) = (machine.event(CU_EVENT_DISABLE_TIMING).unwrap(), machine.alloc(4096).unwrap());
    machine.hold(first);
    machine.hold(second);
    machine.fill(first, memory, 8, A).unwrap();
    machine.record(event, first).unwrap();
    machine.fill(first, memory + 8, 8, A).unwrap();
    machine.stream_wait(second, event, 0).unwrap();
    machine.fill(second, memory + 16, 8, A).unwrap();
    machine.stream_synchronize(second).unwrap();
    let bytes = [0, 8, 16].map(|at| machine.byte(memory + at));
    assert_eq!(bytes, [0x11, 0, 0x11]);
    assert_eq!(machine.event_query(event), Ok(()));
    machine.synchronize().unwrap();
    assert_eq!(machine.byte(memory + 8), 0x11);
}

#[test]
fn freeing_waits_for_the_device_and_need_not() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    machine.hold(stream);
    let memory = machine.alloc(4096).unwrap();
    machine.fill(stream, memory, 4096, A).unwrap();
    machine.free(memory).unwrap();
    assert_eq!(machine.steer.pending(stream.cast()), 0);
    machine.was_well_used();

    machine.steer.set(steer::FREE_SYNCHRONIZES, 0);
    let memory = machine.alloc(4096).unwrap();
    machine.fill(stream, memory, 4096, A).unwrap();
    machine.free(memory).unwrap();
    assert_eq!(machine.steer.misuses(), 0);
    machine.release(stream);
    assert_eq!(machine.steer.misuses(), 1);
    // The kernel has touched memory that was gone: the context is lost.
    assert_eq!(machine.alloc(4096), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

/// "This API will not perform any implict synchronization when the pointer was allocated with cuMemAllocAsync or
/// cuMemAllocFromPoolAsync. Callers must ensure that all accesses to these pointer have completed" (cuMemFree).
#[test]
fn freeing_pool_memory_waits_for_nothing() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc_async(4096, stream).unwrap();
    machine.hold(stream);
    machine.fill(stream, memory, 4096, A).unwrap();
    machine.free(memory).unwrap();
    assert_eq!((machine.steer.pending(stream.cast()), machine.steer.misuses()), (1, 0));
    machine.release(stream);
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_waiting_call_is_let_go_by_another_thread() {
    let machine = ready();
    machine.steer.set(steer::SYNCHRONIZE_WAITS, 1);
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc(4096).unwrap();
    machine.hold(stream);
    machine.fill(stream, memory, 4096, A).unwrap();
    let (steer, handle) = (machine.steer, stream as usize);
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        steer.step(handle as *mut _, 1)
    });
    machine.stream_synchronize(stream).unwrap();
    assert_eq!(machine.byte(memory), 0x11);
    assert_eq!(other.join().unwrap(), 1);
}

#[test]
fn an_event_is_the_place_where_it_was_last_recorded() {
    let machine = ready();
    let [first, second] = [0, 0].map(|_| machine.stream(CU_STREAM_NON_BLOCKING).unwrap());
    let event = machine.event(0).unwrap();
    // "Before the first call to cuEventRecord(), an event represents an empty set of work".
    assert_eq!(machine.event_query(event), Ok(()));
    assert_eq!(machine.elapsed(event, event), Err(CUDA_ERROR_INVALID_HANDLE));
    machine.stream_wait(second, event, 0).unwrap();
    machine.hold(first);
    machine.record(event, first).unwrap();
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_NOT_READY));
    assert_eq!(machine.elapsed(event, event), Err(CUDA_ERROR_NOT_READY));

    // A wait takes the state of the time of the call: it is not moved by the next record.
    let memory = machine.alloc(4096).unwrap();
    machine.stream_wait(second, event, 0).unwrap();
    machine.fill(second, memory, 8, A).unwrap();
    machine.fill(first, memory + 8, 8, A).unwrap();
    machine.record(event, first).unwrap();
    assert_eq!(machine.byte(memory), 0);
    assert_eq!(machine.step(first, 1), 1);
    assert_eq!((machine.byte(memory), machine.byte(memory + 8)), (0x11, 0));
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_NOT_READY));
    machine.event_synchronize(event).unwrap();
    assert_eq!(machine.byte(memory + 8), 0x11);
    assert!(machine.elapsed(event, event).unwrap() == 0.0);

    // Destroyed while recorded: who waits goes on waiting.
    machine.fill(first, memory, 8, B).unwrap();
    machine.record(event, first).unwrap();
    machine.stream_wait(second, event, 0).unwrap();
    machine.expect(second, memory, 8, B).unwrap();
    machine.event_destroy(event).unwrap();
    assert_eq!(machine.steer.pending(second.cast()), 2);
    machine.release(first);
    assert_eq!(machine.steer.pending(second.cast()), 0);
    machine.was_well_used();
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_destroyed_stream_s_work_is_done_nevertheless() {
    let machine = ready();
    let stream = machine.stream(0).unwrap();
    let (event, memory) = (machine.event(0).unwrap(), machine.alloc(4096).unwrap());
    machine.hold(stream);
    machine.fill(stream, memory, 8, A).unwrap();
    machine.record(event, stream).unwrap();
    machine.stream_destroy(stream).unwrap();
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_NOT_READY));
    assert_eq!(machine.steer.live(steer::STREAMS), 1);
    machine.event_synchronize(event).unwrap();
    assert_eq!((machine.byte(memory), machine.steer.live(steer::STREAMS)), (0x11, 0));
    machine.was_well_used();
    assert_eq!(machine.stream_synchronize(stream), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn the_legacy_default_stream_and_blocking_streams_wait_for_each_other() {
    let machine = ready();
    let blocking = machine.stream(CU_STREAM_DEFAULT).unwrap();
    let free = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc(4096).unwrap();
    for stream in [blocking, free] {
        machine.hold(stream);
        machine.set8_async(memory, 1, 1, stream).unwrap();
    }
    machine.set8_async(memory + 1, 2, 1, LEGACY).unwrap();
    assert_eq!(machine.byte(memory + 1), 0);
    assert_eq!(machine.stream_query(LEGACY), Err(CUDA_ERROR_NOT_READY));
    machine.step(blocking, 1);
    assert_eq!(machine.byte(memory + 1), 2);
    assert_eq!(machine.steer.pending(free.cast()), 1);

    machine.hold(CU_STREAM_LEGACY);
    machine.set8_async(memory + 2, 3, 1, LEGACY).unwrap();
    machine.set8_async(memory + 3, 4, 1, blocking).unwrap();
    assert_eq!(machine.step(blocking, 9), 0);
    assert_eq!(machine.step(free, 9), 1);
    assert_eq!(machine.step(CU_STREAM_LEGACY, 1), 1);
    assert_eq!(machine.step(blocking, 9), 1);
    assert_eq!(machine.byte(memory + 3), 4);
    machine.was_well_used();
}

#[test]
fn the_per_thread_default_stream_is_another_in_each_thread() {
    let machine = ready();
    let memory = machine.alloc(4096).unwrap();
    machine.hold(CU_STREAM_PER_THREAD);
    machine.set8_async(memory, 1, 1, CU_STREAM_PER_THREAD).unwrap();
    let event = machine.event(0).unwrap() as usize;
    std::thread::scope(|scope| {
        let machine = &machine;
        scope.spawn(move || {
            machine.enter(0);
            machine.set8_async(memory + 1, 2, 1, CU_STREAM_PER_THREAD).unwrap();
            assert_eq!(machine.byte(memory + 1), 2);
            assert_eq!(machine.steer.pending(CU_STREAM_PER_THREAD.cast()), 0);
            machine.record(event as CUevent, CU_STREAM_PER_THREAD).unwrap();
            assert_eq!(machine.event_query(event as CUevent), Ok(()));
        });
    });
    assert_eq!((machine.byte(memory), machine.steer.pending(CU_STREAM_PER_THREAD.cast())), (0, 1));
    // It is a blocking stream.
    assert_eq!(machine.stream_query(LEGACY), Err(CUDA_ERROR_NOT_READY));
    machine.release(CU_STREAM_PER_THREAD);
    assert_eq!(machine.byte(memory), 1);
    machine.was_well_used();
}

#[test]
fn a_kernel_of_the_test_s_own_runs_when_its_turn_comes() {
    unsafe extern "C" fn double(argument: *mut std::ffi::c_void) {
        // SAFETY: the test passes device memory with a number in it.
        let number = unsafe { &mut *argument.cast::<u32>() };
        *number *= 2;
    }
    let machine = ready();
    let memory = machine.alloc(4096).unwrap();
    let stream = machine.stream(0).unwrap();
    machine.hold(stream);
    machine.set32_async(memory, 21, 1, stream).unwrap();
    assert_eq!(machine.steer.launch(stream.cast(), double, memory as *mut _), 0);
    machine.host_function(stream, Some(double), memory as *mut _).unwrap();
    let number = || u32::from(machine.byte(memory));
    machine.step(stream, 2);
    assert_eq!(number(), 42);
    machine.step(stream, 1);
    assert_eq!(number(), 84);
}

#[test]
fn a_stream_s_next_work_waits_for_a_kernel_that_runs() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static BEGUN: AtomicBool = AtomicBool::new(false);
    static ASKED: AtomicBool = AtomicBool::new(false);
    static SECOND: AtomicBool = AtomicBool::new(false);
    static TOO_EARLY: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn first(_: *mut std::ffi::c_void) {
        BEGUN.store(true, Ordering::SeqCst);
        while !ASKED.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        TOO_EARLY.store(SECOND.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    unsafe extern "C" fn second(_: *mut std::ffi::c_void) {
        SECOND.store(true, Ordering::SeqCst);
    }
    let machine = ready();
    let context = machine.current().unwrap() as usize;
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    machine.hold(stream);
    for kernel in [first, second] {
        assert_eq!(machine.steer.launch(stream.cast(), kernel, std::ptr::null_mut()), 0);
    }
    let handle = stream as usize;
    let answer = std::thread::scope(|scope| {
        let machine = &machine;
        let other = scope.spawn(move || {
            machine.set_current(context as CUcontext).unwrap();
            while !BEGUN.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let answer = machine.stream_query(handle as CUstream);
            ASKED.store(true, Ordering::SeqCst);
            // It is waited for, although another thread runs it.
            machine.stream_synchronize(handle as CUstream).unwrap();
            assert!(SECOND.load(Ordering::SeqCst));
            answer
        });
        machine.release(stream);
        other.join().unwrap()
    });
    assert_eq!(answer, Err(CUDA_ERROR_NOT_READY));
    assert!(!TOO_EARLY.load(Ordering::SeqCst));
}
