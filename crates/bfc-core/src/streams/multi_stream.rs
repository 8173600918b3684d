//! The transition from one queue to several.
//!
//! A pool begins without queues. The first stream is alone, and every free chunk belongs to it. When a second stream
//! appears, the free memory becomes the first stream's, except for memory that was never used.

use super::chunk_state::{ChunkStreamState, QueueId};
use super::free::Freed;
use super::free_spans::FreeSpan;
use super::stream_heap::{StreamHeap, StreamMode};
use crate::heap::State;
use crate::ids::{ChunkId, NIL};
use crate::stream_id::{NO_FAST_STREAM, Stream};
use bfc_hostmem::HostMemoryExhausted;

/// An address is not the start of a chunk in use.
#[derive(Debug, PartialEq, Eq)]
pub struct NotInUse;

impl StreamHeap {
    /// Ensures that what a stream is about to do can be told apart from what other streams do. On failure nothing
    /// changed.
    pub(crate) fn admit(&mut self, stream: Stream) -> Result<(), HostMemoryExhausted> {
        let StreamMode::Single { stream: sole, .. } = &mut self.mode else { return Ok(()) };
        if *sole == stream {
            return Ok(());
        }
        let may_be_sole = stream.is_an_order() && (!stream.ends_unnoticed() || !self.settings.events);
        if self.heap.counters().is_unused() && may_be_sole && !self.settings.timestamps {
            *sole = stream;
            if self.fast_stream != NO_FAST_STREAM {
                self.fast_stream = stream.fast_handle();
            }
            return Ok(());
        }
        self.tell_apart()
    }

    /// Begins to tell streams apart. Does nothing if they already are. On failure nothing changed.
    pub fn require_queues(&mut self) -> Result<(), HostMemoryExhausted> {
        self.tell_apart()
    }

    /// Must precede any step that gives free memory back, discards it, or moves it. If that happens at once, and not all
    /// work of the only stream was declared done, the stream is told apart from now on, so that its memory waits. On
    /// failure nothing changed, and free memory must stay as it is.
    pub(crate) fn hold_unfinished(&mut self) -> Result<(), HostMemoryExhausted> {
        let StreamMode::Single { stream, synchronized_frees, .. } = self.mode else { return Ok(()) };
        // Memory freed without a stream waits for nothing.
        let waits = self.settings.releases_at_once && stream != Stream::NONE;
        if waits && synchronized_frees != self.heap.counters().frees() { self.tell_apart() } else { Ok(()) }
    }

    /// Returns the only stream so far, if its name stands for an actual stream.
    pub fn sole_stream(&self) -> Option<Stream> {
        self.single_stream().filter(|stream| stream.exists())
    }

    /// Returns the only stream so far, or [`Stream::NONE`] if no stream was named.
    pub(super) fn single_stream(&self) -> Option<Stream> {
        match self.mode {
            StreamMode::Single { stream, .. } => Some(stream),
            StreamMode::Multi => None,
        }
    }

    pub(super) fn tell_apart(&mut self) -> Result<(), HostMemoryExhausted> {
        let StreamMode::Single { stream, synchronized_frees, has_recorded } = self.mode else {
            return Ok(());
        };
        let regions = self.heap.regions().count();
        self.heap.reserve_chunks(regions)?;
        self.queues.reserve(self.heap.chunks().places())?;
        if has_recorded {
            self.queues.reserve_uses(self.heap.counters().live())?;
        }
        let sole = self.queues.enter(stream)?;
        // Nothing below fails.
        (self.mode, self.fast_stream) = (StreamMode::Multi, NO_FAST_STREAM);
        if synchronized_frees != self.heap.counters().frees() {
            self.queues.advance(sole);
        }
        let mut first = 0;
        while let Some(region) = self.heap.regions().nth(first) {
            let (mut at, touched) = (region.first, region.touched);
            while at != NIL {
                at = self.claim(at, sole, touched, has_recorded);
            }
            first += 1;
        }
        Ok(())
    }

