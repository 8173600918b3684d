//! The progress of queues: which work is done, which work free memory waits for, and which streams' work may touch a
//! chunk.

use super::chunk_state::{ChunkStreamState, QueueId, UNOWNED};
use super::queue::{QueueList, StreamQueue};
use super::stream_heap::{StreamHeap, StreamMode};
use crate::ids::ChunkId;
use crate::request::Request;
use crate::sort::sort_by_key;
use crate::steps;
use crate::stream_id::Stream;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// Work of a queue up to one of its points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// The queue.
    pub queue: QueueId,
    /// The number of a free. The work before that free is meant.
    pub point: u64,
}

/// A queue with work that free memory waits for.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished {
    /// The work.
    pub work: Work,
    /// The stream of the queue.
    pub stream: Stream,
    /// Whether the stream is no longer known: its name may belong to another stream by now.
    pub forgotten: bool,
}

/// The progress of a queue's work.
#[derive(Clone, Copy, Debug)]
pub struct QueueProgress {
    /// The stream of the queue.
    pub stream: Stream,
    /// Whether the stream is no longer known: its name may belong to another stream by now.
    pub forgotten: bool,
    /// The number of the queue's newest free.
    pub newest: u64,
    /// The number of the last free whose work is done.
    pub done: u64,
}

impl StreamHeap {
    /// Returns whether some work is known to be done. Work of a queue counts as done once the queue's position was
    /// given up or reused for another stream.
    pub fn is_done(&self, work: Work) -> bool {
        self.queues.entry_if_any(work.queue).is_none_or(|entry| work.point <= entry.done)
    }

    /// Returns the caller's name of the private pool that a stream's name belongs to.
    pub fn private_name(&self, stream: Stream) -> Option<u64> {
        *self.queues.pools.get((stream.pool() as usize).checked_sub(1)?)?
    }

    /// Returns how many free bytes a request in the order of a stream could not get now.
    pub(crate) fn waiting_bytes(&self, stream: Stream) -> u64 {
        if !self.is_multi() {
            return 0;
        }
        let own = self.queues.find(self.queues.directed(stream));
        let is_done = |ChunkStreamState { queue, point, .. }: &ChunkStreamState| {
            self.queues.entry_if_any(*queue).is_some_and(|entry| *point <= entry.done)
        };
        let chunks = self.heap.chunks().slab().iter().zip(&self.queues.chunk_states);
        let is_ready =
            |state: &ChunkStreamState| !state.has_uses() && (Some(state.queue) == own || is_done(state));
        chunks.filter(|(hot, state)| hot.is_held() && !is_ready(state)).map(|(hot, _)| hot.size()).sum()
    }

    /// Returns the number of positions in the table of queues. [`Self::unfinished`] yields at most that many queues.
    pub fn queue_count(&self) -> usize {
        self.queues.count()
    }

    /// Returns the queues whose work free memory waits for, among those that `concerns` accepts. The work of private
    /// pools waits for their release.
    pub fn unfinished(&self, concerns: impl Fn(QueueId) -> bool) -> impl Iterator<Item = Unfinished> {
        let waiting = self.queues.listed(QueueList::Unfinished).filter(move |&(queue, entry)| {
            steps::count();
            let is_waited_for = || {
                // Memory that was freed here, used here, or freed here and waits for other queues too.
                let queues = &self.queues;
                queues.has_pending(queue) || queues.has_pending_uses(queue) || entry.has_chunks_that_wait()
            };
            entry.stream.pool() == 0 && concerns(queue) && is_waited_for()
        });
        waiting.map(|(queue, entry)| Unfinished {
            work: Work { queue, point: entry.point },
            stream: entry.stream,
            forgotten: entry.forgotten,
        })
    }

    /// Declares that all work queued on a stream so far is done. With `forgotten`, this includes forgotten streams of
    /// the same name, which may still have work.
    pub fn stream_done(&mut self, stream: Stream, forgotten: bool) {
        if let StreamMode::Single { stream: sole, synchronized_frees, .. } = &mut self.mode {
            if *sole == stream {
                *synchronized_frees = self.heap.counters().frees();
            }
            return;
        }
        if let Some(queue) = self.queues.find(stream) {
            self.queue_done(queue, self.queues.entry(queue).point);
        }
        let mut next = self.queues.forgotten_of(stream).next().filter(|_| forgotten);
        while let Some(queue) = next {
            self.queue_done(queue, self.queues.entry(queue).point);
            next = self.queues.next_forgotten_of(stream, queue);
        }
    }

    /// Forgets a stream that is about to end. Memory freed on it still waits for its work, and its name may later stand
    /// for another stream. Returns the work, if there is any to wait for.
    pub fn forget_stream(&mut self, stream: Stream) -> Result<Option<Work>, HostMemoryExhausted> {
        if !self.is_multi() {
            if self.single_stream() != Some(stream) || self.heap.counters().is_unused() {
                return Ok(None);
            }
            self.tell_apart()?;
        }
        // Memory that the stream leaves in private pools is not reused before these are released.
        while let Some(queue) = self.queues.first_private_on(stream) {
            self.queues.advance(queue);
            self.queues.forget(queue);
        }
        self.queues.redirections.retain(|other| other.in_pool(0) != stream);
        self.queues.routed.retain(|other| other.in_pool(0) != stream);
        let Some(queue) = self.queues.find(stream) else { return Ok(None) };
        // Memory freed there later was used before this point.
        let work = Work { queue, point: self.queues.advance(queue) };
        self.queues.forget(queue);
        Ok((!self.queues.entry(queue).is_idle()).then_some(work))
    }

    /// Returns a new point of a queue, for the work queued there next.
    pub fn next_work(&mut self, queue: QueueId) -> Work {
        Work { queue, point: self.queues.advance(queue) }
    }

