//! Handles are numbers that look like pointers and are never dereferenced. Each kind has numbers of its own, and none
//! is reused unless a test requests it. So a stale handle differs from a foreign one.

/// The kind of object that a handle refers to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u64)]
pub(crate) enum Kind {
    Context = 0x11,
    Stream = 0x12,
    Event = 0x13,
    Graph = 0x14,
    Executable = 0x15,
    Pool = 0x16,
    Physical = 0x17,
    Node = 0x18,
    Module = 0x19,
    Function = 0x1a,
    Green = 0x1b,
    Descriptor = 0x1c,
    Array = 0x1d,
    Mipmap = 0x1e,
}

/// Returns the handle of a kind with a number.
pub(crate) fn make(kind: Kind, number: u64) -> u64 {
    ((kind as u64) << 40) | (number << 4)
}

/// Returns the number in a handle, if it has that kind.
pub(crate) fn number(kind: Kind, handle: u64) -> Option<u64> {
    (handle >> 40 == kind as u64 && handle.is_multiple_of(16)).then_some((handle & ((1 << 40) - 1)) >> 4)
}
