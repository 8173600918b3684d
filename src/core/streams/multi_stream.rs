//! From one lane to several.
//!
//! A pool begins without knowing of lanes: whoever comes first is alone, and every free chunk is his. When another
//! comes, what was free becomes the first one's, but for memory that nobody ever had.

use crate::core::arena::{Arena, Freed, Refused};
use crate::core::heap::chunks::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::streams::free_spans::Run;
use crate::core::streams::queues::{Lane, NOBODYS, Note, Stream};
use crate::sys::HostMemoryExhausted;

impl Arena {
    /// Makes sure that what a stream is about to do can be told apart from what others do. On failure nothing
    /// changed.
    pub(in crate::core) fn admit(&mut self, stream: Stream) -> Result<(), HostMemoryExhausted> {
        if self.mixed || self.home == stream {
            return Ok(());
        }
        let may_be_home = stream.is_an_order() && (stream.thread() == 0 || !self.settings.events);
        if self.counters.is_unused() && may_be_home && !self.settings.timestamps {
            self.home = stream;
            if self.simple != NOBODYS {
                self.simple = stream.simple();
            }
            return Ok(());
        }
        self.tell_apart()
    }

    /// Tells streams apart from now on; nothing if it does so already. On failure nothing changed.
    pub(crate) fn require_queues(&mut self) -> Result<(), HostMemoryExhausted> {
        if self.mixed { Ok(()) } else { self.tell_apart() }
    }

    /// The stream that is the only one so far, if there is something behind its name.
    pub(crate) fn sole_stream(&self) -> Option<Stream> {
        (!self.mixed && self.home.exists()).then_some(self.home)
    }

    pub(in crate::core) fn tell_apart(&mut self) -> Result<(), HostMemoryExhausted> {
        let regions = self.regions.count();
        self.chunks.reserve(regions)?;
        self.starts.reserve(&self.chunks.slab, &mut self.regions, regions)?;
        self.lanes.reserve(self.chunks.slab.len())?;
        if self.home_recorded {
            self.lanes.reserve_uses(self.counters.live())?;
        }
        let home = self.lanes.enter(self.home)?;
        // From here on nothing fails.
        (self.mixed, self.simple) = (true, NOBODYS);
        if self.synchronized_frees != self.counters.frees() {
            self.lanes.advance(home);
        }
        let mut first = 0;
        while let Some(region) = self.regions.nth(first) {
            let (mut at, touched) = (region.first, region.touched);
            while at != NIL {
                at = self.claim(at, home, touched);
            }
            first += 1;
        }
        Ok(())
    }

    /// Makes a chunk the first lane's, as far as it ever had it; returns the next one.
    fn claim(&mut self, id: ChunkId, home: Lane, touched: u64) -> ChunkId {
        let next = self.chunks.next(id);
        let (addr, size) = (self.chunks.addr(id), self.chunks.size(id));
        let point = self.lanes.row(home).point;
        if self.chunks.in_use(id) {
            *self.lanes.note_mut(id) = Note::new(home, 0);
            self.lanes.row_mut(home).live += 1;
            if self.home_recorded {
                // Which of them is not known any more. There is room for it, so it cannot fail.
                let _ = self.lanes.record(id, home);
            }
        } else if self.is_anyones(id) && addr < touched && point > self.lanes.row(home).done {
            if touched < addr + size {
                self.split_free(id, touched - addr);
            }
            self.unindex(id);
            self.chunks.slab[..][id].mark_held();
            *self.lanes.note_mut(id) = Note::new(home, point);
            self.lanes.hang(id);
            // What is behind it nobody ever had, if it is free.
            let rest = Some(self.chunks.next(id)).filter(|&rest| rest != NIL && self.is_anyones(rest));
            let end = self.end_of(rest.unwrap_or(id));
            self.put_run(Run { lane: home, head: id, addr, end, chunks: 1 });
        } else if self.chunks.state(id) == State::Away && point > self.lanes.row(home).done {
            // A plan is under way, and puts it back as it is told here.
            *self.lanes.note_mut(id) = Note::new(home, point);
            self.lanes.row_mut(home).begin_waiting();
        }
        next
    }

    /// Takes a chunk back in the order of a stream: none is the one it was allocated on.
    pub(crate) fn free_on(&mut self, addr: u64, stream: Stream) -> Result<Freed, HostMemoryExhausted> {
        if stream.is_simple(self.simple) {
            return Ok(match self.free_simple(addr) {
                Ok(()) => Freed::Done,
                Err(refused) => Freed::Refused(refused),
            });
        }
        let Some(id) = self.chunk_at(addr) else { return Ok(Freed::Refused(Refused::NotAChunk)) };
        if !self.chunks.in_use(id) {
            return Ok(Freed::Refused(Refused::AlreadyFree));
        }
        if !self.mixed && stream != Stream::NONE {
            self.admit(stream)?;
        }
        if !self.mixed {
            return Ok(self.free(addr));
        }
        let lane = self.lane_to_free_in(id, stream)?;
        self.counters.freed(self.chunks.size(id), self.chunks.cold(id).requested);
        self.free_in_lane(id, lane);
        Ok(self.freed_in_queue())
    }

    /// The lane in which a chunk in use is freed in the order of a stream, a new one if need be. Several lanes are told
    /// apart.
    #[inline(always)]
    pub(in crate::core) fn lane_to_free_in(
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
        let Some(id) = self.chunk_at(addr) else { return Ok(Err(Refused::NotAChunk)) };
        if !self.chunks.in_use(id) {
            return Ok(Err(Refused::AlreadyFree));
        }
        self.admit(stream)?;
        // While there is one lane, chunks are freed in it too, or else another comes before.
        self.home_recorded = true;
        if self.mixed {
            let lane = self.lanes.enter(stream)?;
            self.lanes.record(id, lane)?;
        }
        Ok(Ok(()))
    }
}
