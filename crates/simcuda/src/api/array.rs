//! Arrays and mipmapped arrays.

use std::ffi::c_uint;

use cuda_sys::*;

use crate::abi::{Answer, get, put};
use crate::handles::Kind;
use crate::sim;

/// The bytes of an element: "NumChannels specifies the number of packed components per CUDA array element; it may be 1, 2,
/// or 4". Formats of several planes and compressed ones are not simulated.
fn element(format: CUarray_format, channels: c_uint) -> Answer<u64> {
    let component = match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    };
    match channels {
        1 | 2 | 4 => Ok(component * u64::from(channels)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The bytes of all levels. An extent of 0 is an array of fewer dimensions.
fn bytes(array: &CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Answer<u64> {
    if array.Width == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let element = element(array.Format, array.NumChannels)?;
    let extents = [array.Width, array.Height, array.Depth].map(|extent| extent.max(1) as u64);
    let level = |level: u32| extents.iter().map(move |extent| (extent >> level).max(1));
    let of_level = |number: u32| level(number).try_fold(element, u64::checked_mul);
    let all =
        (0..levels.clamp(1, u64::BITS)).map(of_level).try_fold(0, |sum: u64, bytes| sum.checked_add(bytes?));
    all.ok_or(CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayCreate_v2(array: *mut CUarray, description: *const CUDA_ARRAY_DESCRIPTOR) -> Answer {
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = get(description)?;
    let description = CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 };
    cuArray3DCreate_v2(array, &raw const description)
}

pub(crate) fn cuArray3DCreate_v2(array: *mut CUarray, description: *const CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    let bytes = bytes(&get(description)?, 1)?;
    put(array, std::ptr::null_mut())?;
    let handle = sim::lock().make_array(Kind::Array, bytes)?;
    put(array, handle as CUarray)
}

pub(crate) fn cuArrayDestroy(array: CUarray) -> Answer {
    sim::lock().destroy_array(Kind::Array, array.addr() as u64)
}

/// "numMipmapLevels [...] is clamped to the range [1, 1 + floor(log2(max(width, height, depth)))]".
pub(crate) fn cuMipmappedArrayCreate(
    array: *mut CUmipmappedArray,
    description: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Answer {
    let description = get(description)?;
    let largest = description.Width.max(description.Height).max(description.Depth).max(1);
    let bytes = bytes(&description, levels.clamp(1, 1 + largest.ilog2()))?;
    put(array, std::ptr::null_mut())?;
    let handle = sim::lock().make_array(Kind::Mipmap, bytes)?;
    put(array, handle as CUmipmappedArray)
}

pub(crate) fn cuMipmappedArrayDestroy(array: CUmipmappedArray) -> Answer {
    sim::lock().destroy_array(Kind::Mipmap, array.addr() as u64)
}
