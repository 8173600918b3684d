//! Device work.

use std::ffi::c_void;

use cuda_sys::{CUDA_SUCCESS, CUdevice, CUresult, CUstream, CUstreamCallback};

use super::context::Agent;

/// A function of the program.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void);

/// An item of work.
#[derive(Clone)]
pub(crate) enum Work {
    /// A simulated kernel that is a function of the program (`simcuda_launch`). Unlike a host function, it tells the host
    /// nothing.
    Kernel {
        function: Function,
        argument: u64,
    },
    /// `cuLaunchHostFunc`, or a host node of a graph.
    HostFunction {
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
    /// A simulated kernel: reads a range and expects the pattern. Otherwise a mismatch is counted.
    Expect {
        at: u64,
        bytes: u64,
        pattern: u64,
    },
    Copy {
        to: u64,
        from: Source,
        bytes: u64,
        /// The contexts of the destination and of the source, if the call named them.
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
    /// A simulated kernel of a module: adds to the word at `wrong` how many words have another value.
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
    /// A simulated kernel of a module: takes that much time and does nothing else. See `streams`.
    Delay {
        nanoseconds: u64,
    },
    /// Puts a message into a channel.
    Send {
        channel: u64,
    },
    /// Takes a message out of a channel. It is not ready before there is one (`streams`).
    Receive {
        channel: u64,
    },
    /// `cuStreamWriteValue32` and its kin: stores 4 or 8 bytes.
    WriteValue {
        at: u64,
        bytes: u64,
        value: u64,
    },
    /// `cuStreamWaitValue32` and its kin: not ready before the condition holds.
    WaitValue {
        at: u64,
        bytes: u64,
        value: u64,
        condition: u32,
    },
    /// A node of a graph: each launch records the event.
    RecordNode {
        event: u64,
    },
    /// A node of a graph: each launch waits for the event's latest record.
    WaitNode {
        event: u64,
    },
    /// Several of these as one item, such as the rows of a rectangle.
    All(Vec<Work>),
    /// An event's position, with the number of the record.
    Record {
        event: u64,
        unique: u64,
    },
    /// Memory allocated in order. Later work may access it.
    Alloc {
        at: u64,
        bytes: u64,
        unique: u64,
        device: CUdevice,
        /// 0 for the memory of a graph.
        pool: u64,
    },
    /// Memory freed in order.
    Free {
        at: u64,
        unique: u64,
    },
    /// Waits for work elsewhere, or marks a position.
    Nothing,
}

/// The source of a copy.
#[derive(Clone)]
pub(crate) enum Source {
    Address(u64),
    /// The contents of pageable memory when the copy was queued: "the driver may synchronize with the stream and stage
    /// the copy into pinned memory" (API synchronization behavior, CUDA Driver API manual).
    Staged(Vec<u8>),
}

/// A range of memory that work touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touch {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) way: Way,
}

/// How work touches memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Reads,
    Writes,
    /// Stores a word that other work may store or poll at the same time.
    Stores,
    /// Waits for such a word.
    Polls,
}

impl Touch {
    fn new(at: u64, bytes: u64, way: Way) -> Self {
        Self { at, bytes, way }
    }
}

impl Work {
    /// Returns work as one item.
    pub(crate) fn of_all(mut works: Vec<Work>) -> Self {
        match works.pop() {
            Some(only) if works.is_empty() => only,
            last => Self::All(works.into_iter().chain(last).collect()),
        }
    }

    /// Returns the ranges of memory that it touches, none of them empty. Those of a function of the program are not
    /// known.
    pub(crate) fn touches(&self) -> Vec<Touch> {
        let mut touches = match *self {
            Self::Fill { at, bytes, .. } => vec![Touch::new(at, bytes, Way::Writes)],
            Self::Expect { at, bytes, .. } => vec![Touch::new(at, bytes, Way::Reads)],
            Self::Set { at, count, width, .. } => {
                vec![Touch::new(at, count.saturating_mul(width), Way::Writes)]
            }
            Self::Words { at, words, .. } => vec![Touch::new(at, words * 4, Way::Writes)],
            Self::Compare { at, words, wrong, .. } => {
                vec![Touch::new(at, words * 4, Way::Reads), Touch::new(wrong, 4, Way::Stores)]
            }
            Self::CopyWords { to, from, words } => {
                vec![Touch::new(to, words * 4, Way::Writes), Touch::new(from, words * 4, Way::Reads)]
            }
            Self::Copy { to, ref from, bytes, .. } => {
                let target = Touch::new(to, bytes, Way::Writes);
                match *from {
                    Source::Address(from) => vec![target, Touch::new(from, bytes, Way::Reads)],
                    Source::Staged(_) => vec![target],
                }
            }
            Self::WriteValue { at, bytes, .. } => vec![Touch::new(at, bytes, Way::Stores)],
            Self::WaitValue { at, bytes, .. } => vec![Touch::new(at, bytes, Way::Polls)],
            Self::All(ref works) => works.iter().flat_map(Self::touches).collect(),
            _ => Vec::new(),
        };
        touches.retain(|touch| touch.bytes > 0);
        touches
    }

    /// Returns its kind, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fill { .. } => "kernel simcuda_fill",
            Self::Expect { .. } => "kernel simcuda_expect",
            Self::Words { .. } => "kernel fill",
            Self::Compare { .. } => "kernel expect",
            Self::CopyWords { .. } => "kernel copy",
            Self::Copy { .. } => "copy",
            Self::Set { .. } => "memset",
            Self::All(works) => works.first().map_or("work", Self::name),
            _ => "work",
        }
    }

    /// Returns whether it stores to an address.
    pub(crate) fn stores_to(&self, address: u64) -> bool {
        let stores = |touch: Touch| {
            matches!(touch.way, Way::Writes | Way::Stores)
                && address.checked_sub(touch.at).is_some_and(|offset| offset < touch.bytes)
        };
        // A function of the program may store anywhere.
        matches!(self, Self::Kernel { .. } | Self::HostFunction { .. } | Self::Callback { .. })
            || self.touches().into_iter().any(stores)
    }

    /// Returns what to call with the lock open, in a context that works or has failed with a code. A host function
    /// "will not be called in the event of an error in the CUDA context" (cuLaunchHostFunc). For callbacks, "in the
    /// event of a device error, all subsequently executed callbacks will receive an appropriate CUresult"
    /// (cuStreamAddCallback).
    pub(crate) fn call(&self, failure: Option<CUresult>) -> Option<Box<dyn FnOnce()>> {
        match *self {
            Self::Kernel { function, argument } | Self::HostFunction { function, argument }
                if failure.is_none() =>
            {
                Some(Box::new(move || {
                    // SAFETY: the program passed the function and its argument for this purpose.
                    unsafe { function(argument as *mut c_void) }
                }))
            }
            Self::Callback { function: Some(function), stream, argument } => Some(Box::new(move || {
                // SAFETY: the program passed the function and its argument for this purpose.
                unsafe {
                    function(stream as CUstream, failure.unwrap_or(CUDA_SUCCESS), argument as *mut c_void)
                }
            })),
            _ => None,
        }
    }
}
