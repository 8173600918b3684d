//! The hooks of device memory: cudaMalloc, cudaFree, cudaMemGetInfo.

use cuda_sys::*;

use super::fallback::{self, Source};
use super::refusals::{self, Verdict};
use crate::bfc;
use crate::diagnostics::check_log::{self, PassReason};
use crate::diagnostics::{report, trace};
use crate::driver::real;
use crate::pool::{Freed, Pool, Refused};
use crate::settings;
use crate::state::contexts::{self, Current};
use crate::state::internal_streams;

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut CUdeviceptr, bytes: usize) -> CUresult {
    let Some(alloc) = real::cuMemAlloc_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    match serve(place, bytes) {
        Ok(address) => {
            // SAFETY: not NULL, so the caller's for writing.
            unsafe { *place = address };
            trace::allocated(address, bytes, 0);
            CUDA_SUCCESS
        }
        Err(Refused::OutOfMemory) => refusals::note(CUDA_ERROR_OUT_OF_MEMORY, bytes, 0, Verdict::Pool),
        Err(Refused::Pass(why)) => {
            check_log::passed(why);
            // SAFETY: the caller's arguments.
            let call = || unsafe { alloc(place, bytes) };
            // SAFETY: the driver writes it.
            unsafe { fallback::call_driver(place, bytes, 0, Verdict::of(why), Source::Current, call) }
        }
    }
}

/// Serves a request from the pool of the current device, if it should be pooled.
#[inline]
fn serve(place: *mut CUdeviceptr, bytes: usize) -> Result<u64, Refused> {
    let (pool, stream) = pool_of(place, bytes)?;
    let served = pool.alloc(bytes, stream);
    if served.is_ok() {
        check_log::served(bytes);
        report::note(pool);
    }
    served
}

/// Returns the pool that serves a request, and the stream to allocate on. Out of line, like [`fallback::call_driver`].
#[inline(never)]
fn pool_of(place: *mut CUdeviceptr, bytes: usize) -> Result<(Pool, Option<CUstream>), Refused> {
    if place.is_null() || !settings::pools(bytes) {
        return Err(Refused::Pass(PassReason::Size));
    }
    let device = match contexts::current() {
        Current::Primary(device) => device,
        Current::Other => return Err(Refused::Pass(PassReason::Context)),
        Current::None => return Err(Refused::Pass(PassReason::NoContext)),
    };
    let Some(pool) = Pool::of_device(device) else { return Err(Refused::Pass(PassReason::Context)) };
    let stream = if settings::serves_async() {
        Some(internal_streams::get_or_create(device).ok_or(Refused::Pass(PassReason::Pool))?)
    } else {
        None
    };
    Ok((pool, stream))
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    let Some(free) = real::cuMemFree_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    let noted = trace::freeing(address);
    let code = match free_pooled(address) {
        Some(code) => code,
        // SAFETY: the caller's argument, and no memory of a pool.
        None => unsafe { free(address) },
    };
    trace::freed(noted, address, code);
    code
}

/// Frees pooled memory. Returns `None` for other memory.
#[inline]
pub(crate) fn free_pooled(address: u64) -> Option<CUresult> {
    if address == 0 {
        return None;
    }
    let current = contexts::current();
    if let Current::Primary(device) = current
        && let Some(pool) = Pool::of_device(device).filter(|pool| pool.is_there())
    {
        return match free(pool, address) {
            Freed::Here(code) => Some(code),
            Freed::Elsewhere(owner) => free_elsewhere(address, owner, current),
        };
    }
    free_elsewhere(address, Pool::owner(address), current)
}

/// Frees pooled memory with another device's context current, or none.
#[cold]
fn free_elsewhere(address: u64, owner: Option<Pool>, current: Current) -> Option<CUresult> {
    let pool = owner?;
    if current == Current::None { Some(fallback::no_context_error()) } else { free(pool, address).code() }
}

/// Frees memory of a pool, whichever context is current, if any.
pub(crate) fn free_in(pool: Pool, address: u64) -> Option<CUresult> {
    free(pool, address).code()
}

#[inline]
fn free(pool: Pool, address: u64) -> Freed {
    let freed = pool.free(address);
    if matches!(freed, Freed::Here(CUDA_SUCCESS)) {
        report::note(pool);
    }
    freed
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    let Some(ask) = real::cuMemGetInfo_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let ask = || unsafe { ask(free, total) };
    let pool = contexts::current_device().and_then(Pool::of_device);
    let Some(pool) = pool.filter(|_| !free.is_null() && !total.is_null()) else { return ask() };
    // In another context the driver serves requests, and the pool affects them only through its idle memory.
    let is_primary = matches!(contexts::current(), Current::Primary(_));
    if is_primary {
        pool.create_if_limited();
    }
    let corrected = corrected(pool, is_primary, || match ask() {
        // SAFETY: not NULL, and the driver has written it.
        CUDA_SUCCESS => Ok((unsafe { free.read() } as u64, unsafe { total.read() } as u64)),
        code => Err(code),
    });
    match corrected {
        Ok(bytes) => {
            // SAFETY: not NULL, so the caller's for writing.
            unsafe { free.write(usize::try_from(bytes).unwrap_or(usize::MAX)) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Queries the driver's free and total memory, and returns the former plus the pool's unused memory. Out of line,
/// because the caller's frame is on the stack while a pool is created.
#[inline(never)]
fn corrected(
    pool: Pool,
    is_primary: bool,
    ask: impl Fn() -> Result<(u64, u64), CUresult>,
) -> Result<u64, CUresult> {
    let Some(mut stats) = pool.stats() else { return ask().map(|(free, _)| free) };
    let (mut free, mut all) = (0, 0);
    // Another thread may grow or trim the pool between the two answers.
    for _ in 0..4 {
        (free, all) = ask()?;
        let before = stats.pool_bytes;
        stats = pool.stats().unwrap_or(stats);
        if stats.pool_bytes == before {
            break;
        }
    }
    // Memory that the pool is returning at this moment may count twice.
    let mut bytes = free.saturating_add(bfc::idle_bytes(&stats)).min(all.saturating_sub(stats.bytes_in_use));
    if is_primary && settings::is_limited() {
        bytes = bytes.min(stats.bytes_limit.saturating_sub(stats.bytes_in_use));
    }
    Ok(bytes)
}
