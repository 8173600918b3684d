//! From one lane to several.
//!
//! A pool begins without knowing of lanes: whoever comes first is alone, and every free chunk is his. When another
//! comes, what was free becomes the first one's, but for memory that nobody ever had.

use super::chunk_state::{Lane, Note};
use super::free::Freed;
use super::free_spans::Run;
use super::stream_heap::{StreamHeap, StreamMode};
use crate::core::heap::Refused;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::stream_id::{NOBODYS, Stream};
use crate::sys::HostMemoryExhausted;

impl StreamHeap {
    /// Makes sure that what a stream is about to do can be told apart from what others do. On failure nothing
    /// changed.
    pub(in crate::core) fn admit(&mut self, stream: Stream) -> Result<(), HostMemoryExhausted> {
        let StreamMode::Single { stream: sole, .. } = &mut self.mode else { return Ok(()) };
        if *sole == stream {
            return Ok(());
        }
        let may_be_sole = stream.is_an_order() && (stream.thread() == 0 || !self.settings.events);
        if self.heap.counters().is_unused() && may_be_sole && !self.settings.timestamps {
            *sole = stream;
            if self.fast_stream != NOBODYS {
                self.fast_stream = stream.simple();
            }
            return Ok(());
        }
        self.tell_apart()
    }

    /// Tells streams apart from now on; nothing if it does so already. On failure nothing changed.
    pub(crate) fn require_queues(&mut self) -> Result<(), HostMemoryExhausted> {
        self.tell_apart()
    }

    /// The stream that is the only one so far, if there is something behind its name.
    pub(crate) fn sole_stream(&self) -> Option<Stream> {
        self.single_stream().filter(|stream| stream.exists())
    }

    /// The stream that is the only one so far, or none that was named.
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
        self.heap.reserve_starts(regions)?;
        self.lanes.reserve(self.heap.chunks().places())?;
        if has_recorded {
            self.lanes.reserve_uses(self.heap.counters().live())?;
        }
        let home = self.lanes.enter(stream)?;
        // From here on nothing fails.
        (self.mode, self.fast_stream) = (StreamMode::Multi, NOBODYS);
        if synchronized_frees != self.heap.counters().frees() {
            self.lanes.advance(home);
        }
        let mut first = 0;
        while let Some(region) = self.heap.regions().nth(first) {
            let (mut at, touched) = (region.first, region.touched);
            while at != NIL {
                at = self.claim(at, home, touched, has_recorded);
            }
            first += 1;
        }
        Ok(())
    }

    /// Makes a chunk the first lane's, as far as it ever had it; returns the next one.
    fn claim(&mut self, id: ChunkId, home: Lane, touched: u64, has_recorded: bool) -> ChunkId {
        let next = self.heap.next(id);
        let (addr, size) = (self.heap.addr(id), self.heap.size(id));
        let point = self.lanes.row(home).point;
        if self.heap.chunks().in_use(id) {
            *self.lanes.note_mut(id) = Note::new(home, 0);
            self.lanes.row_mut(home).live += 1;
            if has_recorded {
                // Which of them is not known any more. There is room for it, so it cannot fail.
                let _ = self.lanes.record(id, home);
            }
        } else if self.is_anyones(id) && addr < touched && point > self.lanes.row(home).done {
            if touched < addr + size {
                self.split_free(id, touched - addr);
            }
            self.heap.unindex(id);
            self.heap.mark_held(id);
            *self.lanes.note_mut(id) = Note::new(home, point);
            self.lanes.hang(id);
            // What is behind it nobody ever had, if it is free.
            let rest = Some(self.heap.next(id)).filter(|&rest| rest != NIL && self.is_anyones(rest));
            let end = self.heap.end_of(rest.unwrap_or(id));
            self.put_run(Run { lane: home, head: id, addr, end, chunks: 1 });
        } else if self.heap.state(id) == State::Away && point > self.lanes.row(home).done {
            // A plan is under way, and puts it back as it is told here.
            *self.lanes.note_mut(id) = Note::new(home, point);
            self.lanes.row_mut(home).begin_waiting();
        }
        next
    }

    /// Frees a chunk in the order of a stream: none is the one it was allocated on. `None`, and nothing changed, if streams are
    /// not told apart.
    #[inline(always)]
    pub(in crate::core) fn free_on(
        &mut self,
        addr: u64,
        stream: Stream,
    ) -> Result<Option<Freed>, HostMemoryExhausted> {
        let Some(id) = self.heap.chunk_at(addr) else { return Ok(Some(Freed::Refused(Refused::NotAChunk))) };
        if !self.heap.chunks().in_use(id) {
            return Ok(Some(Freed::Refused(Refused::AlreadyFree)));
        }
        if !self.is_multi() && stream != Stream::NONE {
            self.admit(stream)?;
        }
        if !self.is_multi() {
            return Ok(None);
        }
        let lane = self.lane_to_free_in(id, stream)?;
        self.heap.count_free(id);
        self.free_in_lane(id, lane);
        Ok(Some(self.freed_in_queue()))
    }

    /// The lane in which a chunk in use is freed in the order of a stream, a new one if need be. Several lanes are told
    /// apart.
    #[inline(always)]
    pub(super) fn lane_to_free_in(
        &mut self,
        id: ChunkId,
        stream: Stream,
    ) -> Result<Lane, HostMemoryExhausted> {
        // Memory of a private pool stays there, whoever frees it.
        let allocated_in = self.lanes.note(id).lane;
        let row = self.lanes.row(allocated_in);
        let named = stream.in_pool(row.stream.pool());
        let there = stream == Stream::NONE || row.stream == named && !row.forgotten;
        if there { Ok(allocated_in) } else { self.lanes.enter(named) }
    }

    /// Writes down that a chunk in use is also used on a stream.
    pub(crate) fn record_use(
        &mut self,
        addr: u64,
        stream: Stream,
    ) -> Result<Result<(), Refused>, HostMemoryExhausted> {
        let Some(id) = self.heap.chunk_at(addr) else { return Ok(Err(Refused::NotAChunk)) };
        if !self.heap.chunks().in_use(id) {
            return Ok(Err(Refused::AlreadyFree));
        }
        self.admit(stream)?;
        match &mut self.mode {
            // Chunks are freed on the one stream too, or else another comes before.
            StreamMode::Single { has_recorded, .. } => *has_recorded = true,
            StreamMode::Multi => {
                let lane = self.lanes.enter(stream)?;
                self.lanes.record(id, lane)?;
            }
        }
        Ok(Ok(()))
    }
}
