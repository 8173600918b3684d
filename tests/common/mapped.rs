//! A sub-allocator that provides real memory, by `mmap`, and counts it.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The bytes that it has provided. It must not move while pools use it.
#[derive(Default)]
pub struct Mapped {
    held: Box<AtomicU64>,
}

impl Mapped {
    /// Returns the granted bytes.
    pub fn held(&self) -> u64 {
        self.held.load(SeqCst)
    }

    /// The struct that C programs fill.
    pub fn functions(&self) -> bfc_suballocator_t {
        bfc_suballocator_t {
            struct_size: size_of::<bfc_suballocator_t>(),
            user_data: std::ptr::from_ref::<AtomicU64>(&self.held).cast_mut().cast(),
            alloc: Some(alloc_mapped),
            free: Some(free_mapped),
            supports_coalescing: 0,
            reserved: 0,
        }
    }
}

unsafe extern "C" fn alloc_mapped(
    user_data: *mut c_void,
    _: usize,
    bytes: usize,
    _: *mut usize,
) -> *mut c_void {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping anywhere.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    // SAFETY: the counter outlives the pools.
    unsafe { &*user_data.cast::<AtomicU64>() }.fetch_add(bytes as u64, SeqCst);
    memory
}

unsafe extern "C" fn free_mapped(user_data: *mut c_void, memory: *mut c_void, bytes: usize) {
    // SAFETY: the memory came from `alloc_mapped`, and nothing uses it.
    assert_eq!(unsafe { libc::munmap(memory, bytes) }, 0);
    // SAFETY: as above.
    unsafe { &*user_data.cast::<AtomicU64>() }.fetch_sub(bytes as u64, SeqCst);
}
