//! Structs that may grow. Their first field is the size known to the caller.

use crate::error::{ErrorKind, fail};

/// A `repr(C)` struct whose first field is `struct_size: usize`.
///
/// # Safety
/// All-zero bytes are a valid value, there is no padding, and `BOUNDARIES` are the offsets of the fields.
pub(super) unsafe trait Versioned: Copy {
    const NAME: &'static str;
    /// The offsets of the fields. Each except the first is the end of some version, and so is the whole size.
    const BOUNDARIES: &'static [usize];
}

/// Implements [`Versioned`] for a struct without padding, given all of its fields.
macro_rules! boundaries {
    ($name:ident: $($field:ident),* $(,)?) => {
        const _: () = {
            // If the sizes of the named fields add up to the whole, no field is missing and there is no padding.
            const fn size_of_field<T>(_: fn(&$name) -> &T) -> usize { size_of::<T>() }
            assert!(0 $(+ size_of_field(|s: &$name| &s.$field))* == size_of::<$name>());
        };
        // SAFETY: the fields are integers, floats, pointers and optional functions, all valid as zeros. The assertion
        // above excludes padding. The offsets are computed by the compiler.
        unsafe impl Versioned for $name {
            const NAME: &'static str = stringify!($name);
            const BOUNDARIES: &'static [usize] = &[$(std::mem::offset_of!($name, $field)),*];
        }
    };
}
pub(super) use boundaries;

/// Larger sizes are an error. No struct of this library will have that many bytes.
const LARGEST: usize = 1 << 16;

/// Returns the `struct_size` at `place`, if it is a valid size of the struct.
///
/// # Safety
/// `place` points to a `usize`.
unsafe fn checked_size<T: Versioned>(place: *const T) -> Result<usize, ErrorKind> {
    // SAFETY: it is the first field of the struct.
    let size = unsafe { place.cast::<usize>().read() };
    let known = size <= size_of::<T>();
    let ends_a_version = size == size_of::<T>() || T::BOUNDARIES[1..].contains(&size);
    if known && !ends_a_version || size > LARGEST || !known && !size.is_multiple_of(align_of::<T>()) {
        let (name, right) = (T::NAME, size_of::<T>());
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "struct_size of {name} is {size}, which no version has (this one: {right}); begin with its _INIT macro"
        ));
    }
    Ok(size)
}

/// Reads an input struct of any version. A missing tail reads as zeros. An unknown tail is an error unless it is zero.
///
/// # Safety
/// `place` points to a struct of `struct_size` bytes.
pub(super) unsafe fn read<T: Versioned>(place: *const T) -> Result<T, ErrorKind> {
    // SAFETY: by this function's contract.
    let size = unsafe { checked_size(place)? };
    if size == size_of::<T>() {
        // SAFETY: by this function's contract the whole struct is there, and any bytes of the fields' types are valid.
        return Ok(unsafe { place.read() });
    }
    let known = size.min(size_of::<T>());
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `known` is at most the size of both.
    unsafe { std::ptr::copy_nonoverlapping(place.cast::<u8>(), value.as_mut_ptr().cast(), known) };
    let tail = place.cast::<u8>().wrapping_add(known);
    // SAFETY: the caller's struct has `size` bytes.
    let tail = unsafe { std::slice::from_raw_parts(tail, size - known) };
    if tail.iter().any(|&byte| byte != 0) {
        let name = T::NAME;
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "{name} sets fields that this version of libbfc does not know: use a newer libbfc, or leave them 0"
        ));
    }
    // SAFETY: zeros are a valid value, and so is every prefix of the caller's value over them.
    Ok(unsafe { value.assume_init() })
}

/// Fills an output struct of any version. Fields that this version does not know become 0. `struct_size` stays.
///
/// # Safety
/// `place` points to a writable struct of `struct_size` bytes.
pub(super) unsafe fn write<T: Versioned>(place: *mut T, value: &T) -> Result<(), ErrorKind> {
    // SAFETY: by this function's contract.
    let size = unsafe { checked_size(place.cast_const())? };
    let skip = size_of::<usize>();
    let known = size.min(size_of::<T>());
    let from = std::ptr::from_ref(value).cast::<u8>().wrapping_add(skip);
    let to = place.cast::<u8>().wrapping_add(skip);
    // SAFETY: both have `known` bytes, of which the size field is skipped.
    unsafe { std::ptr::copy_nonoverlapping(from, to, known - skip) };
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { place.cast::<u8>().wrapping_add(known).write_bytes(0, size - known) };
    Ok(())
}
