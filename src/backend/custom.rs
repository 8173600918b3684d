//! Regions from functions supplied by the caller.

use super::{Backend, Granted};
use crate::error::{ErrorKind, call_back};
use std::ffi::c_void;

/// Allocates a region. See `bfc_suballocator_t`.
pub type AllocCallback = unsafe extern "C" fn(
    user_data: *mut c_void,
    alignment: usize,
    bytes: usize,
    bytes_received: *mut usize,
) -> *mut c_void;

/// Frees a region. See `bfc_suballocator_t`.
pub type FreeCallback = unsafe extern "C" fn(user_data: *mut c_void, ptr: *mut c_void, bytes: usize);

#[derive(Clone, Copy)]
pub(crate) struct Custom {
    pub(crate) user_data: *mut c_void,
    pub(crate) alloc: AllocCallback,
    pub(crate) free: FreeCallback,
    pub(crate) coalesces: bool,
}

// SAFETY: the creator of an allocator over callbacks guarantees that the callbacks, with their pointer, may be called
// from any thread.
unsafe impl Send for Custom {}
// SAFETY: as above.
unsafe impl Sync for Custom {}

impl Backend for Custom {
    fn alloc(&self, alignment: u64, bytes: u64) -> Result<Option<Granted>, ErrorKind> {
        let (Ok(alignment), Ok(bytes)) = (usize::try_from(alignment), usize::try_from(bytes)) else {
            return Ok(None);
        };
        // A callback that does not report a size is taken to have allocated the requested size.
        let mut received = bytes;
        // SAFETY: the caller of bfc_create guarantees the function and its pointer.
        let call = || unsafe { (self.alloc)(self.user_data, alignment, bytes, &mut received) };
        let base = call_back(call);
        Ok((!base.is_null()).then_some(Granted { base: base as u64, bytes: received as u64 }))
    }

    fn free(&self, granted: Granted) -> Result<(), ErrorKind> {
        let base = granted.base as *mut c_void;
        // SAFETY: as above. The range is one that the callback allocated.
        call_back(|| unsafe { (self.free)(self.user_data, base, granted.bytes as usize) });
        Ok(())
    }

    fn coalesces(&self) -> bool {
        self.coalesces
    }

    fn total_memory(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> &'static str {
        "custom"
    }
}
