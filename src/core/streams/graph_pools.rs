//! Private pools: memory that a captured graph uses is kept for it, at the addresses it has.
//!
//! A private pool is a set of queues: what is freed there goes back to requests for that pool on the same stream, and
//! to nobody else however long its work is done, until the pool is released. Nothing else sets it apart: its chunks
//! lie among the others.

use super::chunk_state::{QueueId, UNOWNED};
use super::stream_heap::StreamHeap;
use crate::core::ids::ChunkId;
use crate::core::stream_id::Stream;
use crate::sys::HostMemoryExhausted;

/// Why a call about a private pool was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPrivate {
    /// The stream's requests are for a private pool already.
    Begun,
    /// They are not for that one.
    NotBegun,
    /// Nothing was ever for that pool, or it was released.
    Unknown,
    /// Some stream's requests still are for it.
    InUse,
}

impl StreamHeap {
    /// Requests of the stream are for a private pool from now on.
    pub(crate) fn begin_private(
        &mut self,
        stream: Stream,
        name: u64,
    ) -> Result<Result<(), NotPrivate>, HostMemoryExhausted> {
        if self.queues.directed(stream) != stream {
            return Ok(Err(NotPrivate::Begun));
        }
        if !self.is_multi() {
            self.tell_apart()?;
        }
        self.queues.redirections.try_reserve(1)?;
        let pool = self.private_pool(name)?;
        self.queues.redirections.push(stream.in_pool(pool));
        Ok(Ok(()))
    }

    /// The order of a stream's requests that are for a private pool each by itself, whatever the stream's others are for.
    pub(crate) fn in_private(&mut self, stream: Stream, name: u64) -> Result<Stream, HostMemoryExhausted> {
        if !self.is_multi() {
            self.tell_apart()?;
        }
        Ok(stream.in_pool(self.private_pool(name)?))
    }

    /// Some stream is about to be captured, and nobody can say yet which.
    pub(crate) fn announce(&mut self) -> Result<(), HostMemoryExhausted> {
        self.queues.redirections.try_reserve(1)?;
        self.queues.redirections.push(Stream::ANNOUNCED);
        Ok(())
    }

    /// One such announcement is over; nothing if there is none, for everything may have been forgotten.
    pub(crate) fn withdraw_announcement(&mut self) {
        let announced = self.queues.redirections.iter().position(|&stream| stream == Stream::ANNOUNCED);
        if let Some(place) = announced {
            self.queues.redirections.swap_remove(place);
        }
    }

    /// Whether anything was freed in no known order, and waits for everybody's work.
    pub(crate) fn has_unknown(&self) -> bool {
        self.queues.find(Stream::UNKNOWN).is_some_and(|queue| self.queues.has_pending(queue))
    }

    /// Whether free memory waits for work that no event can tell of, for it was freed without a stream.
    pub(crate) fn has_unordered(&self) -> bool {
        self.unfinished(|_| true).any(|unfinished| !unfinished.stream.exists())
    }

    /// Whether free memory waits for any work.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.unfinished(|_| true).next().is_some()
    }

    /// The number of a private pool, a new one if need be.
    fn private_pool(&mut self, name: u64) -> Result<u32, HostMemoryExhausted> {
        if let Some(number) = self.find_private(name) {
            return Ok(number);
        }
        let pools = &mut self.queues.pools;
        let place = match pools.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                pools.try_reserve(1)?;
                pools.push(None);
                pools.len() - 1
            }
        };
        pools[place] = Some(name);
        u32::try_from(place + 1).map_err(|_| HostMemoryExhausted)
    }

    fn find_private(&self, name: u64) -> Option<u32> {
        let place = self.queues.pools.iter().position(|&other| other == Some(name))?;
        u32::try_from(place + 1).ok()
    }

    /// Requests of the stream are for common memory again.
    pub(crate) fn end_private(&mut self, stream: Stream, name: u64) -> Result<(), NotPrivate> {
        let pool = self.find_private(name).ok_or(NotPrivate::Unknown)?;
        let directed = stream.in_pool(pool);
        if !self.queues.redirections.contains(&directed) {
            return Err(NotPrivate::NotBegun);
        }
        self.queues.redirections.retain(|&other| other != directed);
        Ok(())
    }

    /// Whether requests of any stream but one are for a private pool. The program may begin to capture it at any time
    /// then, and has said so.
    pub(crate) fn redirects_others(&self, than: Stream) -> bool {
        let all = &self.queues.redirections;
        if than == Stream::ANNOUNCED {
            // One's own is not to be told from another's.
            return all.len() > 1;
        }
        all.iter().any(|other| other.in_pool(0) != than)
    }

    /// Whether work that is queued on a stream may break a capture that the program has announced of another: the
    /// default stream waits for all that block.
    pub(crate) fn is_at_risk_of_others(&self, stream: Stream) -> bool {
        stream == Stream::DEFAULT && self.redirects_others(stream)
    }

    /// The same of any.
    pub(crate) fn is_at_risk(&self, stream: Stream) -> bool {
        self.queues.directed(stream) != stream || self.is_at_risk_of_others(stream)
    }

    /// Nothing uses the addresses of a private pool any more, but for what is live: that becomes common memory,
    /// and what is free too, once the device was idle.
    pub(crate) fn release_private(
        &mut self,
        name: u64,
    ) -> Result<Result<(), NotPrivate>, HostMemoryExhausted> {
        let Some(pool) = self.find_private(name) else { return Ok(Err(NotPrivate::Unknown)) };
        if self.queues.redirections.iter().any(|stream| stream.pool() == pool) {
            return Ok(Err(NotPrivate::InUse));
        }
        let unknown = self.queues.enter(Stream::UNKNOWN)?;
        for place in 0..self.queue_count() {
            let entry = self.queues.nth(place).map(|queue| self.queues.entry(queue));
            let of_pool = entry.filter(|entry| entry.stream.pool() == pool && !entry.forgotten);
            if let Some(stream) = of_pool.map(|entry| entry.stream) {
                self.queues.enter(stream.in_pool(0))?;
            }
        }
        // From here on nothing fails.
        for place in 0..self.heap.chunks().places() {
            self.make_common(self.heap.chunks().place(place), pool, unknown);
        }
        self.queues.end_pool(pool);
        Ok(Ok(()))
    }

    fn make_common(&mut self, id: ChunkId, pool: u32, unknown: QueueId) {
        let queue = self.queues.chunk_state(id).queue;
        if queue == UNOWNED || self.queues.entry(queue).stream.pool() != pool {
            return;
        }
        if self.owner(id).is_some() {
            let point = self.queues.advance(unknown);
            self.hand_over(id, unknown, point);
        } else if self.heap.chunks().in_use(id) {
            // A stream that is gone has no order to put it in.
            let entry = self.queues.entry(queue);
            let common = if entry.forgotten { None } else { self.queues.find(entry.stream.in_pool(0)) };
            self.queues.relabel(id, common.unwrap_or(unknown), true);
        } else {
            // It waits for the work of others too.
            self.queues.relabel(id, unknown, false);
        }
    }
}
