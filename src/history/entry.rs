//! The data of an event.

use bfc_formats::history::layout::Kind;

/// The parameters of an event. [`Event`](bfc_formats::history::layout::Event) documents their meaning for each kind.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) cause: u8,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) in_use: u64,
    pub(crate) number: u32,
    pub(crate) stack: u32,
}

impl Entry {
    pub(crate) fn of(kind: Kind) -> Self {
        Entry {
            kind,
            cause: 0,
            address: 0,
            bytes: 0,
            requested: 0,
            stream: 0,
            in_use: 0,
            number: 0,
            stack: 0,
        }
    }
}
