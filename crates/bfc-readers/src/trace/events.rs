//! A trace, checked and ready to run.

use std::ops::Range;

/// The unit to which every BFC allocator rounds.
pub const ALIGNMENT: u64 = 256;

/// Events between two updates of the clock and the progress bar.
pub const CHUNK: usize = 8192;

/// An event. The slot holds the allocation's address while it is live.
#[allow(missing_docs)] // As in docs/trace-format.md, with a slot instead of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request.
    Alloc { bytes: u64, slot: u32, stream: u16 },
    /// The free of the allocation in the slot.
    Free { slot: u32, stream: u16 },
    /// A request that was refused in the recorded program. It is made, and freed at once if it is granted.
    Refused { bytes: u64, stream: u16 },
}

/// The timed loop reads the events in order. With 16 bytes each, a cache line contains four.
const _: () = assert!(size_of::<Event>() == 16);

/// A mark, which comes before the event with that index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Index into the events.
    pub event: usize,
    /// The text after `#`, or the beginning of a long one.
    pub text: String,
}

/// Before the event with that index, the memory of this many first frees is reusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reusable {
    pub event: usize,
    pub frees: usize,
}

/// A trace, checked and ready to run.
#[derive(Debug, Default)]
pub struct Trace {
    /// What it is called in the output: the path, or `standard input`.
    pub name: String,
    /// Requests and frees in order.
    pub events: Vec<Event>,
    /// When freed memory became reusable, in order. Only for pools in which it waits. Files do not contain it.
    pub reusable: Vec<Reusable>,
    /// Steps or requests of the recorded program. Only the last of several marks before the same event is kept.
    pub marks: Vec<Mark>,
    /// How many marks there are in the file.
    pub mark_count: usize,
    /// The maximum number of addresses that are live at once.
    pub slots: usize,
    /// How many events are requests, granted or refused.
    pub requests: usize,
    /// How many of them were refused in the recorded program.
    pub refused: usize,
    /// How many streams there are; events hold them as numbers below this, in order of appearance
    /// except that the trace's stream 0, the default stream, is 0.
    pub streams: usize,
    /// The peak of the live bytes, each request rounded up to 256: the minimum for any pool.
    pub peak_live_bytes: u64,
    /// The peak of the live bytes as requested.
    pub peak_requested_bytes: u64,
    /// `peak_live_bytes` with each refused request counted as if it had been granted: the minimum for a pool in which
    /// no request fails.
    pub peak_wanted_bytes: u64,
    /// The reason why the recording is incomplete, if it states one.
    pub incomplete: Option<String>,
}

impl Trace {
    /// The events in batches that are timed one by one. They end at marks, and have a bounded length.
    pub fn chunks(&self) -> Vec<Range<usize>> {
        let marks = self.marks.iter().map(|mark| mark.event);
        let mut chunks = Vec::new();
        let mut start = 0;
        for end in marks.chain([self.events.len()]) {
            while start < end {
                let next = end.min(start + CHUNK);
                chunks.push(start..next);
                start = next;
            }
        }
        chunks
    }

    /// The mark that the event at `index` belongs to.
    pub fn mark_of(&self, index: usize) -> Option<&str> {
        let after = self.marks.partition_point(|mark| mark.event <= index);
        after.checked_sub(1).map(|at| self.marks[at].text.as_str())
    }
}