    /// Assigns a chunk to the first queue, as far as the chunk was ever used. Returns the next chunk.
    fn claim(&mut self, id: ChunkId, sole: QueueId, touched: u64, has_recorded: bool) -> ChunkId {
        let next = self.heap.next(id);
        let (addr, size) = (self.heap.addr(id), self.heap.size(id));
        let point = self.queues.entry(sole).point;
        if self.heap.chunks().in_use(id) {
            *self.queues.chunk_state_mut(id) = ChunkStreamState::new(sole, 0);
            self.queues.entry_mut(sole).live += 1;
            if has_recorded {
                // It is no longer known which chunks were recorded, so all are. Room is reserved, so this cannot fail.
                let _ = self.queues.record(id, sole);
            }
        } else if self.is_reusable(id) && addr < touched && point > self.queues.entry(sole).done {
            if touched < addr + size {
                self.split_free(id, touched - addr);
            }
            self.heap.unindex(id);
            self.heap.mark_held(id);
            *self.queues.chunk_state_mut(id) = ChunkStreamState::new(sole, point);
            self.queues.enqueue(id);
            // The next chunk was never used, if it is free.
            let rest = Some(self.heap.next(id)).filter(|&rest| rest != NIL && self.is_reusable(rest));
            let end = self.heap.end_of(rest.unwrap_or(id));
            self.put_span(FreeSpan { queue: sole, head: id, addr, end, chunks: 1 });
        } else if self.heap.state(id) == State::Withheld && point > self.queues.entry(sole).done {
            // A plan is under way. It puts the chunk back according to this state.
            *self.queues.chunk_state_mut(id) = ChunkStreamState::new(sole, point);
            self.queues.entry_mut(sole).begin_waiting();
        }
        next
    }

    /// Frees a chunk in the order of a stream. [`Stream::NONE`] stands for the stream it was allocated on. Returns
    /// `None` without freeing the chunk if streams are not told apart.
    #[inline(always)]
    pub(crate) fn free_on(
        &mut self,
        addr: u64,
        stream: Stream,
    ) -> Result<Option<Freed>, HostMemoryExhausted> {
        let found = match self.heap.find_in_use(addr) {
            Ok(found) => found,
            Err(refused) => return Ok(Some(Freed::Refused(refused))),
        };
        if !self.is_multi() && stream != Stream::NONE {
            self.admit(stream)?;
        }
        if !self.is_multi() {
            return Ok(None);
        }
        let queue = self.queue_to_free_in(found.id, stream)?;
        self.heap.count_free(found);
        self.free_in_queue(found.id, queue);
        Ok(Some(self.freed_in_queue()))
    }

    /// Returns the queue in which a chunk in use is freed in the order of a stream, and adds it if needed. Streams must
    /// be told apart.
    #[inline(always)]
    pub(super) fn queue_to_free_in(
        &mut self,
        id: ChunkId,
        stream: Stream,
    ) -> Result<QueueId, HostMemoryExhausted> {
        // Memory of a private pool stays in that pool, whichever stream frees it.
        let allocated_in = self.queues.chunk_state(id).queue;
        let entry = self.queues.entry(allocated_in);
        let named = stream.in_pool(entry.stream.pool());
        let there = stream == Stream::NONE || entry.stream == named && !entry.forgotten;
        if there { Ok(allocated_in) } else { self.queues.enter(named) }
    }

    /// Records that a chunk in use is also used on a stream.
    pub fn record_use(
        &mut self,
        addr: u64,
        stream: Stream,
    ) -> Result<Result<(), NotInUse>, HostMemoryExhausted> {
        let Some(id) = self.heap.chunk_in_use(addr) else { return Ok(Err(NotInUse)) };
        self.admit(stream)?;
        match &mut self.mode {
            // All chunks are freed on this one stream too, unless another stream appears first.
            StreamMode::Single { has_recorded, .. } => *has_recorded = true,
            StreamMode::Multi => {
                let queue = self.queues.enter(stream)?;
                self.queues.record(id, queue)?;
            }
        }
        Ok(Ok(()))
    }
}
