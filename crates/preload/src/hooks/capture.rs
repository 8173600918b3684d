//! The hooks of functions that begin or end stream captures, and of the creation and destruction of streams, which ends
//! a stream's capture too.

use std::ffi::{c_int, c_uint, c_void};

use cuda_sys::*;

use super::context::end_put_off;
use super::fallback::{Source, with_room};
use crate::driver::real;
use crate::pool::{Pool, known_streams};
use crate::state::contexts::{self, Current};
use crate::state::{captures, green_contexts, streams};

/// Prepares the current device's pool for a capture.
fn prepare() {
    if let Current::Primary(device) = contexts::current()
        && let Some(pool) = Pool::of_device(device)
    {
        pool.settle_before_capture();
    }
}

/// Functions that begin a capture.
macro_rules! begins {
    ($($symbol:ident($($argument:ident: $type:ty),*) in $mode:expr;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(stream: CUstream, $($argument: $type),*) -> CUresult {
                let Some(begin) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                prepare();
                // Counted before the call, so that no other thread synchronizes in the first moment.
                let beginning = captures::begin(stream, $mode);
                // SAFETY: the caller's arguments.
                let code = unsafe { begin(stream, $($argument),*) };
                beginning.end(code == CUDA_SUCCESS);
                code
            }
        )*
    };
}

begins! {
    cuStreamBeginCapture() in CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuStreamBeginCapture_ptsz() in CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuStreamBeginCapture_v2(mode: CUstreamCaptureMode) in mode;
    cuStreamBeginCapture_v2_ptsz(mode: CUstreamCaptureMode) in mode;
    cuStreamBeginCaptureToGraph(
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        mode: CUstreamCaptureMode
    ) in mode;
    cuStreamBeginCaptureToGraph_ptsz(
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        mode: CUstreamCaptureMode
    ) in mode;
    cuStreamBeginRecaptureToGraph(
        mode: CUstreamCaptureMode,
        graph: CUgraph,
        callback: CUgraphRecaptureCallback,
        data: *mut c_void
    ) in mode;
    cuStreamBeginRecaptureToGraph_ptsz(
        mode: CUstreamCaptureMode,
        graph: CUgraph,
        callback: CUgraphRecaptureCallback,
        data: *mut c_void
    ) in mode;
    // Whether another thread may end it is not documented.
    cuStreamBeginCaptureToCig(parameters: *mut CUstreamCigCaptureParams) in CU_STREAM_CAPTURE_MODE_RELAXED;
    cuStreamBeginCaptureToCig_ptsz(parameters: *mut CUstreamCigCaptureParams) in CU_STREAM_CAPTURE_MODE_RELAXED;
}

/// Functions that end a capture, including one that has become invalid.
macro_rules! ends {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(stream: CUstream, graph: *mut CUgraph) -> CUresult {
                let Some(end) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let is_captured = streams::is_captured(stream);
                // SAFETY: the caller's arguments.
                let code = unsafe { end(stream, graph) };
                // A call that found no capture, or a capture of another thread, has ended none.
                if is_captured && !streams::is_captured(stream) {
                    captures::ended_if_begun(stream);
                    end_put_off();
                }
                code
            }
        )*
    };
    // "When a stream is in CIG capture mode": it is not documented whether cuStreamIsCapturing reports it, but the call
    // returns a code.
    (if it succeeds: $($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(stream: CUstream) -> CUresult {
                let Some(end) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's argument.
                let code = unsafe { end(stream) };
                if code == CUDA_SUCCESS {
                    captures::ended_if_begun(stream);
                    end_put_off();
                }
                code
            }
        )*
    };
}

ends! {
    cuStreamEndCapture
    cuStreamEndCapture_ptsz
}

ends! {
    if it succeeds:
    cuStreamEndCaptureToCig
    cuStreamEndCaptureToCig_ptsz
}

/// Functions that destroy a stream.
macro_rules! destroys {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(stream: CUstream) -> CUresult {
                let Some(destroy) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                known_streams::forget(stream);
                let destruction = captures::destroy(stream);
                // SAFETY: the caller's argument.
                let code = unsafe { destroy(stream) };
                destruction.end(code == CUDA_SUCCESS);
                end_put_off();
                code
            }
        )*
    };
}

destroys! {
    cuStreamDestroy
    cuStreamDestroy_v2
}

/// Functions that create a stream, with the pool that may hold the memory it needs, and the stream's context.
macro_rules! creates {
    ($($symbol:ident($($argument:ident: $type:ty),*) of $source:expr, in $context:expr;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(place: *mut CUstream, $($argument: $type),*) -> CUresult {
                let Some(create) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's arguments.
                let code = with_room(|| ($source, 0), || unsafe { create(place, $($argument),*) });
                if code == CUDA_SUCCESS && !place.is_null() {
                    // SAFETY: not NULL, so the caller's, and the driver has written it.
                    streams::note_created(unsafe { *place }, $context);
                }
                code
            }
        )*
    };
}

creates! {
    cuStreamCreate(flags: c_uint) of Source::Current, in contexts::current_handle();
    cuStreamCreateWithPriority(flags: c_uint, priority: c_int) of Source::Current, in contexts::current_handle();
    cuGreenCtxStreamCreate(green: CUgreenCtx, flags: c_uint, priority: c_int)
        of Source::Any, in green_contexts::context_of(green);
}