    /// Returns the queue that serves a request, if its stream was seen before.
    pub fn queue_of_request(&self, request: &Request<'_>) -> Option<QueueId> {
        self.queues.find(self.queues.directed(request.stream))
    }

    /// Returns the queue that serves a request that was tried before, if streams are told apart and the request is in the
    /// order of one. The queue is added anew if it was idle and its position was reused meanwhile.
    pub fn enter_request(&mut self, request: &Request<'_>) -> Result<Option<QueueId>, HostMemoryExhausted> {
        if !self.is_multi() || request.stream.is_any() {
            return Ok(None);
        }
        self.queues.enter(self.queues.directed(request.stream)).map(Some)
    }

    /// Keeps the queues of streams that become idle: the program must forget each stream itself, and this needs the
    /// queue.
    pub fn keep_idle(&mut self) {
        self.queues.idle.turn_off();
    }

    /// Returns the queue of a stream, if streams are told apart and the stream was seen before.
    pub fn queue_of(&self, stream: Stream) -> Option<QueueId> {
        self.queues.find(stream)
    }

    /// Returns the progress of a queue's work.
    pub fn progress_of(&self, queue: QueueId) -> QueueProgress {
        // Nothing is left to report for a position that was given up.
        let given_up = QueueProgress { stream: Stream::NONE, forgotten: true, newest: 0, done: u64::MAX };
        let Some(entry) = self.queues.entry_if_any(queue) else { return given_up };
        QueueProgress {
            stream: entry.stream,
            forgotten: entry.forgotten,
            newest: entry.point,
            done: entry.done,
        }
    }

    /// Returns the queues of forgotten streams of a name.
    pub fn forgotten_queues(&self, stream: Stream) -> impl Iterator<Item = QueueId> + '_ {
        self.queues.forgotten_of(stream)
    }

    /// Returns the points of a queue's free chunks that also wait for recorded uses, in rising order. Returns `None` if
    /// there are more places of recorded uses than `worth` to examine, or no host memory for the points.
    pub fn points_with_uses(&self, queue: QueueId, worth: usize) -> Option<Vec<u64>> {
        if self.queues.uses.places() > worth && self.queues.entry(queue).has_chunks_that_wait() {
            return None;
        }
        let mut points = Vec::new();
        for used in self.queues.uses.iter().filter(|used| used.point != 0) {
            let chunk_state = self.queues.chunk_state(used.chunk);
            if chunk_state.queue == queue {
                points.try_reserve(1).ok()?;
                points.push(chunk_state.point);
            }
        }
        sort_by_key(&mut points, |&point| point);
        Some(points)
    }

    /// Returns the points of a queue that free chunks wait for, in rising order, possibly with repetitions. Points of
    /// chunks that also wait for recorded uses are left out.
    pub fn points_waited_for(&self, queue: QueueId) -> impl Iterator<Item = u64> + '_ {
        let entry = self.queues.entry(queue);
        let own = entry.own.iter(&self.queues.chunk_states);
        let mut chunks = own.map(|id| self.queues.chunk_state(id).point).peekable();
        let mut uses = self.queues.uses.listed(&entry.uses).map(|used| used.point).peekable();
        core::iter::from_fn(move || match (chunks.peek(), uses.peek()) {
            (Some(chunk), Some(used)) if used < chunk => uses.next(),
            (Some(_), _) => chunks.next(),
            (None, _) => uses.next(),
        })
    }
}

/// The order of work that a chunk was allocated in, or is free in.
#[derive(Clone, Copy)]
pub struct Order {
    /// The stream.
    pub stream: Stream,
    /// The private pool that the chunk belongs to, by the caller's name for it.
    pub pool: Option<u64>,
    /// Whether the stream is still known. Otherwise its name may belong to another stream by now.
    pub(crate) is_current: bool,
}

/// The order of one chunk as the number of its queue, and whether the chunk also waits for other queues.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) queue: u32,
    pub(crate) waits: bool,
}

impl Mark {
    pub(crate) const NONE: Self = Mark { queue: u32::MAX, waits: false };
}

impl StreamHeap {
    /// Returns whether work whose end is not known may touch a chunk, in use or free. That is the case if the chunk was
    /// used in the order of a stream. For memory without a stream, the free declares that the work is done.
    pub fn is_in_stream_order(&self, id: ChunkId) -> bool {
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
    pub fn is_private(&self, id: ChunkId) -> bool {
        if !self.is_multi() || self.is_reusable(id) {
            return false;
        }
        let queue = self.queues.chunk_state(id).queue;
        queue != UNOWNED && self.queues.entry(queue).stream.pool() != 0
    }

    /// Reserves the memory that freeing a chunk in use in the order of a stream may need. Returns whether there was
    /// enough.
    pub fn make_room_to_free_on(&mut self, addr: u64, stream: Stream) -> bool {
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
    pub fn living_streams(&self) -> impl Iterator<Item = Stream> + '_ {
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
    pub(crate) fn mark(&self, id: ChunkId) -> Mark {
        if !self.is_multi() {
            return Mark::NONE;
        }
        let chunk_state = self.queues.chunk_state(id);
        #[allow(clippy::cast_possible_truncation)] // a queue's number has 32 bits
        let queue = chunk_state.queue.index() as u32;
        if chunk_state.queue == UNOWNED { Mark::NONE } else { Mark { queue, waits: chunk_state.has_uses() } }
    }

    /// Returns the orders of all queues.
    pub(crate) fn orders(&self) -> impl Iterator<Item = Order> + '_ {
        self.queues.all().map(|(queue, entry)| Order {
            stream: entry.stream,
            pool: self.private_name(entry.stream),
            is_current: self.queues.find(entry.stream) == Some(queue),
        })
    }
}
