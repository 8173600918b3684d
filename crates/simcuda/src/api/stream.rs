//! Streams.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cuda_sys::*;

use crate::abi::{Answer, put};
use crate::handles::Kind;
use crate::options::Choice;
use crate::rules::blocking;
use crate::rules::streams;
use crate::sim::{self, Sim};
use crate::state::stream::{Point, Role, Stream};
use crate::state::work::Work;

pub(crate) fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> Answer {
    cuStreamCreateWithPriority(stream, flags, 0)
}

/// "If the specified priority is outside the numerical range [...], it will automatically be clamped".
pub(crate) fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) -> Answer {
    let mut sim = sim::lock();
    let context = sim.current()?;
    if stream.is_null() || flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let device = sim.contexts[&context].device();
    let handle = sim.handle(Kind::Stream);
    let role = Role::Created(handle);
    sim.add_stream(Stream::new(context, device, role, flags, priority.clamp(-5, 0)));
    put(stream, handle as CUstream)
}

/// Destroys the handle at once. Queued work is done nevertheless.
pub(crate) fn cuStreamDestroy_v2(stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    if is_default(stream) {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let number = sim.any_stream(stream)?;
    sim.destroy_stream(number);
    Ok(())
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> Answer {
    cuStreamDestroy_v2(stream)
}

/// Returns the points that a query of a stream or a wait for it concerns. An error during capture.
fn observed(sim: &mut Sim, stream: CUstream) -> Answer<Vec<Point>> {
    sim.current()?;
    let number = sim.stream(stream)?;
    sim.forbid_implicit(number, true)?;
    sim.forbid_captured(number)?;
    sim.forbid_unsafe()?;
    // A query of the legacy default stream counts as a use of it, which waits for the blocking streams.
    let mut points = match sim.streams[&number].role() {
        Role::Legacy => sim.implicit(number),
        _ => Vec::new(),
    };
    points.push(sim.end_of(number));
    Ok(points)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Answer {
    let mut sim = streams::run_ready(sim::lock());
    let points = observed(&mut sim, stream)?;
    match points.iter().all(|point| sim.is_done(*point)) {
        true => {
            sim.learn(&points);
            Ok(())
        }
        false => {
            sim.pass_a_moment();
            Err(CUDA_ERROR_NOT_READY)
        }
    }
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let points = observed(&mut sim, stream)?;
    let mut sim = blocking::finish(sim, &points)?;
    sim.observe();
    // The work that was waited for may have failed.
    sim.current().map(drop)
}

/// The event's latest record at the time of this call counts. Before its first record it represents no work.
pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let number = sim.stream(stream)?;
    let handle = event.addr() as u64;
    if flags & CU_EVENT_WAIT_EXTERNAL != 0 {
        sim.event(handle)?;
        return Err(sim.external(number));
    }
    let lies = sim.options.is_on(Choice::EventsLie);
    let point = sim.event(handle)?.recorded().filter(|_| !lies);
    if sim.note_wait(number, handle)? {
        return Ok(());
    }
    streams::submit(sim, number, Work::Nothing, point.into_iter().collect()).map(drop)
}

pub(crate) fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, argument: *mut c_void) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let work = Work::HostFunction { function, argument: argument.addr() as u64 };
    streams::submit(sim, number, work, Vec::new()).map(drop)
}

/// Callbacks cannot be captured.
pub(crate) fn cuStreamAddCallback(
    stream: CUstream,
    function: CUstreamCallback,
    argument: *mut c_void,
    flags: c_uint,
) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    if function.is_none() || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.forbid_captured(number)?;
    let work = Work::Callback { function, stream: stream.addr() as u64, argument: argument.addr() as u64 };
    streams::submit(sim, number, work, Vec::new()).map(drop)
}

// Queries of a stream. cuda.h does not specify whether its context, device and number may be queried during a capture.
// NVIDIA's CCCL (cudax, stream_pool.cuh, since github.com/NVIDIA/cccl/pull/9395) states that cuStreamGetId and
// cudaStreamGetDevice "would be rejected with cudaErrorStreamCaptureUnsupported and would *invalidate* the in-flight
// capture", so they count as potentially unsafe, unless an option says otherwise.

fn identify<T>(stream: CUstream, out: *mut T, at: impl FnOnce(&Stream) -> T) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    if sim.options.is_on(Choice::StreamQueriesUnsafe) {
        sim.forbid_unsafe()?;
    }
    if sim.options.is_on(Choice::CapturedStreamsHide) {
        sim.forbid_captured(number)?;
    }
    put(out, at(&sim.streams[&number]))
}

fn look<T>(stream: CUstream, out: *mut T, at: impl FnOnce(&Stream) -> T) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    put(out, at(&sim.streams[&number]))
}

/// For a stream of a green context, CUDA 13 returns the context that "is equivalent to the one returned by
/// cuCtxFromGreenCtx()", and before, "this version will return CUDA_ERROR_NOT_SUPPORTED for streams created via the API
/// cuGreenCtxStreamCreate"; here for all streams that were created in one.
pub(crate) fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> Answer {
    let mut found = 0;
    identify(stream, &raw mut found, Stream::context)?;
    let sim = sim::lock();
    let is_old = sim.options.get(Choice::DriverVersion) < NAMES_GREEN_CONTEXTS;
    if is_old && sim.root(found) != found && !is_default(stream) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    put(context, found as CUcontext)
}

/// The first version of cuStreamGetCtx that is for streams of green contexts, too.
const NAMES_GREEN_CONTEXTS: i64 = 13000;

fn is_default(stream: CUstream) -> bool {
    stream.addr() <= 2
}

/// "If the stream is associated with a green context, the API returns the green context in pGreenCtx and the primary
/// context of the associated device in pCtx. If the stream is associated with a regular context, the API returns the
/// regular context in pCtx and NULL in pGreenCtx." And: "specifying CU_STREAM_PER_THREAD [...] will return
/// CUDA_ERROR_INVALID_HANDLE if a green context is current to the calling thread."
pub(crate) fn cuStreamGetCtx_v2(stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx) -> Answer {
    let mut found = (0, Role::Legacy);
    identify(stream, &raw mut found, |stream| (stream.context(), stream.role()))?;
    let sim = sim::lock();
    let handle = sim.green_of(found.0);
    if handle.is_some() && found.1 == Role::PerThread {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    put(context, sim.root(found.0) as CUcontext)?;
    put(green, handle.unwrap_or(0) as CUgreenCtx)
}

pub(crate) fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> Answer {
    look(stream, flags, Stream::flags)
}

pub(crate) fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) -> Answer {
    look(stream, priority, Stream::priority)
}

pub(crate) fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong) -> Answer {
    identify(stream, id, Stream::unique)
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: *mut CUdevice) -> Answer {
    identify(stream, device, Stream::device)
}
