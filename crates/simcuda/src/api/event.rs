//! Events.

use std::ffi::c_uint;

use cuda_sys::*;

use crate::abi::{Answer, put};
use crate::handles::Kind;
use crate::options::Choice;
use crate::rules::blocking;
use crate::rules::streams;
use crate::sim::{self, Guard, Sim};
use crate::state::stream::{Event, Point, Role, Stream};

pub(crate) fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let wants_ipc = flags & CU_EVENT_INTERPROCESS != 0;
    if event.is_null() || flags & !known != 0 || (wants_ipc && flags & CU_EVENT_DISABLE_TIMING == 0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = sim.handle(Kind::Event);
    let unique = sim.number();
    let new = Event::new(context, flags, unique);
    sim.events.insert(handle, new);
    put(event, handle as CUevent)
}

/// "An event may be destroyed before it is complete". Work that waits for it continues to wait for its position.
pub(crate) fn cuEventDestroy_v2(event: CUevent) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let handle = event.addr() as u64;
    sim.event(handle)?;
    sim.events.remove(&handle);
    sim.retire(Kind::Event, handle);
    Ok(())
}

pub(crate) fn cuEventDestroy(event: CUevent) -> Answer {
    cuEventDestroy_v2(event)
}

pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let number = sim.stream(stream)?;
    let handle = event.addr() as u64;
    let context = sim.event(handle)?.context();
    if sim.root(sim.streams[&number].context()) != context {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    if let Some(capture) = sim.streams[&number].capture() {
        return sim.note_record(capture, number, handle);
    }
    sim.record_event(handle, number, Vec::new())?;
    drop(streams::run_ready(sim));
    Ok(())
}

/// "Captures in hEvent all the activities of the context hCtx at the time of this call. hEvent and hCtx must be from
/// the same CUDA context, otherwise CUDA_ERROR_INVALID_HANDLE will be returned." And: "The API will return
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the specified context hCtx has a stream in the capture mode. In such a
/// case, the call will invalidate all the conflicting captures." The event's position is that of an item after all
/// others, on a stream of its own that ends with it.
pub(crate) fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> Answer {
    let mut sim = sim::lock();
    let context = sim.context(context)?;
    record_activities(sim, context, event)
}

/// Records an event after all activities of a context. The event is one of the context or of its primary context.
pub(super) fn record_activities(mut sim: Guard, context: u64, event: CUevent) -> Answer {
    let handle = event.addr() as u64;
    if sim.event(handle)?.context() != sim.root(context) {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    sim.forbid_captured_in(context)?;
    let activities = sim.all_of(|of, _| sim.covers(context, of));
    let device = sim.contexts[&context].device();
    let behind = sim.add_stream(Stream::new(context, device, Role::PerThread, CU_STREAM_NON_BLOCKING, 0));
    sim.record_event(handle, behind, activities)?;
    if let Some(stream) = sim.streams.get_mut(&behind) {
        stream.hold(false);
    }
    sim.destroy_stream(behind);
    drop(streams::run_ready(sim));
    Ok(())
}

pub(crate) fn cuCtxWaitEvent(context: CUcontext, event: CUevent) -> Answer {
    let mut sim = sim::lock();
    let context = sim.context(context)?;
    sim.wait_in_context(context, event.addr() as u64)
}

/// "This flag is invalid outside of stream capture." An external node of a graph is not simulated.
pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) -> Answer {
    match flags {
        CU_EVENT_RECORD_DEFAULT => cuEventRecord(event, stream),
        CU_EVENT_RECORD_EXTERNAL => {
            let mut sim = sim::lock();
            sim.current()?;
            let number = sim.stream(stream)?;
            sim.event(event.addr() as u64)?;
            Err(sim.external(number))
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Returns the position that an event stands for, or None if it was never recorded. An event last recorded in a capture
/// may neither be queried nor waited for, in any mode (cuThreadExchangeStreamCaptureMode in cuda.h).
fn observed(sim: &mut Sim, event: CUevent) -> Answer<Option<Point>> {
    let handle = event.addr() as u64;
    let recorded = sim.event(handle)?.recorded();
    sim.forbid_captured_event(handle)?;
    sim.forbid_unsafe()?;
    Ok(recorded.filter(|_| !sim.options.is_on(Choice::EventsLie)))
}

pub(crate) fn cuEventQuery(event: CUevent) -> Answer {
    let mut sim = streams::run_ready(sim::lock());
    let point = observed(&mut sim, event)?;
    match point.is_none_or(|point| sim.is_done(point)) {
        true => {
            sim.learn(point.as_slice());
            Ok(())
        }
        false => {
            sim.pass_a_moment();
            Err(CUDA_ERROR_NOT_READY)
        }
    }
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let point = observed(&mut sim, event)?;
    let points: Vec<Point> = point.into_iter().collect();
    let mut sim = blocking::finish(sim, &points)?;
    sim.observe();
    sim.current().map(drop)
}

/// The result is in milliseconds of the host's clock. "cudaEventElapsedTime() will fail if the two input events are
/// associated to different devices" (Programming Guide, Stream and Event Behavior). A captured event has no time.
pub(crate) fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Answer {
    let mut sim = streams::run_ready(sim::lock());
    sim.current()?;
    let mut times = [0; 2];
    let mut points = Vec::new();
    let [first, second] = [start, end].map(|event| event.addr() as u64);
    if sim.event(first)?.context() != sim.event(second)?.context() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    for (event, time) in [first, second].into_iter().zip(&mut times) {
        sim.forbid_captured_event(event)?;
        let event = sim.event(event)?;
        if event.flags() & CU_EVENT_DISABLE_TIMING != 0 || event.recorded().is_none() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        *time = event.reached().ok_or(CUDA_ERROR_NOT_READY)?;
        points.extend(event.recorded());
    }
    sim.learn(&points);
    let [start, end] = times.map(|nanoseconds| nanoseconds as f64 / 1e6);
    put(milliseconds, (end - start) as f32)
}

pub(crate) fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Answer {
    cuEventElapsedTime(milliseconds, start, end)
}
