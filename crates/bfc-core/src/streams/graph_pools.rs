//! Private pools: memory that a captured graph uses is kept for that graph, at the same addresses.
//!
//! A private pool is a set of queues. Memory freed there serves only requests for the same pool on the same stream
//! until the pool is released, no matter how long its work has been done. Nothing else sets the pool apart: its chunks
//! lie among the others.

use super::chunk_state::{QueueId, UNOWNED};
use super::stream_heap::StreamHeap;
use crate::ids::ChunkId;
use crate::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Why a call about a private pool was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotPrivate {
    /// The stream's requests are already routed to a private pool.
    Begun,
    /// The stream's requests are not routed to that pool.
    NotBegun,
    /// No request was ever routed to that pool, or the pool was released.
    Unknown,
    /// The requests of some stream are still routed to the pool.
    InUse,
}

impl StreamHeap {
    /// Routes subsequent requests of the stream to a private pool.
    pub fn begin_private(
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

    /// Returns the order for single requests of a stream that are served from a private pool, wherever the stream's
    /// other requests are routed.
    pub fn in_private(&mut self, stream: Stream, name: u64) -> Result<Stream, HostMemoryExhausted> {
        if !self.is_multi() {
            self.tell_apart()?;
        }
        Ok(stream.in_pool(self.private_pool(name)?))
    }

    /// Returns the same order, and remembers until [`Self::end_routes`] that the stream exists and may be captured.
    pub fn route(&mut self, stream: Stream, name: u64) -> Result<Stream, HostMemoryExhausted> {
        let private = self.in_private(stream, name)?;
        if !self.queues.routed.contains(&private) {
            self.queues.routed.try_reserve(1)?;
            self.queues.routed.push(private);
        }
        Ok(private)
    }

    /// Forgets which streams requested memory of a private pool individually.
    pub fn end_routes(&mut self, name: u64) {
        if let Some(pool) = self.find_private(name) {
            self.queues.routed.retain(|stream| stream.pool() != pool);
        }
    }

    /// Returns whether a stream is among those that exist ([`Self::living_streams`]) whether or not it has chunks in use,
    /// so that it is queried for captures anyway.
    pub fn is_watched(&self, stream: Stream) -> bool {
        let mut watched = self.queues.redirections.iter().chain(&self.queues.routed);
        watched.any(|other| other.in_pool(0) == stream.in_pool(0))
    }

    /// Announces that some stream is about to be captured, while it is not known yet which one.
    pub fn announce(&mut self) -> Result<(), HostMemoryExhausted> {
        self.queues.redirections.try_reserve(1)?;
        self.queues.redirections.push(Stream::ANNOUNCED);
        Ok(())
    }

    /// Withdraws one such announcement. Does nothing if there is none, because everything may have been forgotten.
    pub fn withdraw_announcement(&mut self) {
        let announced = self.queues.redirections.iter().position(|&stream| stream == Stream::ANNOUNCED);
        if let Some(place) = announced {
            self.queues.redirections.swap_remove(place);
        }
    }

    /// Returns whether memory was freed in no known order, so that it waits for the work of all streams.
    pub fn has_unknown(&self) -> bool {
        self.queues.find(Stream::UNKNOWN).is_some_and(|queue| self.queues.has_pending(queue))
    }

    /// Returns whether free memory waits for work that no event covers, because the memory was freed without a stream.
    pub fn has_unordered(&self) -> bool {
        self.unfinished(|_| true).any(|unfinished| !unfinished.stream.exists())
    }

    /// Returns whether free memory waits for any work.
    pub fn has_unfinished(&self) -> bool {
        self.unfinished(|_| true).next().is_some()
    }

    /// Returns the number of a private pool, and assigns a new one if needed.
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

    /// Routes the stream's requests to common memory again.
    pub fn end_private(&mut self, stream: Stream, name: u64) -> Result<(), NotPrivate> {
        let pool = self.find_private(name).ok_or(NotPrivate::Unknown)?;
        let directed = stream.in_pool(pool);
        if !self.queues.redirections.contains(&directed) {
            return Err(NotPrivate::NotBegun);
        }
        self.queues.redirections.retain(|&other| other != directed);
        Ok(())
    }

    /// Returns whether requests of any stream other than `than` are routed to a private pool. The program has announced
    /// a capture of such a stream and may begin it at any time.
    pub fn redirects_others(&self, than: Stream) -> bool {
        let all = &self.queues.redirections;
        if than == Stream::ANNOUNCED {
            // The caller's own announcement cannot be told apart from another's.
            return all.len() > 1;
        }
        all.iter().any(|other| other.in_pool(0) != than)
    }

    /// Returns whether work queued on a stream may break a capture that the program has announced for another stream.
    /// Only a legacy default stream can do so, because it waits for all blocking streams.
    pub fn is_at_risk_of_others(&self, stream: Stream) -> bool {
        stream.is_legacy() && self.redirects_others(stream)
    }

    /// Returns whether work queued on a stream may break any announced capture, one of that stream included.
    pub fn is_at_risk(&self, stream: Stream) -> bool {
        self.queues.directed(stream) != stream || self.is_at_risk_of_others(stream)
    }

    /// Releases a private pool. Its addresses are no longer used, except those of chunks in use. Chunks in use become
    /// common memory, and free ones do so once the device was idle. The last launch of a graph may still use both, on any
    /// stream. So a chunk in use waits for a synchronization too once it is freed: it is recorded in [`Stream::UNKNOWN`].
    pub fn release_private(&mut self, name: u64) -> Result<Result<(), NotPrivate>, HostMemoryExhausted> {
        let Some(pool) = self.find_private(name) else { return Ok(Err(NotPrivate::Unknown)) };
        if self.queues.redirections.iter().any(|stream| stream.pool() == pool) {
            return Ok(Err(NotPrivate::InUse));
        }
        let unknown = self.queues.enter(Stream::UNKNOWN)?;
        let mut live = 0;
        for place in 0..self.queue_count() {
            let entry = self.queues.nth(place).map(|queue| self.queues.entry(queue));
            let Some(entry) = entry.filter(|entry| entry.stream.pool() == pool) else { continue };
            live += entry.live;
            let common = entry.stream.in_pool(0);
            // None of these is used yet, so none of them may be taken for an idle one.
            if !entry.forgotten && self.queues.find(common).is_none() {
                self.queues.add(common)?;
            }
        }
        self.queues.reserve_uses(live)?;
        // Nothing below fails.
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
            // A stream that is gone has no order for the chunk.
            let entry = self.queues.entry(queue);
            let common = if entry.forgotten { None } else { self.queues.find(entry.stream.in_pool(0)) };
            self.queues.relabel(id, common.unwrap_or(unknown), true);
            // Room is reserved, so this cannot fail.
            let _ = self.queues.record(id, unknown);
        } else {
            // The chunk also waits for the work of other queues.
            self.queues.relabel(id, unknown, false);
        }
    }
}
