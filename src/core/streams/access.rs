//! Which streams' work may touch a chunk. Callers that read or write the memory itself need this.

use super::chunk_state::UNOWNED;
use super::queue::StreamQueue;
use super::stream_heap::StreamHeap;
use crate::core::ids::ChunkId;
use crate::core::stream_id::Stream;

/// The order of work that a chunk was allocated in, or is free in.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) stream: Stream,
    /// The private pool that the chunk belongs to, by the caller's name for it.
    pub(crate) pool: Option<u64>,
    /// Whether the stream is still known. Otherwise its name may belong to another stream by now.
    pub(in crate::core) is_current: bool,
}

/// The order of one chunk as the number of its queue, and whether the chunk also waits for other queues.
#[derive(Clone, Copy)]
pub(in crate::core) struct Mark {
    pub(in crate::core) queue: u32,
    pub(in crate::core) waits: bool,
}

impl Mark {
    pub(in crate::core) const NONE: Self = Mark { queue: u32::MAX, waits: false };
}

impl StreamHeap {
    /// Returns whether work whose end is not known may touch a chunk, in use or free. That is the case if the chunk was
    /// used in the order of a stream. For memory without a stream, the free declares that the work is done.
    pub(crate) fn is_in_stream_order(&self, id: ChunkId) -> bool {
        if !self.is_multi() {
            return self.single_stream() != Some(Stream::NONE);
        }
        if self.is_reusable(id) || self.is_to_be_shared(id) {
            return false;
        }
        let chunk_state = self.queues.chunk_state(id);
        chunk_state.has_uses()
            || chunk_state.queue != UNOWNED && self.queues.entry(chunk_state.queue).stream != Stream::NONE
    }

    /// Returns whether a chunk, in use or free, belongs to a private pool. A captured graph may use such a chunk
    /// whenever the graph is launched.
    pub(crate) fn is_private(&self, id: ChunkId) -> bool {
        if !self.is_multi() || self.is_reusable(id) {
            return false;
        }
        let queue = self.queues.chunk_state(id).queue;
        queue != UNOWNED && self.queues.entry(queue).stream.pool() != 0
    }

    /// Reserves the memory that freeing a chunk in use in the order of a stream may need. Returns whether there was
    /// enough.
    pub(crate) fn make_room_to_free_on(&mut self, addr: u64, stream: Stream) -> bool {
        if stream == Stream::NONE || self.is_fast(stream) {
            return true;
        }
        if self.admit(stream).is_err() {
            return false;
        }
        match self.heap.chunk_in_use(addr) {
            Some(id) if self.is_multi() => self.queue_to_free_in(id, stream).is_ok(),
            _ => true,
        }
    }

    /// Returns the streams that certainly exist, some of them more than once: the default streams, those with chunks in
    /// use, and those whose requests are redirected or go to a private pool individually. Any other stream may have been
    /// destroyed since all its memory was freed.
    pub(crate) fn living_streams(&self) -> impl Iterator<Item = Stream> + '_ {
        let has_live = self.heap.counters().live() != 0;
        let sole = self.single_stream().filter(|stream| has_live || stream.is_default());
        let is_live = |entry: &StreamQueue| {
            !entry.forgotten && (entry.stream.is_default() || entry.has_chunks_in_use())
        };
        let queues =
            self.queues.all().filter(move |(_, entry)| is_live(entry)).map(|(_, entry)| entry.stream);
        let redirected = self.queues.redirections.iter().chain(&self.queues.routed).copied();
        sole.into_iter().chain(queues).chain(redirected).filter(|stream| stream.exists())
    }

    /// Returns the order of a chunk, as the position of its queue in [`Self::orders`].
    pub(in crate::core) fn mark(&self, id: ChunkId) -> Mark {
        if !self.is_multi() {
            return Mark::NONE;
        }
        let chunk_state = self.queues.chunk_state(id);
        #[allow(clippy::cast_possible_truncation)] // a queue's number has 32 bits
        let queue = chunk_state.queue.index() as u32;
        if chunk_state.queue == UNOWNED { Mark::NONE } else { Mark { queue, waits: chunk_state.has_uses() } }
    }

    /// Returns the orders of all queues.
    pub(in crate::core) fn orders(&self) -> impl Iterator<Item = Order> + '_ {
        self.queues.all().map(|(queue, entry)| Order {
            stream: entry.stream,
            pool: self.private_name(entry.stream),
            is_current: self.queues.find(entry.stream) == Some(queue),
        })
    }
}
