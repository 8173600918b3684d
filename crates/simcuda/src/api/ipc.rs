//! Sharing plain device memory between processes. A handle names the whole allocation: its process, the file with the
//! device's memory there, and the position in it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cuda_sys::*;

use crate::abi::{Answer, put};
use crate::sim;
use crate::state::memory::Origin;
use crate::system::{self, Access, PAGE};

/// The contents of a handle's 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Name {
    magic: u64,
    process: u32,
    file: c_int,
    /// The pages of the allocation, in the file.
    offset: u64,
    span: u64,
    /// The position in the pages where it begins, and its length.
    inset: u64,
    bytes: u64,
    unique: u64,
    device: CUdevice,
    rest: u32,
}

const MAGIC: u64 = u64::from_le_bytes(*b"simcuda1");

fn to_bytes(name: Name) -> CUipcMemHandle {
    // SAFETY: both are 64 bytes of plain numbers without padding.
    let reserved = unsafe { std::mem::transmute::<Name, [c_char; 64]>(name) };
    CUipcMemHandle { reserved }
}

fn from_bytes(handle: CUipcMemHandle) -> Answer<Name> {
    // SAFETY: both are 64 bytes of plain numbers without padding, and any numbers are valid.
    let name = unsafe { std::mem::transmute::<[c_char; 64], Name>(handle.reserved) };
    if name.magic == MAGIC { Ok(name) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
}

/// "Base pointer to previously allocated device memory". An interior address returns the handle of the whole
/// allocation, without the offset, as drivers are assumed to do. Virtual memory and pool memory have no such handles.
pub(crate) fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let (start, there) = sim.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if there.origin != Origin::Plain {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let arena = sim.arenas.get(there.device as usize).and_then(Option::as_ref);
    let arena = arena.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let name = Name {
        magic: MAGIC,
        process: std::process::id(),
        file: arena.file(),
        offset: there.span.0 - arena.base(),
        span: there.span.1,
        inset: start - there.span.0,
        bytes: there.bytes,
        unique: there.unique,
        device: there.device,
        rest: 0,
    };
    put(handle, to_bytes(name))
}

/// "CUipcMemHandles from each CUdevice in a given process may only be opened by one CUcontext per CUdevice per other
/// process". That context may open them any number of times and gets the same address. "cuDeviceCanAccessPeer can
/// determine if a mapping is possible". Our choices: devices have the same ordinals in both processes, and the error
/// code if a mapping is not possible.
pub(crate) fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    let name = from_bytes(handle)?;
    if address.is_null() || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // A process cannot open a handle that it exported itself.
    if name.process == std::process::id() {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    let device = sim.contexts[&context].device();
    let key = [u64::from(name.process), name.device as u64, name.unique];
    for (at, there) in &mut sim.allocations {
        let Origin::Imported { opened, key: known } = &mut there.origin else { continue };
        if there.device == device && known[..2] == key[..2] {
            if there.context != context {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            if *known == key {
                *opened += 1;
                return put(address, *at);
            }
        }
    }
    if device != name.device && !sim.can_access_peer(device, name.device) {
        return Err(CUDA_ERROR_MAP_FAILED);
    }
    let file = system::open_of(name.process, name.file).ok_or(CUDA_ERROR_MAP_FAILED)?;
    let mapped = system::map(0, name.span, file, name.offset, Access::Write);
    system::close(file);
    let mapped = mapped.ok_or(CUDA_ERROR_MAP_FAILED)?;
    let at = mapped + name.inset;
    let origin = Origin::Imported { opened: 1, key };
    sim.add_allocation(at, device, context, name.bytes, origin, (mapped, name.span));
    put(address, at)
}

pub(crate) fn cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> Answer {
    cuIpcOpenMemHandle_v2(address, handle, flags)
}

/// "When the reference count reaches 0, this API unmaps the memory."
pub(crate) fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let there = sim.allocations.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Origin::Imported { opened, .. } = &mut there.origin else { return Err(CUDA_ERROR_INVALID_VALUE) };
    *opened -= 1;
    if *opened == 0 {
        sim.release(address);
    }
    Ok(())
}

/// "Users must ensure the dptr and size are aligned to the host page size". Otherwise the result is INVALID_VALUE. The
/// range must be in one allocation of cuMemAlloc. Ranges of virtual memory are not simulated. "The handle will be
/// interpreted as a pointer to an integer to store the dma_buf file descriptor". Here it is the descriptor of the
/// device's whole memory.
pub(crate) fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: CUmemRangeHandleType,
    flags: u64,
) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let bytes = bytes as u64;
    let is_whole = address.is_multiple_of(PAGE) && bytes != 0 && bytes.is_multiple_of(PAGE);
    if kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || !is_whole {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (start, there) = sim.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if there.origin != Origin::Plain {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if bytes > start + there.bytes - address {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let arena = sim.arenas.get(there.device as usize).and_then(Option::as_ref);
    let file = arena.and_then(|arena| system::duplicate(arena.file())).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    put(handle.cast(), file)
}

const _: () = assert!(size_of::<Name>() == size_of::<CUipcMemHandle>());
