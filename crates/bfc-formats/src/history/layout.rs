//! The layout of a history: a header, a text area, an area of backtraces, and a ring of events. docs/history.md describes
//! it.
//!
//! The library writes it through a mapping, and `bfc report` reads it from the file, perhaps while it is written, or
//! after the process was killed. So every field that changes is atomic, and an event is complete only if its `stamp` is
//! that of its number.

#![allow(missing_docs)] // Of fields and constants whose names say it.

use core::sync::atomic::{AtomicU32, AtomicU64};

pub const MAGIC: [u8; 16] = *b"libbfc history 2";
/// The bytes of the header, a page.
pub const HEADER_BYTES: usize = 4096;
/// The bytes of the text area.
pub const TEXT_BYTES: usize = 1 << 20;
/// The bytes of the area of backtraces, in a history that has it.
pub const STACK_BYTES: usize = 4 << 20;
/// The maximum number of frames of a backtrace: the innermost, for native code and for Python each.
pub const MOST_FRAMES: usize = 64;
/// The maximum number of bytes of a name or a path.
pub const MOST_TEXT: usize = 4096;
/// The maximum number of bytes of a Python function's name and its file.
pub const MOST_FUNCTION: usize = 1024;
/// The maximum number of events of a ring.
pub const MOST_EVENTS: u64 = 1 << 28;
/// The minimum number of events of a ring.
pub const LEAST_EVENTS: u64 = 1 << 10;

/// The first page.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 16],
    /// The sizes that the writer used, so that a reader notices another layout.
    pub header_bytes: u32,
    pub event_bytes: u32,
    pub text_bytes: u64,
    /// The number of events in the ring, a power of two.
    pub capacity: u64,
    /// The number of events so far. The ring holds the last `capacity` of them.
    pub written: AtomicU64,
    /// The number of bytes written in the text area.
    pub text_used: AtomicU64,
    /// The number of texts that did not fit.
    pub text_lost: AtomicU64,
    /// Two readings of both clocks, to convert ticks to times.
    pub first: ClockReading,
    pub last: ClockReading,
    pub process: u32,
    pub state: AtomicU32,
    /// When the process started, in clock ticks since the machine did, so that a later process with the same number is
    /// not mistaken for it. 0 is not known.
    pub started: u64,
    /// [`STACK_BYTES`], or 0 without backtraces.
    pub stack_bytes: u64,
    /// The number of bytes written in the area of backtraces.
    pub stacks_used: AtomicU64,
    /// The number of events without a backtrace because it did not fit.
    pub stacks_lost: AtomicU64,
    /// [`whereabouts`] of the process. 0 is not known.
    pub whereabouts: u64,
}

/// Identifies where the number of a process is meaningful: since a start of the machine, whose id is given, and in the
/// process namespace with this inode. 0 if either is not known.
pub fn whereabouts(boot: &[u8], namespace: u64) -> u64 {
    let boot = boot.trim_ascii_end();
    if boot.is_empty() || namespace == 0 {
        return 0;
    }
    // FNV-1a.
    let bytes = boot.iter().copied().chain(namespace.to_le_bytes());
    bytes
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        .max(1)
}

/// The history is recorded, unless the process was killed.
pub const RECORDING: u32 = 1;
/// The recording was stopped, or the process exited.
pub const STOPPED: u32 = 2;

/// The tick counter and the clock at one moment.
#[repr(C)]
pub struct ClockReading {
    pub ticks: AtomicU64,
    /// Nanoseconds since 1970.
    pub nanoseconds: AtomicU64,
}

/// An event of 64 bytes, a cache line.
#[repr(C)]
pub struct Event {
    /// [`complete`] of the event's number and the backtrace, stored last. [`WRITING`] before, and 0 in a place without
    /// an event.
    pub stamp: AtomicU64,
    pub ticks: AtomicU64,
    pub address: AtomicU64,
    /// The bytes of the chunk, the region or the limit. The largest free chunk for [`Kind::OutOfMemory`].
    pub bytes: AtomicU64,
    /// The bytes of the request, for an allocation and for [`Kind::OutOfMemory`].
    pub requested: AtomicU64,
    /// The stream's handle: 0 is none, 1 the default stream, 2 a thread's default stream.
    pub stream: AtomicU64,
    /// The bytes in use in the pool after the event.
    pub in_use: AtomicU64,
    /// The kind (8 bits), the cause of a failure (8 bits), the pool (16 bits), and the number of the operation's name or
    /// of the mark (32 bits), from the lowest bit on.
    pub what: AtomicU64,
}

/// The stamp of an event that is being written.
pub const WRITING: u64 = 2;

