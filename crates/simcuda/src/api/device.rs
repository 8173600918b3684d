//! Devices and their properties, with the values of a small data-centre device of compute capability 9.0.

use std::ffi::{c_char, c_int};

use cuda_sys::*;

use crate::abi::{Answer, put, put_text, text};
use crate::options::Choice;
use crate::sim::{self, Sim};
use crate::state::green::MULTIPROCESSORS;

/// The name of the device.
const NAME: &str = "simcuda (simulated device)";

pub(crate) fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> Answer {
    sim::lock().device(ordinal)?;
    put(device, ordinal)
}

pub(crate) fn cuDeviceGetCount(count: *mut c_int) -> Answer {
    put(count, sim::lock().devices.len() as c_int)
}

pub(crate) fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> Answer {
    sim::lock().device(device)?;
    let capacity = usize::try_from(length).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if name.is_null() || capacity == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    put_text(name, capacity, NAME);
    Ok(())
}

pub(crate) fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) -> Answer {
    sim::lock().device(device)?;
    let mut bytes = *b"simcuda device \0";
    bytes[15] = device as u8;
    put(uuid, CUuuid { bytes: bytes.map(|byte| byte as c_char) })
}

pub(crate) fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> Answer {
    cuDeviceGetUuid(uuid, device)
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> Answer {
    let capacity = sim::lock().device(device)?.capacity();
    put(bytes, capacity as usize)
}

pub(crate) fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: CUdevice) -> Answer {
    sim::lock().device(device)?;
    let capacity = usize::try_from(length).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if id.is_null() || capacity < 13 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    put_text(id, capacity, &bus_id(device));
    Ok(())
}

fn bus_id(device: CUdevice) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

pub(crate) fn cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char) -> Answer {
    let id = text(id)?.to_ascii_uppercase();
    let count = sim::lock().devices.len() as CUdevice;
    let found = (0..count).find(|device| bus_id(*device).ends_with(&id));
    put(device, found.ok_or(CUDA_ERROR_INVALID_DEVICE)?)
}

pub(crate) fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    put(value, property(&sim, attribute, device)?)
}

/// Returns an attribute by its number in `CUdevice_attribute` of cuda.h.
fn property(sim: &Sim, attribute: CUdevice_attribute, device: CUdevice) -> Answer<c_int> {
    let option = |choice: Choice| c_int::from(sim.options.is_on(choice));
    Ok(match attribute {
        // Threads of a block and their shape, and blocks of a grid and theirs.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        // Shared memory: of a block, of a processor, of a block that opts in, and reserved for the system.
        8 => 48 << 10,
        81 => 228 << 10,
        97 => 227 << 10,
        111 => 1 << 10,
        // Constant memory, warps, pitch, registers.
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65536,
        // Clock rates in kHz, the width of the bus in bits, the cache.
        13 => 1_500_000,
        36 => 2_000_000,
        37 => 4096,
        38 => 32 << 20,
        // Alignments of textures, surfaces and pitches.
        14 | 30 => 512,
        51 => 32,
        // Processors, their threads and blocks, copy engines.
        16 => MULTIPROCESSORS as c_int,
        39 => 2048,
        106 => 32,
        40 => 3,
        // Overlap, mapping of host memory, concurrent kernels, unified addresses, priorities.
        15 | 19 | 31 | 41 | 78 => 1,
        79 | 80 => 1,
        // The PCI location.
        33 => device + 1,
        34 | 50 => 0,
        75 => 9,
        // Streams wait for values of 8 bytes, and for none of some bits.
        122 | 123 => 1,
        76 => 0,
        // Managed memory, and the host's access to it.
        83 | 89 => 1,
        90 | 91 | 95 | 99 => 1,
        102 | 103 => option(Choice::Vmm),
        110 => c_int::from(sim.has_rdma_flag()),
        115 => option(Choice::Pools),
        // A pool's memory cannot be exported here.
        119 | 125 => 0,
        // Everything else is a feature that is not simulated, or a count of 0.
        17..=150 => 0,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

pub(crate) fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    sim.device(peer)?;
    put(can, c_int::from(sim.can_access_peer(device, peer)))
}

pub(crate) fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: CUdevice_P2PAttribute,
    from: CUdevice,
    to: CUdevice,
) -> Answer {
    let mut sim = sim::lock();
    sim.device(from)?;
    sim.device(to)?;
    if from == to || !(1..=4).contains(&attribute) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let is_access = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    put(value, c_int::from(is_access && sim.can_access_peer(from, to)))
}

/// "Returns CUDA_ERROR_INVALID_CONTEXT if [...] the current context is peerContext", and PEER_ACCESS_UNSUPPORTED if
/// cuDeviceCanAccessPeer returns 0, as it does for contexts of the same device.
pub(crate) fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> Answer {
    let mut sim = sim::lock();
    let own = sim.owner()?;
    let peer = sim.context(peer)?;
    let peer = sim.root(peer);
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if peer == own {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    if !sim.can_access_peer(sim.contexts[&own].device(), sim.contexts[&peer].device()) {
        return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let context = sim.contexts.get_mut(&own).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    if context.add_peer(peer) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
}

pub(crate) fn cuCtxDisablePeerAccess(peer: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let own = sim.owner()?;
    let peer = sim.context(peer)?;
    let peer = sim.root(peer);
    let context = sim.contexts.get_mut(&own).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    if context.remove_peer(peer) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) }
}
