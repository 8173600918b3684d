//! Kernels that communicate, and what blocking calls do about work of other streams, contexts and devices.

mod common;
use common::*;

use std::time::{Duration, Instant};

const A: u64 = 0x1111_1111_1111_1111;

/// A machine whose deadlocks are reported at once.
fn impatient(devices: i32) -> Machine {
    let machine = machine(devices);
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 0);
    machine.enter(0);
    machine
}

impl Machine {
    fn send(&self, stream: CUstream, channel: u64) {
        assert_eq!(self.steer.send(stream.cast(), channel), 0);
    }

    fn receive(&self, stream: CUstream, channel: u64) {
        assert_eq!(self.steer.receive(stream.cast(), channel), 0);
    }

    /// The text of the only misuse, which is a deadlock.
    fn deadlock(&self) -> String {
        let texts = self.steer.misuse_texts();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("deadlock: "), "{}", texts[0]);
        texts[0].clone()
    }
}

#[test]
fn a_receive_ends_with_the_send_that_it_takes() {
    let machine = impatient(1);
    let [first, second] = [stream(&machine), stream(&machine)];
    let memory = machine.alloc(512).unwrap();
    machine.receive(first, 7);
    machine.fill(first, memory, 512, A).unwrap();
    assert_eq!((machine.byte(memory), machine.stream_query(first)), (0, Err(CUDA_ERROR_NOT_READY)));
    // Another channel's message does not count, and each message is taken once.
    machine.send(second, 8);
    assert_eq!(machine.byte(memory), 0);
    machine.receive(first, 7);
    machine.send(second, 7);
    assert_eq!((machine.byte(memory), machine.steer.pending(first.cast())), (0x11, 1));
    machine.send(second, 7);
    assert_eq!(machine.stream_query(first), Ok(()));
    // A send comes first as well.
    machine.send(second, 7);
    machine.receive(first, 7);
    machine.synchronize().unwrap();
    machine.was_well_used();
}

#[test]
fn a_blocking_call_runs_the_held_send_that_it_waits_for() {
    let machine = impatient(1);
    let [first, second] = [stream(&machine), stream(&machine)];
    machine.hold(second);
    machine.send(second, 1);
    machine.send(second, 2);
    machine.receive(first, 1);
    machine.stream_synchronize(first).unwrap();
    assert_eq!(machine.steer.pending(second.cast()), 1, "and no further");
    machine.was_well_used();
}

#[test]
fn a_collective_of_two_devices_is_a_send_and_a_receive_on_each() {
    let machine = impatient(2);
    let mut streams = Vec::new();
    for device in [0, 1] {
        machine.enter(device);
        streams.push(stream(&machine));
    }
    machine.send(streams[0], 0);
    machine.receive(streams[0], 1);
    assert_eq!(machine.stream_query(streams[0]), Err(CUDA_ERROR_NOT_READY));
    machine.send(streams[1], 1);
    machine.receive(streams[1], 0);
    for stream in streams {
        assert_eq!(machine.stream_query(stream), Ok(()));
    }
    machine.was_well_used();
}

/// The program of a late event: a receive is posted, an event is recorded after it, and the stream with the send waits
/// for that event.
#[test]
fn a_send_behind_its_own_receive_is_a_deadlock_that_is_named() {
    let machine = impatient(1);
    let [posted, ours] = [stream(&machine), stream(&machine)];
    let late = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    machine.receive(posted, 5);
    machine.record(late, posted).unwrap();
    machine.stream_wait(ours, late, 0).unwrap();
    machine.send(ours, 5);
    machine.was_well_used();
    assert_eq!(machine.stream_synchronize(ours), Err(CUDA_ERROR_LAUNCH_TIMEOUT));
    let text = machine.deadlock();
    assert!(text.contains("a receive on channel 5") && text.contains("again"), "{text}");
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_LAUNCH_TIMEOUT));
    // The same program with the event before the receive.
    machine.steer.reset();
    machine.init().unwrap();
    machine.enter(0);
    let [posted, ours] = [stream(&machine), stream(&machine)];
    let early = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    machine.record(early, posted).unwrap();
    machine.receive(posted, 5);
    machine.stream_wait(ours, early, 0).unwrap();
    machine.send(ours, 5);
    machine.synchronize().unwrap();
    machine.was_well_used();
}

#[test]
fn every_blocking_call_reports_a_receive_without_a_send() {
    let machine = impatient(1);
    let (event, memory) = (machine.event(0).unwrap(), machine.alloc(512).unwrap());
    let blocking = machine.stream(CU_STREAM_DEFAULT).unwrap();
    machine.receive(blocking, 3);
    machine.record(event, blocking).unwrap();
    let timeout = Err(CUDA_ERROR_LAUNCH_TIMEOUT);
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_NOT_READY));
    assert_eq!(machine.event_synchronize(event), timeout);
    assert!(machine.deadlock().contains("channel 3, of which none is queued"), "{}", machine.deadlock());
    assert_eq!(machine.stream_synchronize(blocking), timeout);
    assert_eq!(machine.synchronize(), timeout);
    assert_eq!(machine.free(memory), timeout);
    assert_eq!(machine.steer.misuses(), 4);
}

