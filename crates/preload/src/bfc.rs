//! libbfc's functions as called by the interposer. Their types are generated from the header (bfc-sys). Functions that
//! accept any arguments have safe wrappers here.

use bfc_sys::{BFC_GROWTH_PREFER_NEED, BFC_OK, bfc_options_t, bfc_stats_t, bfc_status_t};
use std::ffi::{CStr, c_void};

/// The ordinal of pinned host memory.
pub(crate) const PINNED: i32 = 257;

/// Returns options that leave all other settings to the library.
pub(crate) fn options(backend: u32, flags: u32, name: &'static CStr) -> bfc_options_t {
    bfc_options_t {
        struct_size: size_of::<bfc_options_t>(),
        backend,
        flags,
        name: name.as_ptr(),
        growth_policy: BFC_GROWTH_PREFER_NEED,
        ..bfc_options_t::default()
    }
}

/// Declares safe functions around those of the library that check their arguments, which are addresses and numbers.
macro_rules! safe {
    ($($name:ident = $function:ident($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) fn $name($($argument: $type),*) -> bfc_status_t {
            // SAFETY: the function accepts any values: it looks addresses up, and does not read what they point to.
            unsafe { bfc_sys::$function($($argument),*) }
        })*
    };
}

safe! {
    capture_begin = bfc_capture_begin();
    capture_end = bfc_capture_end();
    destroy_forced = bfc_destroy_forced(device: i32);
    device_lost = bfc_device_lost(device: i32);
    free = bfc_free(device: i32, ptr: *mut c_void);
    free_async = bfc_free_async(device: i32, ptr: *mut c_void, stream: *mut c_void);
    forget_stream = bfc_forget_stream(device: i32, stream: *mut c_void);
    set_safe_frontier = bfc_set_safe_frontier(device: i32, count: u64);
}

/// Returns the bytes that a pool holds from the driver and that are not in use.
pub(crate) fn idle_bytes(stats: &bfc_stats_t) -> u64 {
    stats.pool_bytes.saturating_sub(stats.bytes_in_use)
}

/// Returns the statistics of a device's pool, if there is one.
pub(crate) fn stats(device: i32) -> Option<bfc_stats_t> {
    let mut stats = bfc_stats_t { struct_size: size_of::<bfc_stats_t>(), ..bfc_stats_t::default() };
    // SAFETY: the struct has the size that it states.
    let status = unsafe { bfc_sys::bfc_stats(device, &mut stats) };
    (status == BFC_OK).then_some(stats)
}

/// Returns the last stamp given to a free.
pub(crate) fn timestamp(device: i32) -> Option<u64> {
    let mut count = 0;
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { bfc_sys::bfc_timestamp(device, &mut count) };
    (status == BFC_OK).then_some(count)
}

/// Returns the pool that holds the region around an address.
pub(crate) fn owner(address: u64) -> Option<i32> {
    let mut device = 0;
    // SAFETY: any address may be queried, and the pointer is valid for writing.
    let status = unsafe { bfc_sys::bfc_owner(address as *const c_void, &mut device) };
    (status == BFC_OK).then_some(device)
}

/// The longest message that is copied.
pub(crate) const MESSAGE: usize = 512;

/// Formats this thread's last failure in libbfc.
pub(crate) struct LastError;

impl std::fmt::Display for LastError {
    #[inline(never)]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut message = [0_u8; MESSAGE];
        // SAFETY: the buffer has that length.
        unsafe { bfc_sys::bfc_last_error(message.as_mut_ptr().cast(), message.len()) };
        let text = CStr::from_bytes_until_nul(&message).ok().and_then(|text| text.to_str().ok());
        f.write_str(text.unwrap_or_default())
    }
}