/// The stamp of a complete event. Its lower half is odd, and distinguishes the number from those that had the same
/// place before. Its upper half is the backtrace.
#[inline(always)]
pub const fn complete(number: u64, stack: u32) -> u64 {
    (number as u32).wrapping_mul(2).wrapping_add(1) as u64 | (stack as u64) << 32
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A chunk was allocated.
    Alloc = 1,
    /// A chunk was freed.
    Free = 2,
    /// A chunk was in use when the recording began.
    Present = 3,
    /// The pool obtained a region, or mapped granules if its memory is virtual.
    Obtained = 4,
    /// The pool released a region, or unmapped granules.
    Returned = 5,
    /// A request failed.
    OutOfMemory = 6,
    /// The program marked this moment.
    Mark = 7,
    /// The step of the pool's operations changed. `bytes` is the new one.
    Step = 8,
    /// The recording of a pool began: it was created, or existed before. `bytes` is its limit.
    Begin = 9,
    /// The pool was destroyed.
    End = 10,
    /// Free memory was released: by bfc_trim, for a lower limit, or because the pool was idle. `bytes` is how much.
    Trim = 11,
    /// The limit of the pool changed. `bytes` is the new one.
    Limit = 12,
}

impl Kind {
    pub fn from_code(code: u8) -> Option<Self> {
        const ALL: [Kind; 12] = [
            Kind::Alloc,
            Kind::Free,
            Kind::Present,
            Kind::Obtained,
            Kind::Returned,
            Kind::OutOfMemory,
            Kind::Mark,
            Kind::Step,
            Kind::Begin,
            Kind::End,
            Kind::Trim,
            Kind::Limit,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The options of a pool, as bits of the number of [`TextKind::Options`].
pub mod options {
    pub const GROWTH: u32 = 1 << 0;
    /// Regions are as large as needed.
    pub const GROWTH_NEED: u32 = 1 << 1;
    pub const GARBAGE_COLLECTION: u32 = 1 << 2;
    pub const SPLIT_ALWAYS: u32 = 1 << 3;
    pub const TWO_ENDS: u32 = 1 << 4;
    /// The memory is virtual.
    pub const VIRTUAL: u32 = 1 << 5;
    /// Freed memory waits for a safe frontier.
    pub const TIMESTAMPS: u32 = 1 << 6;
    pub const PLAN: u32 = 1 << 7;
}

/// The bytes of the text of [`TextKind::Options`]: the limit and the first region in bytes, and the bits of the
/// fragmentation fraction, 8 bytes each, the lowest first.
pub const OPTIONS_BYTES: usize = 24;

/// The kind of thing that a text names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum TextKind {
    /// A pool; its number is the device's ordinal.
    Pool = 1,
    /// An operation of a pool.
    Operation = 2,
    /// A mark.
    Mark = 3,
    /// The program.
    Program = 4,
    /// Not a name, but the options of a pool when its recording began. The number holds [`options`].
    Options = 5,
    /// A Python function: its name, a zero, and its file.
    Function = 6,
    /// A module, as a [`ModuleHead`] with what follows it. Its number is the first backtrace that may be in it: earlier
    /// ones refer to a module loaded at these addresses before.
    Module = 7,
}

/// The beginning of a module's text. The build id and the path follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ModuleHead {
    /// The range in which its code is mapped.
    pub start: u64,
    pub end: u64,
    /// The offset added to the addresses in the module's file.
    pub bias: u64,
    pub build_id_bytes: u64,
}

/// The first word of a backtrace: the number of words that follow, and which frames are left out. Its number is the
/// place of this word in the area, in words from 1. The native frames follow, as addresses in the calls, and then those
/// of Python, the function's number in the upper half and the line in the lower one. The innermost are first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackHead {
    pub native: u16,
    pub python: u16,
    /// Whether there were more than [`MOST_FRAMES`].
    pub is_cut: bool,
}

impl StackHead {
    pub const fn word(self) -> u64 {
        self.native as u64 | (self.python as u64) << 16 | (self.is_cut as u64) << 32
    }

    pub const fn of(word: u64) -> Self {
        StackHead { native: word as u16, python: (word >> 16) as u16, is_cut: word >> 32 & 1 != 0 }
    }
}

/// The beginning of a text. Its bytes follow, padded to a multiple of 8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TextHead {
    pub kind: u16,
    pub pool: u16,
    pub number: u32,
    pub bytes: u32,
    pub unused: u32,
}

/// The bytes of a text with its head.
pub const fn text_extent(bytes: usize) -> usize {
    size_of::<TextHead>() + bytes.next_multiple_of(8)
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Event>() == 64);

/// The name of a failure's cause, as stored in `cause` of an event.
pub fn cause_name(cause: u8) -> &'static str {
    const NAMES: [&str; 5] = ["exhaustion", "fragmentation", "stamps", "alignment", "other"];
    cause.checked_sub(1).and_then(|cause| NAMES.get(usize::from(cause))).copied().unwrap_or("unknown cause")
}
