//! Events: which pairs have a time between them, and which records and waits are invalid.

mod common;
use common::*;

impl Machine {
    fn record_with(&self, event: CUevent, stream: CUstream, flags: u32) -> Answer {
        let function = self.driver.cuEventRecordWithFlags().unwrap();
        // SAFETY: handles and a number.
        answer(unsafe { function(event, stream, flags) })
    }
}

/// "cudaEventElapsedTime() will fail if the two input events are associated to different devices" (Programming Guide,
/// Stream and Event Behavior); cuEventElapsedTime has the other rules.
#[test]
fn only_two_recorded_events_of_one_context_that_keep_time_have_a_time_between_them() {
    let machine = machine(2);
    machine.enter(1);
    let (theirs, there) = (machine.event(0).unwrap(), stream(&machine));
    machine.record(theirs, there).unwrap();
    machine.enter(0);
    let here = stream(&machine);
    let [first, second] = [0, 0].map(|_| machine.event(0).unwrap());
    let untimed = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    let invalid = Err(CUDA_ERROR_INVALID_HANDLE);
    machine.record(first, here).unwrap();
    machine.record(untimed, here).unwrap();
    assert_eq!(machine.elapsed(first, second), invalid, "not recorded");
    assert_eq!(machine.elapsed(first, untimed), invalid);
    assert_eq!(machine.elapsed(first, theirs), invalid, "of another device");
    machine.hold(here);
    machine.record(second, here).unwrap();
    assert_eq!(machine.elapsed(first, second), Err(CUDA_ERROR_NOT_READY));
    machine.release(here);
    machine.elapsed(first, second).unwrap();
    // "cudaEventElapsedTime can be safely called from any device", says PyTorch's CUDAEvent.h.
    machine.enter(1);
    machine.elapsed(first, second).unwrap();
    machine.was_well_used();
}

/// "This error indicates that the operation is not permitted on an event which was last recorded in a capturing stream"
/// (CUDA_ERROR_CAPTURED_EVENT), also after an earlier record that was none.
#[test]
fn a_captured_event_has_no_time() {
    let machine = ready();
    let (stream, other) = (stream(&machine), stream(&machine));
    let [first, second] = [0, 0].map(|_| machine.event(0).unwrap());
    for event in [first, second] {
        machine.record(event, other).unwrap();
    }
    machine.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    machine.record(second, stream).unwrap();
    assert_eq!(machine.elapsed(first, second), Err(CUDA_ERROR_CAPTURED_EVENT));
    assert_eq!(machine.end_capture(stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(machine.event_query(second), Err(CUDA_ERROR_CAPTURED_EVENT), "until it is recorded elsewhere");
    machine.record(second, other).unwrap();
    machine.elapsed(first, second).unwrap();
    machine.was_well_used();
}

/// "This flag is invalid outside of stream capture" (cuEventRecordWithFlags, cuStreamWaitEvent): PyTorch's CUDAEvent.h
/// calls it an error and takes care. In a capture external nodes are not simulated.
#[test]
fn external_records_and_waits_are_for_captures() {
    let machine = ready();
    let (stream, event) = (stream(&machine), machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let record = || machine.record_with(event, stream, CU_EVENT_RECORD_EXTERNAL);
    let wait = || machine.stream_wait(stream, event, CU_EVENT_WAIT_EXTERNAL);
    assert_eq!((record(), wait()), (Err(CUDA_ERROR_INVALID_VALUE), Err(CUDA_ERROR_INVALID_VALUE)));
    machine.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    assert_eq!((record(), wait()), (Err(CUDA_ERROR_NOT_SUPPORTED), Err(CUDA_ERROR_NOT_SUPPORTED)));
    machine.end_capture(stream).unwrap();
    machine.was_well_used();
}
