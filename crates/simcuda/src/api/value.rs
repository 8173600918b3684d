//! Values that streams write and wait for.

use std::ffi::c_uint;

use cuda_sys::*;

use crate::abi::Answer;
use crate::rules::streams;
use crate::sim;
use crate::state::memory::Origin;
use crate::state::work::Work;

/// "This function cannot be used with managed memory (cuMemAllocManaged)". An address is aligned to its value.
fn queue(stream: CUstream, at: CUdeviceptr, bytes: u64, work: Work) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let is_managed = sim.find(at).is_some_and(|(_, there)| there.origin == Origin::Managed);
    if !at.is_multiple_of(bytes) || is_managed {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    streams::submit(sim, number, work, Vec::new()).map(drop)
}

fn write(stream: CUstream, at: CUdeviceptr, bytes: u64, value: u64, flags: c_uint) -> Answer {
    match flags {
        CU_STREAM_WRITE_VALUE_DEFAULT | CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER => {
            queue(stream, at, bytes, Work::WriteValue { at, bytes, value })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// A flush of remote writes is not supported, as CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES says.
fn wait(stream: CUstream, at: CUdeviceptr, bytes: u64, value: u64, condition: c_uint) -> Answer {
    match condition {
        CU_STREAM_WAIT_VALUE_GEQ..=CU_STREAM_WAIT_VALUE_NOR => {
            queue(stream, at, bytes, Work::WaitValue { at, bytes, value, condition })
        }
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

pub(crate) fn cuStreamWriteValue32_v2(
    stream: CUstream,
    at: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> Answer {
    write(stream, at, 4, value.into(), flags)
}

pub(crate) fn cuStreamWriteValue64_v2(
    stream: CUstream,
    at: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> Answer {
    write(stream, at, 8, value, flags)
}

pub(crate) fn cuStreamWaitValue32_v2(
    stream: CUstream,
    at: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> Answer {
    wait(stream, at, 4, value.into(), flags)
}

pub(crate) fn cuStreamWaitValue64_v2(
    stream: CUstream,
    at: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> Answer {
    wait(stream, at, 8, value, flags)
}
