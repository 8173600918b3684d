//! Shared by the tests of the C ABI: safe wrappers, pools on devices of their own, a sub-allocator that
//! records its calls, random numbers, child processes.
//!
//! Every call uses the exported C functions, like a C program.

#![allow(dead_code, unused_imports)] // each test binary uses a part

pub mod adapters;
pub mod backend;
pub mod cargo;
pub mod child;
pub mod failing;
pub mod gpu;
pub mod granules;
pub mod guarded;
pub mod hooked;
pub mod hooks;
pub mod log;
pub mod lost;
pub mod mapped;
pub mod ordered;
pub mod pool;
pub mod preload;
pub mod random;
pub mod receive;
pub mod simcuda;
pub mod spans;

pub use backend::{Backend, Layout};
pub use bfc::capi::*;
pub use mapped::Mapped;
pub use pool::{Pool, Range};
pub use random::Random;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A status of the C ABI.
pub type Status = bfc_status_t;

/// Returns an ordinal that no other test of this process uses, because the process has one table of devices.
pub fn fresh_device() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(258);
    let device = NEXT.fetch_add(1, Relaxed);
    assert!(device < 1024, "a test binary has used up all ordinals");
    device
}

/// `BFC_OPTIONS_INIT`.
pub fn options() -> bfc_options_t {
    bfc_options_t {
        struct_size: size_of::<bfc_options_t>(),
        backend: BFC_BACKEND_AUTO,
        flags: 0,
        memory_limit: 0,
        memory_fraction: 0.0,
        fragmentation_fraction: 0.0,
        initial_region_bytes: 0,
        retry_timeout_ms: 0,
        reserved: 0,
        name: std::ptr::null(),
        suballocator: std::ptr::null(),
        growth_policy: BFC_GROWTH_DEFAULT,
        reserved2: 0,
        plan: std::ptr::null(),
    }
}

/// `BFC_REQUEST_INIT` for this many bytes.
pub fn request(bytes: usize) -> bfc_request_t {
    bfc_request_t {
        struct_size: size_of::<bfc_request_t>(),
        bytes,
        alignment: 0,
        stream: std::ptr::null_mut(),
        freed_before: 0,
        flags: 0,
        reserved: 0,
    }
}

/// `BFC_STATS_INIT`.
pub fn stats() -> bfc_stats_t {
    // SAFETY: the struct is integers only.
    let zeros: bfc_stats_t = unsafe { std::mem::zeroed() };
    bfc_stats_t { struct_size: size_of::<bfc_stats_t>(), ..zeros }
}

/// Returns an address as a C pointer.
pub fn pointer(address: u64) -> *mut c_void {
    address as *mut c_void
}

/// `bfc_create`.
pub fn create(device: i32, options: Option<&bfc_options_t>) -> Status {
    let options = options.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: NULL or a whole struct, whose pointers the tests keep alive during the call.
    unsafe { bfc_create(device, options) }
}

/// Calls `bfc_alloc` and checks that the out-pointer is written on every path.
pub fn alloc(device: i32, bytes: usize) -> Result<u64, Status> {
    // SAFETY: `out` is valid for writing.
    out_address(|out| unsafe { bfc_alloc(device, bytes, out) })
}

/// `bfc_alloc_aligned`.
pub fn alloc_aligned(device: i32, bytes: usize, alignment: usize) -> Result<u64, Status> {
    // SAFETY: `out` is valid for writing.
    out_address(|out| unsafe { bfc_alloc_aligned(device, bytes, alignment, out) })
}

/// `bfc_alloc_ex`.
pub fn alloc_ex(device: i32, request: &bfc_request_t) -> Result<u64, Status> {
    // SAFETY: the request is a whole struct; `out` is valid for writing.
    out_address(|out| unsafe { bfc_alloc_ex(device, request, out) })
}

/// `bfc_alloc_freed_before`.
pub fn alloc_freed_before(device: i32, bytes: usize, stamp: u64) -> Result<u64, Status> {
    // SAFETY: `out` is valid for writing.
    out_address(|out| unsafe { bfc_alloc_freed_before(device, bytes, stamp, out) })
}

fn out_address(call: impl FnOnce(*mut *mut c_void) -> Status) -> Result<u64, Status> {
    let garbage = pointer(0xdead_beef);
    let mut out = garbage;
    let status = call(&mut out);
    assert_ne!(out, garbage, "the out-pointer was not written");
    if status == BFC_OK {
        return Ok(out as u64);
    }
    assert!(out.is_null(), "a failure left {out:?} in the out-pointer");
    Err(status)
}

/// `bfc_free`.
pub fn free(device: i32, address: u64) -> Status {
    bfc_free(device, pointer(address))
}

/// `bfc_alloc_async`.
pub fn alloc_async(device: i32, bytes: usize, stream: u64) -> Result<u64, Status> {
    // SAFETY: `out` is valid for writing.
    out_address(|out| unsafe { bfc_alloc_async(device, bytes, pointer(stream), out) })
}

/// `bfc_free_async`.
pub fn free_async(device: i32, address: u64, stream: u64) -> Status {
    bfc_free_async(device, pointer(address), pointer(stream))
}

/// `bfc_owner`.
pub fn owner(address: u64) -> Result<i32, Status> {
    let mut device = -7;
    // SAFETY: the out-pointer is valid for writing.
    let status = unsafe { bfc_owner(pointer(address), &mut device) };
    if status == BFC_OK {
        return Ok(device);
    }
    assert_eq!(device, 0, "0 on failure");
    Err(status)
}

/// Returns the message of this thread's last failure.
pub fn last_error() -> String {
    let mut buffer = [0 as c_char; 2048];
    // SAFETY: the buffer has that many bytes.
    let length = unsafe { bfc_last_error(buffer.as_mut_ptr(), buffer.len()) };
    // SAFETY: the text ends with a NUL within the buffer.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().expect("UTF-8").to_owned();
    assert_eq!(text.len(), length);
    text
}

/// `bfc_scope_begin` with a name of UTF-8 without NUL.
pub fn scope_begin(operation: &str, step: u64) -> Status {
    let name = std::ffi::CString::new(operation).expect("no NUL in a name");
    // SAFETY: the name ends with a NUL.
    unsafe { bfc_scope_begin(name.as_ptr(), step) }
}

/// Rounds up to the unit of allocation.
pub fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

/// KiB.
pub const KIB: u64 = 1 << 10;
/// MiB.
pub const MIB: u64 = 1 << 20;
/// GiB.
pub const GIB: u64 = 1 << 30;

/// The flags of most pools of real programs.
pub const GROWING: u32 = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
