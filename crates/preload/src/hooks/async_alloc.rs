//! The hooks of stream-ordered memory. It is pooled on request. Frees of pooled memory are always handled.

use std::ptr;

use cuda_sys::*;

use super::device::free_in;
use super::fallback::{Source, call_driver, no_context_error};
use super::refusals::{self, Verdict};
use crate::diagnostics::check_log::{self, PassReason};
use crate::diagnostics::{report, trace};
use crate::driver::real;
use crate::pool::known_streams;
use crate::pool::{Pool, Refused};
use crate::settings;
use crate::state::contexts::{self, Current, is_default};
use crate::state::{captures, memory_pools, relations, streams};

/// Returns the stream that NULL denotes in a twin: the per-thread default stream.
fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { ptr::without_provenance_mut(2) } else { stream }
}

fn serve(place: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Result<u64, Refused> {
    let pool = pool_of(place, bytes, stream)?;
    let served = pool.alloc(bytes, Some(stream));
    if served.is_ok() {
        check_log::served(bytes);
        report::note(pool);
    }
    served
}

/// Returns the pool that serves a request. Out of line, because its caller's frame is on the stack while libbfc runs.
#[inline(never)]
fn pool_of(place: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Result<Pool, Refused> {
    if place.is_null() || !settings::pools(bytes) {
        return Err(Refused::Pass(PassReason::Size));
    }
    // A captured allocation is a node of the graph.
    if captures::any() {
        return Err(Refused::Pass(PassReason::Capture));
    }
    // Registers the device if it is new.
    let current = contexts::current();
    let Current::Primary(device) = current else { return Err(Refused::Pass(PassReason::Context)) };
    if memory_pools::is_own(device) {
        return Err(Refused::Pass(PassReason::OwnPool));
    }
    if !is_of(stream, current) || !known_streams::note(stream) {
        return Err(Refused::Pass(PassReason::Context));
    }
    let pool = Pool::of_device(device).ok_or(Refused::Pass(PassReason::Context))?;
    if pool.may_order(stream) { Ok(pool) } else { Err(Refused::Pass(PassReason::Pool)) }
}

/// Returns whether memory in the order of a stream belongs to the current context.
fn is_of(stream: CUstream, current: Current) -> bool {
    is_default(stream)
        || streams::of_stream(stream).is_some_and(|context| contexts::known_as(context) == current)
}

macro_rules! allocates {
    ($($symbol:ident, $stream:expr;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(
                place: *mut CUdeviceptr,
                bytes: usize,
                stream: CUstream,
            ) -> CUresult {
                let Some(alloc) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let number = trace::stream($stream(stream));
                let mut verdict = Verdict::Driver("cudaMallocAsync is left to the driver (--async serves it)");
                if settings::serves_async() {
                    match serve(place, bytes, $stream(stream)) {
                        Ok(address) => {
                            // SAFETY: not NULL, so the caller's for writing.
                            unsafe { *place = address };
                            trace::allocated(address, bytes, number);
                            return CUDA_SUCCESS;
                        }
                        Err(Refused::OutOfMemory) => {
                            return refusals::note(CUDA_ERROR_OUT_OF_MEMORY, bytes, number, Verdict::Pool);
                        }
                        Err(Refused::Pass(why)) => {
                            check_log::passed(why);
                            verdict = Verdict::of(why);
                        }
                    }
                }
                // SAFETY: the caller's arguments.
                let call = || unsafe { alloc(place, bytes, stream) };
                // SAFETY: the driver writes it.
                unsafe { call_driver(place, bytes, number, verdict, Source::Stream(stream), call) }
            }
        )*
    };
}

allocates! {
    cuMemAllocAsync, |stream| stream;
    cuMemAllocAsync_ptsz, per_thread;
}

/// Frees pooled memory. Returns `None` for other memory.
fn free(address: u64, stream: CUstream) -> Option<CUresult> {
    let pool = Pool::owner(address)?;
    // A created stream has a context, so none needs to be current.
    let current = if is_default(stream) { Some(contexts::current()) } else { None };
    if current == Some(Current::None) {
        return Some(no_context_error());
    }
    let is_default_elsewhere =
        current.is_some_and(|current| current != pool.device().map_or(Current::Other, Current::Primary));
    if captures::any() && !stream.is_null() && streams::is_captured(stream) {
        // A graph frees only its own allocations.
        return Some(CUDA_ERROR_INVALID_VALUE);
    }
    if contexts::are_several() {
        relations::note_addresses(stream, &[address]);
    }
    let may_order = || match is_default_elsewhere {
        true => known_streams::note_default(),
        false => known_streams::note(stream) && pool.may_order(stream),
    };
    if !settings::serves_async() || !may_order() {
        return free_in(pool, address);
    }
    match pool.free_in_order(address, stream) {
        Some(code) => {
            if code == CUDA_SUCCESS {
                report::note(pool);
            }
            Some(code)
        }
        None => free_in(pool, address),
    }
}

macro_rules! frees {
    ($($symbol:ident, $stream:expr;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(address: CUdeviceptr, stream: CUstream) -> CUresult {
                let Some(real) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let noted = trace::freeing(address);
                let code = match free(address, $stream(stream)) {
                    Some(code) => code,
                    // SAFETY: the caller's arguments, and no memory of a pool.
                    None => unsafe { real(address, stream) },
                };
                trace::freed(noted, address, code);
                code
            }
        )*
    };
}

frees! {
    cuMemFreeAsync, |stream| stream;
    cuMemFreeAsync_ptsz, per_thread;
}
