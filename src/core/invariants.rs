//! The invariants, numbered. Tests check them after every step, and `bfc_check` on request.
//!
//! - I1 the chunks of a region tile it: linked in address order, without gap or overlap; unmapped chunks are whole
//!   granules
//! - I2 no two free neighbours that may merge, nor two unmapped chunks; those of one queue may merge if no event tells their
//!   frees apart
//! - I3 a class is marked exactly if it holds a chunk, and the index holds exactly the findable chunks,
//!   in order, stamped ones in an index of their own, where each knows the least stamp below it; the queue
//!   holds exactly the stamped chunks, none with a turn later than its stamp; the list of unmapped chunks holds
//!   exactly the unmapped chunks
//! - I4 used + free + unmapped chunks = the regions, used + free = what is mapped, the counters agree with the chunks
//! - I5 best fit is what a scan over all chunks finds
//! - I6 every start maps to its chunk and nothing else maps to anything
//! - I7 with several queues: a free chunk is in its queue's list, ordered by points that are not done, or waits for
//!   other queues, or is reusable by every stream
//! - I8 with several queues: each queue's index holds exactly its free spans

/// Which invariant is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    I1Tiling,
    I2Coalescing,
    I3Index,
    I4Accounting,
    I5BestFit,
    I6Starts,
    I7Queues,
    I8Spans,
}

pub(in crate::core) fn require(holds: bool, otherwise: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(otherwise) }
}
