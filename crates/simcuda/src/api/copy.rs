//! Copies and fills.
//!
//! Which calls block follows "API synchronization behavior" in the CUDA Driver API manual. A synchronous copy to the
//! host, or from pinned memory, returns when it is done, and so does a fill of pinned memory. A synchronous copy from
//! pageable memory returns once that is staged, "but the DMA to final destination may not have completed". An
//! asynchronous copy from pageable memory is staged at the call. One to pageable memory "might be synchronous", and is
//! so here. One within the host is synchronous. Copies within devices and other fills do not wait.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use cuda_sys::*;

use crate::abi::Answer;
use crate::rules::blocking;
use crate::rules::streams;
use crate::sim::{self, Guard, Sim};
use crate::state::context::Agent;
use crate::state::memory::Origin;
use crate::state::work::{Source, Work};

/// The kind of memory at an address, for a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Device,
    Pinned,
    Pageable,
}

fn side(sim: &Sim, at: u64) -> Side {
    match sim.find(at).map(|(_, there)| there.origin) {
        Some(Origin::Host(_) | Origin::Registered(_)) => Side::Pinned,
        Some(_) => Side::Device,
        None if sim.is_device_address(at) => Side::Device,
        None => Side::Pageable,
    }
}

/// Copies on a stream, or on the default stream for a copy that is not asynchronous. The rules for access are in
/// `access`.
fn copy(to: u64, from: u64, bytes: usize, stream: Option<CUstream>) -> Answer {
    copy_rows(&[(to, from)], bytes, None, stream)
}

