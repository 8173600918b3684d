//! Copies of rectangles and boxes between memory. Arrays are not copied to or from.

use std::ffi::c_void;

use cuda_sys::*;

use super::copy::copy_rows;
use crate::abi::{Answer, get};

/// A corner of a box, and its distances to the next row and slice.
struct Corner {
    at: u64,
    pitch: usize,
    slice: usize,
}

/// The parameters of one side of a copy.
struct Side {
    kind: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    pitch: usize,
    height: usize,
    /// Bytes, rows and slices.
    offset: [usize; 3],
}

/// "If specified, srcPitch must be greater than or equal to WidthInBytes + srcXInBytes", and "srcHeight must be greater
/// than or equal to Height + srcY".
fn corner(side: &Side, [width, height, depth]: [usize; 3]) -> Answer<Corner> {
    let base = match side.kind {
        CU_MEMORYTYPE_HOST => side.host.addr() as u64,
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => side.device,
        CU_MEMORYTYPE_ARRAY => return Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let [x, y, z] = side.offset;
    let pitch = if side.pitch == 0 { width + x } else { side.pitch };
    let rows = if side.height == 0 { height + y } else { side.height };
    if pitch < width + x || (depth > 1 && rows < height + y) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let slice = pitch * rows;
    Ok(Corner { at: base + (z * slice + y * pitch + x) as u64, pitch, slice })
}

/// The rows of a copy, and their bytes.
pub(super) fn rows(copy: &CUDA_MEMCPY3D) -> Answer<(Vec<(u64, u64)>, usize)> {
    let extent = [copy.WidthInBytes, copy.Height, copy.Depth];
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost.cast_const(),
        device: copy.dstDevice,
        pitch: copy.dstPitch,
        height: copy.dstHeight,
        offset: [copy.dstXInBytes, copy.dstY, copy.dstZ],
    };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        pitch: copy.srcPitch,
        height: copy.srcHeight,
        offset: [copy.srcXInBytes, copy.srcY, copy.srcZ],
    };
    let (to, from) = (corner(&to, extent)?, corner(&from, extent)?);
    let place =
        |corner: &Corner, z: usize, y: usize| corner.at + (z * corner.slice + y * corner.pitch) as u64;
    let places = (0..copy.Depth).flat_map(|z| (0..copy.Height).map(move |y| (z, y)));
    Ok((places.map(|(z, y)| (place(&to, z, y), place(&from, z, y))).collect(), copy.WidthInBytes))
}

fn flat(copy: *const CUDA_MEMCPY2D) -> Answer<CUDA_MEMCPY3D> {
    let copy = get(copy)?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcPitch: copy.srcPitch,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstPitch: copy.dstPitch,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    })
}

fn copy(copy: &CUDA_MEMCPY3D, stream: Option<CUstream>) -> Answer {
    let (rows, bytes) = rows(copy)?;
    copy_rows(&rows, bytes, None, stream)
}

pub(crate) fn cuMemcpy2D_v2(parameters: *const CUDA_MEMCPY2D) -> Answer {
    copy(&flat(parameters)?, None)
}

pub(crate) fn cuMemcpy2DUnaligned_v2(parameters: *const CUDA_MEMCPY2D) -> Answer {
    cuMemcpy2D_v2(parameters)
}

pub(crate) fn cuMemcpy2DAsync_v2(parameters: *const CUDA_MEMCPY2D, stream: CUstream) -> Answer {
    copy(&flat(parameters)?, Some(stream))
}

pub(crate) fn cuMemcpy3D_v2(parameters: *const CUDA_MEMCPY3D) -> Answer {
    copy(&get(parameters)?, None)
}

pub(crate) fn cuMemcpy3DAsync_v2(parameters: *const CUDA_MEMCPY3D, stream: CUstream) -> Answer {
    copy(&get(parameters)?, Some(stream))
}
