//! The numbered invariants. Tests check them after every step, and `bfc_check` on request.
//!
//! - I1 The chunks of a region tile it: linked in address order, without gap or overlap. Unmapped chunks are whole
//!   granules.
//! - I2 There are no two free neighbours that may merge, and no two unmapped ones. Neighbours of one queue may merge if
//!   no event tells their frees apart.
//! - I3 A class is marked exactly if it holds a chunk. The index holds exactly the findable chunks, in order. Stamped
//!   chunks are in an index of their own, where each has the least stamp below it. The stamp queue holds exactly the
//!   stamped chunks, none with a turn later than its stamp. The list of unmapped chunks holds exactly the unmapped
//!   chunks.
//! - I4 Used + free + unmapped chunks = the regions. Used + free = mapped bytes. The counters agree with the chunks.
//! - I5 The best fit is what a scan over all chunks finds.
//! - I6 The start of every chunk in use maps to its chunk, and nothing else maps to anything.
//! - I7 With several queues, a free chunk is in its queue's list, ordered by points that are not done, or waits for
//!   other queues, or is reusable by every stream.
//! - I8 With several queues, each queue's index holds exactly its free spans.

/// Which invariant is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    I1Tiling,
    I2Coalescing,
    I3Index,
    I4Accounting,
    I5BestFit,
    I6Starts,
    I7Queues,
    I8Spans,
}

pub(crate) fn require(holds: bool, otherwise: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(otherwise) }
}
