//! The order of streams and private pools, with the C functions as methods of a pool.
//!
//! A stream is its handle as a number: 0 and 1 are the legacy default stream, 2 the calling thread's own.

use super::*;

/// `bfc_record_stream`.
pub fn record_stream(device: i32, address: u64, stream: u64) -> Status {
    bfc_record_stream(device, pointer(address), pointer(stream))
}

/// `bfc_forget_stream`.
pub fn forget_stream(device: i32, stream: u64) -> Status {
    bfc_forget_stream(device, pointer(stream))
}

/// `bfc_stream_synchronized`.
pub fn stream_synchronized(device: i32, stream: u64) -> Status {
    bfc_stream_synchronized(device, pointer(stream))
}

impl Pool {
    /// `bfc_forget_stream`, which may fail.
    pub fn try_forget(&self, stream: u64) -> Status {
        forget_stream(self.device(), stream)
    }

    /// `bfc_stream_synchronized`, which may fail.
    pub fn vouch(&self, stream: u64) -> Status {
        stream_synchronized(self.device(), stream)
    }

    /// `bfc_pool_begin`.
    pub fn begin_private(&self, name: u64, stream: u64) -> Status {
        bfc_pool_begin(self.device(), name, pointer(stream))
    }

    /// `bfc_pool_end`.
    pub fn end_private(&self, name: u64, stream: u64) -> Status {
        bfc_pool_end(self.device(), name, pointer(stream))
    }

    /// `bfc_pool_release`.
    pub fn release_private(&self, name: u64) -> Status {
        bfc_pool_release(self.device(), name)
    }

    /// `bfc_trim`, or why not.
    pub fn try_trim(&self, keep: u64) -> Result<u64, Status> {
        let mut released = u64::MAX;
        // SAFETY: the out-pointer is valid for writing.
        match unsafe { bfc_trim(self.device(), keep, &mut released) } {
            BFC_OK => Ok(released),
            status => {
                assert_eq!(released, 0, "0 on failure");
                Err(status)
            }
        }
    }
}