#[test]
fn another_thread_has_time_to_send() {
    let machine = impatient(1);
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 60_000);
    let [first, second] = [stream(&machine), stream(&machine)];
    machine.receive(first, 1);
    let (handle, context) = (second as usize, machine.current().unwrap() as usize);
    std::thread::scope(|scope| {
        let machine = &machine;
        scope.spawn(move || {
            machine.set_current(context as CUcontext).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            machine.send(handle as CUstream, 1);
        });
        machine.stream_synchronize(first).unwrap();
    });
    machine.was_well_used();
    // Without a send the limit counts.
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 30);
    machine.receive(first, 1);
    let start = Instant::now();
    assert_eq!(machine.stream_synchronize(first), Err(CUDA_ERROR_LAUNCH_TIMEOUT));
    assert!(start.elapsed() >= Duration::from_millis(30));
    machine.deadlock();
}

/// What other threads do elsewhere does not put the report off.
#[test]
fn a_deadlock_is_reported_while_others_are_busy() {
    let machine = impatient(1);
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 100);
    let [stuck, busy] = [stream(&machine), stream(&machine)];
    machine.receive(stuck, 1);
    let (handle, context) = (busy as usize, machine.current().unwrap() as usize);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (machine, is_over) = (&machine, &is_over);
        scope.spawn(move || {
            machine.set_current(context as CUcontext).unwrap();
            let start = Instant::now();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed)
                && start.elapsed() < Duration::from_secs(20)
            {
                machine.send(handle as CUstream, 2);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let start = Instant::now();
        assert_eq!(machine.stream_synchronize(stuck), Err(CUDA_ERROR_LAUNCH_TIMEOUT));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    });
    machine.deadlock();
}

/// "Blocks until the current context has completed all preceding requested tasks" (cuCtxSynchronize): of that context.
#[test]
fn synchronising_a_context_is_no_wait_for_others() {
    let machine = impatient(2);
    let own = machine.current().unwrap();
    let mut others = Vec::new();
    for context in [machine.primary(1).unwrap(), machine.context(0, 0).unwrap()] {
        machine.set_current(context).unwrap();
        let stream = stream(&machine);
        machine.hold(stream);
        let memory = machine.alloc(512).unwrap();
        machine.fill(stream, memory, 512, A).unwrap();
        others.push((context, stream, memory));
    }
    machine.set_current(own).unwrap();
    machine.synchronize().unwrap();
    for (context, stream, memory) in others {
        assert_eq!((machine.byte(memory), machine.stream_query(stream)), (0, Err(CUDA_ERROR_NOT_READY)));
        machine.set_current(context).unwrap();
        machine.synchronize().unwrap();
        assert_eq!(machine.byte(memory), 0x11);
        machine.set_current(own).unwrap();
    }
    machine.was_well_used();
}

/// "cudaEventSynchronize() and cudaEventQuery() will succeed even if the input event is associated to a device that is
/// different from the current device. cudaStreamWaitEvent() will succeed even if the input stream and input event are
/// associated to different devices." (Programming Guide, Stream and Event Behavior)
#[test]
fn events_and_streams_of_another_device_are_queried_and_waited_for_from_here() {
    let machine = impatient(2);
    let here = machine.current().unwrap();
    let ours = stream(&machine);
    let local = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    machine.enter(1);
    let (theirs, event) = (stream(&machine), machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let memory = machine.alloc(512).unwrap();
    machine.set_current(here).unwrap();
    machine.hold(theirs);
    machine.fill(theirs, memory, 512, A).unwrap();
    // "hEvent and hStream must be from the same context otherwise CUDA_ERROR_INVALID_HANDLE is returned."
    assert_eq!(machine.record(local, theirs), Err(CUDA_ERROR_INVALID_HANDLE));
    machine.record(event, theirs).unwrap();
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_NOT_READY));
    machine.stream_wait(ours, event, 0).unwrap();
    assert_eq!(machine.stream_query(ours), Err(CUDA_ERROR_NOT_READY));
    machine.event_synchronize(event).unwrap();
    assert_eq!((machine.byte(memory), machine.stream_query(ours)), (0x11, Ok(())));
    machine.fill(theirs, memory, 512, 0).unwrap();
    machine.stream_synchronize(theirs).unwrap();
    assert_eq!(machine.byte(memory), 0);
    // A query needs no current context: its list of results has no CUDA_ERROR_INVALID_CONTEXT; that of a wait has.
    machine.set_current(std::ptr::null_mut()).unwrap();
    assert_eq!(machine.event_query(event), Ok(()));
    assert_eq!(machine.event_synchronize(event), Err(CUDA_ERROR_INVALID_CONTEXT));
    machine.was_well_used();
}