/// Copies rows of this many bytes like [`copy`], as one item of work, optionally with named contexts of the destination
/// and of the source.
pub(super) fn copy_rows(
    rows: &[(u64, u64)],
    bytes: usize,
    named: Option<[CUcontext; 2]>,
    stream: Option<CUstream>,
) -> Answer {
    let mut sim = sim::lock();
    let current = sim.current()?;
    let current = sim.agent(current);
    let named = match named {
        Some([to, from]) => Some([sim.context(to)?, sim.context(from)?].map(|context| sim.agent(context))),
        None => None,
    };
    let number = sim.stream(stream.unwrap_or(std::ptr::null_mut()))?;
    let is_captured = sim.streams[&number].capture().is_some();
    if stream.is_none() {
        sim.forbid_implicit(number, true)?;
        sim.forbid_captured(number)?;
        sim.forbid_unsafe()?;
        for (to, from) in rows {
            sim = settle(sim, number, *to, *from)?;
        }
    }
    // All rows are in one allocation.
    let Some(&(to, from)) = rows.first().filter(|_| bytes > 0) else { return Ok(()) };
    let (target, origin) = (side(&sim, to), side(&sim, from));
    let mut works = Vec::with_capacity(rows.len());
    for &(to, from) in rows {
        let is_refused = match named {
            Some(named) => {
                [to, from].into_iter().zip(named).any(|(at, named)| sim.is_named_wrongly(named, at))
            }
            None => [to, from].into_iter().any(|at| sim.is_copy_refused(current, at, bytes as u64)),
        };
        if is_refused {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let source = match origin {
            Side::Pageable if !is_captured => {
                // SAFETY: the caller guarantees the host's memory, as with any driver.
                Source::Staged(unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec())
            }
            _ => Source::Address(from),
        };
        works.push(Work::Copy { to, from: source, bytes: bytes as u64, named });
    }
    let work = Work::of_all(works);
    let devices = match stream {
        None => sim.serialized(current, named, to, from),
        Some(_) => Vec::new(),
    };
    let pending = sim.all_of(|_, device| devices.contains(&device));
    let (mut sim, point) = streams::submit(sim, number, work, pending)?;
    let contexts = sim.contexts.iter().filter(|(_, context)| devices.contains(&context.device()));
    for context in contexts.map(|(handle, _)| *handle).collect::<Vec<_>>() {
        sim.add_gate(context, point);
    }
    let blocks = match stream {
        None => target != Side::Device || origin == Side::Pinned || sim.synchronizes(to),
        Some(_) if is_captured => false,
        Some(_) => target == Side::Pageable || (target != Side::Device && origin != Side::Device),
    };
    if !blocks {
        return Ok(());
    }
    let mut sim = blocking::finish(sim, &[point])?;
    sim.current().map(drop)
}

/// "For transfers from pageable host memory to device memory, a stream sync is performed before the copy is initiated"
/// (API synchronization behavior).
fn settle(sim: Guard, stream: u64, to: u64, from: u64) -> Answer<Guard> {
    if side(&sim, from) != Side::Pageable || side(&sim, to) != Side::Device {
        return Ok(sim);
    }
    let mut points = sim.implicit(stream);
    points.push(sim.end_of(stream));
    blocking::finish(sim, &points)
}

impl Sim {
    /// Returns the devices whose work a synchronous copy waits for, and whose later work waits for it: "A copy (in the
    /// implicit NULL stream) between the memories of two different devices: does not start until all commands previously
    /// issued to either device have completed and runs to completion before any commands [...] issued after the copy to
    /// either device can start" (guide, Peer-to-Peer Memory Copy). cudaMemcpyPeer adds the current device.
    fn serialized(&self, current: Agent, named: Option<[Agent; 2]>, to: u64, from: u64) -> Vec<CUdevice> {
        let mapped = |at| Some(self.physical.get(&self.mapping_at(at)?.1.handle())?.device());
        let there = |at| match self.find(at) {
            Some((_, there)) => there.origin.is_of_device().then_some(there.device),
            None => mapped(at),
        };
        let [to, from] = match named {
            Some(named) => named.map(|agent| Some(agent.device)),
            None => [to, from].map(there),
        };
        match (to, from) {
            (Some(to), Some(from)) if to != from => vec![current.device, to, from],
            _ => Vec::new(),
        }
    }

    /// "Synchronize every synchronous memory operation initiated on this region" (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
    fn synchronizes(&self, at: u64) -> bool {
        self.find(at).is_some_and(|(_, there)| there.sync_memops)
    }
}

/// Fills on a stream, or on the default stream.
fn set(at: u64, width: u64, value: u32, count: usize, stream: Option<CUstream>) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    if !at.is_multiple_of(width) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let number = sim.stream(stream.unwrap_or(std::ptr::null_mut()))?;
    if stream.is_none() {
        sim.forbid_implicit(number, true)?;
        sim.forbid_captured(number)?;
        sim.forbid_unsafe()?;
    }
    let blocks = stream.is_none() && side(&sim, at) == Side::Pinned;
    let work = Work::Set { at, count: count as u64, width, value };
    let (sim, point) = streams::submit(sim, number, work, Vec::new())?;
    if !blocks {
        return Ok(());
    }
    let mut sim = blocking::finish(sim, &[point])?;
    sim.current().map(drop)
}

pub(crate) fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Answer {
    copy(to, from, bytes, None)
}

pub(crate) fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    copy(to, from, bytes, Some(stream))
}

pub(crate) fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> Answer {
    copy(to, from.addr() as u64, bytes, None)
}

pub(crate) fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> Answer {
    copy(to.addr() as u64, from, bytes, None)
}

pub(crate) fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Answer {
    copy(to, from, bytes, None)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy(to, from.addr() as u64, bytes, Some(stream))
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy(to.addr() as u64, from, bytes, Some(stream))
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy(to, from, bytes, Some(stream))
}

/// Copies between contexts. Neither needs access to the other's memory. Only kernels do.
pub(crate) fn cuMemcpyPeer(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
) -> Answer {
    copy_rows(&[(to, from)], bytes, Some([to_context, from_context]), None)
}

pub(crate) fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy_rows(&[(to, from)], bytes, Some([to_context, from_context]), Some(stream))
}

pub(crate) fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) -> Answer {
    set(at, 1, value.into(), count, None)
}

pub(crate) fn cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) -> Answer {
    set(at, 2, value.into(), count, None)
}

pub(crate) fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) -> Answer {
    set(at, 4, value, count, None)
}

pub(crate) fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) -> Answer {
    set(at, 1, value.into(), count, Some(stream))
}

pub(crate) fn cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) -> Answer {
    set(at, 2, value.into(), count, Some(stream))
}

pub(crate) fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) -> Answer {
    set(at, 4, value, count, Some(stream))
}
