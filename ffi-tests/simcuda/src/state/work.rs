//! What a device is told to do.

use std::ffi::c_void;

use cuda_sys::{CUDA_SUCCESS, CUdevice, CUresult, CUstream, CUstreamCallback};

use super::context::Agent;

/// A function of the program.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void);

/// An item of work.
#[derive(Clone)]
pub(crate) enum Work {
    /// A simulated kernel of the program's, or a host function: called with an argument.
    Call {
        function: Function,
        argument: u64,
    },
    /// `cuStreamAddCallback`.
    Callback {
        function: CUstreamCallback,
        stream: u64,
        argument: u64,
    },
    /// A simulated kernel: fills a range with a pattern of 8 bytes.
    Fill {
        at: u64,
        bytes: u64,
        pattern: u64,
    },
    /// A simulated kernel: reads a range and finds the pattern, or a mismatch is counted.
    Expect {
        at: u64,
        bytes: u64,
        pattern: u64,
    },
    Copy {
        to: u64,
        from: Source,
        bytes: u64,
        /// The destination's context and the source's, if the call has named them.
        named: Option<[Agent; 2]>,
    },
    /// Elements of 1, 2 or 4 bytes.
    Set {
        at: u64,
        count: u64,
        width: u64,
        value: u32,
    },
    /// A simulated kernel of a module: stores a value in each word of 4 bytes.
    Words {
        at: u64,
        words: u64,
        value: u32,
    },
    /// Another: adds to the word at `wrong` how many words have not that value.
    Compare {
        at: u64,
        words: u64,
        value: u32,
        wrong: u64,
    },
    CopyWords {
        to: u64,
        from: u64,
        words: u64,
    },
    /// Another, which does nothing for so long; see `streams`.
    Delay {
        nanoseconds: u64,
    },
    /// Puts a message into a channel.
    Send {
        channel: u64,
    },
    /// Takes a message out of a channel; it is not ready before there is one (`streams`).
    Receive {
        channel: u64,
    },
    /// An event's place, with what the event was when it was recorded.
    Record {
        event: u64,
        unique: u64,
    },
    /// Memory that is allocated in order: from here on it may be touched.
    Alloc {
        at: u64,
        bytes: u64,
        unique: u64,
        device: CUdevice,
        /// 0 for the memory of a graph.
        pool: u64,
    },
    /// Memory that is freed in order.
    Free {
        at: u64,
        unique: u64,
    },
    /// Waits for something elsewhere, or stands for a place.
    Nothing,
}

/// What is copied from.
#[derive(Clone)]
pub(crate) enum Source {
    Address(u64),
    /// What pageable memory held when the copy was queued: "the driver may synchronize with the stream and stage the
    /// copy into pinned memory" (API synchronization behavior, CUDA Driver API manual).
    Staged(Vec<u8>),
}

impl Work {
    /// What is to be called with the lock open, in a context that works or has failed with a code. A host function "will
    /// not be called in the event of an error in the CUDA context" (cuLaunchHostFunc); "in the event of a device error,
    /// all subsequently executed callbacks will receive an appropriate CUresult" (cuStreamAddCallback).
    pub(crate) fn call(&self, failure: Option<CUresult>) -> Option<Box<dyn FnOnce()>> {
        match *self {
            Self::Call { function, argument } if failure.is_none() => Some(Box::new(move || {
                // SAFETY: the program gave the function and its argument for that.
                unsafe { function(argument as *mut c_void) }
            })),
            Self::Callback { function: Some(function), stream, argument } => Some(Box::new(move || {
                // SAFETY: the program gave the function and its argument for that.
                unsafe {
                    function(stream as CUstream, failure.unwrap_or(CUDA_SUCCESS), argument as *mut c_void)
                }
            })),
            _ => None,
        }
    }
}
