//! Values passed through the driver's C ABI.
//!
//! Callers of the driver's functions guarantee every pointer here. A wrong pointer crashes the real driver too. NULL is
//! checked, as in the driver.

use std::ffi::{CStr, c_char};

use cuda_sys::{
    CUDA_ERROR_INVALID_VALUE, CUgraphRecaptureCallback, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUresult,
    CUstreamCallback,
};

/// The result of a driver function's implementation. An error is never `CUDA_SUCCESS`.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// Writes a result. NULL is an invalid value.
pub(crate) fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and the caller's place for a result of this type.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes an optional result.
pub(crate) fn put_if<T>(to: *mut T, value: T) {
    let _ = put(to, value);
}

/// Reads a structure of the caller. NULL is an invalid value.
pub(crate) fn get<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and the caller's structure of this type.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads an array of the caller. NULL is an invalid value unless the array is empty.
pub(crate) fn get_all<T: Copy>(from: *const T, count: usize) -> Answer<Vec<T>> {
    (0..count).map(|index| get(from.wrapping_add(index))).collect()
}

/// Reads a name of the caller. NULL is an invalid value.
pub(crate) fn text(from: *const c_char) -> Answer<String> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and the caller's C string.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

/// Writes a C string into the caller's buffer, cut to its length. Returns the full length.
pub(crate) fn put_text(to: *mut c_char, capacity: usize, text: &str) -> usize {
    if !to.is_null() && capacity > 0 {
        let fits = text.len().min(capacity - 1);
        // SAFETY: the caller's buffer has `capacity` bytes, of which fewer are written.
        unsafe { text.as_ptr().cast::<c_char>().copy_to_nonoverlapping(to, fits) };
        put_if(to.wrapping_add(fits), 0);
    }
    text.len()
}

/// An argument in the form kept by the call log.
pub(crate) trait Word {
    fn word(&self) -> u64;
}

impl<T> Word for *mut T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Word for *const T {
    fn word(&self) -> u64 {
        self.addr() as u64
    }
}

macro_rules! words {
    ($($number:ty),*) => {
        $(impl Word for $number {
            fn word(&self) -> u64 {
                *self as u64
            }
        })*
    };
}

words!(i32, u32, i64, u64, usize, i16, u16, i8, u8, f32);

impl Word for CUhostFn {
    fn word(&self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

impl Word for CUstreamCallback {
    fn word(&self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

impl Word for CUgraphRecaptureCallback {
    fn word(&self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

impl Word for CUipcMemHandle {
    fn word(&self) -> u64 {
        0
    }
}

impl Word for CUipcEventHandle {
    fn word(&self) -> u64 {
        0
    }
}
