//! Host memory that may run out: boxes that are allocated fallibly, and the error.

/// Allocates a box. Returns an error where `Box::new` would abort.
pub fn try_box<T>(value: T) -> Result<Box<T>, HostMemoryExhausted> {
    try_box_with(|| value)
}

/// Allocates a box for a value that is created once there is memory for it, so that it can be built in place instead of
/// on the stack.
#[inline(always)]
pub fn try_box_with<T>(make: impl FnOnce() -> T) -> Result<Box<T>, HostMemoryExhausted> {
    let layout = std::alloc::Layout::new::<T>();
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the layout is not of size 0.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(HostMemoryExhausted);
    }
    // SAFETY: the place is new, aligned and large enough for a T.
    unsafe { place.write(make()) };
    // SAFETY: the place came from the global allocator with the layout of a T, and holds one.
    Ok(unsafe { Box::from_raw(place) })
}

/// Host memory ran out. Every allocation inside the library is fallible and reports this error instead of aborting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemoryExhausted;

impl From<std::collections::TryReserveError> for HostMemoryExhausted {
    fn from(_: std::collections::TryReserveError) -> Self {
        HostMemoryExhausted
    }
}
