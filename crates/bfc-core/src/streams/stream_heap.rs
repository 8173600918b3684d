//! The heap with stream-ordered reuse, and its mode: one stream, or several.

use super::chunk_state::{QueueId, UNOWNED};
use super::queues::StreamQueues;
use crate::heap::Heap;
use crate::ids::{ChunkId, NIL};
use crate::stream_id::{NO_FAST_STREAM, Stream};
use crate::vmm::VmRange;
use bfc_hostmem::HostMemoryExhausted;

/// A heap whose free memory may belong to a stream.
pub struct StreamHeap {
    pub(super) heap: Heap,
    pub(super) queues: StreamQueues,
    pub(super) mode: StreamMode,
    /// The handle of the stream whose requests need only best fit. There is one such stream, and no stamps.
    pub(super) fast_stream: u64,
    pub(super) last_free: LastFree,
    pub(super) settings: StreamSettings,
}

/// The last free in the order of a queue.
#[derive(Clone, Copy)]
pub(super) struct LastFree {
    pub(super) queue: QueueId,
    /// The chunk, if it waits for recorded uses; otherwise NIL.
    pub(super) waiting: ChunkId,
}

impl LastFree {
    pub(super) const NONE: Self = LastFree { queue: UNOWNED, waiting: NIL };
}

/// How a pool treats streams. Fixed at creation.
#[derive(Clone, Copy)]
pub(crate) struct StreamSettings {
    /// Frees carry stamps, which exclude streams.
    pub(crate) timestamps: bool,
    /// Events tell when work is done.
    pub(crate) events: bool,
    /// Memory is given back without waiting for work, so it must not be given back under any.
    pub(crate) releases_at_once: bool,
    /// The seed of the hashes of addresses.
    pub(crate) seed: u64,
    /// The arena chooses places for requests, so none needs best fit alone.
    pub(crate) steered: bool,
}

/// Whether streams are told apart.
#[derive(Clone, Copy)]
pub(super) enum StreamMode {
    /// All chunks belong to one stream. Nothing is to be told apart, and no queue exists.
    Single {
        stream: Stream,
        /// The number of frees when the stream's work was last known to be done.
        synchronized_frees: u64,
        /// Chunks were recorded on the stream.
        has_recorded: bool,
    },
    Multi,
}

impl StreamMode {
    const NEW: Self = StreamMode::Single { stream: Stream::NONE, synchronized_frees: 0, has_recorded: false };
}

impl StreamHeap {
    #[inline(always)]
    pub(crate) fn with(heap: Heap, settings: StreamSettings) -> Self {
        StreamHeap {
            heap,
            queues: StreamQueues::new(settings.seed, settings.events),
            mode: StreamMode::NEW,
            fast_stream: first_fast_stream(settings),
            last_free: LastFree::NONE,
            settings,
        }
    }

    /// Returns the heap below the queues.
    #[inline(always)]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    #[inline(always)]
    pub(crate) fn heap_mut(&mut self) -> &mut Heap {
        &mut self.heap
    }

    /// Passes every request to the arena, which may have another place for it than the best fit.
    pub(crate) fn set_steered(&mut self) {
        self.settings.steered = true;
        self.heap.never_spare_large();
        self.fast_stream = first_fast_stream(self.settings);
    }

    /// Returns whether several streams are told apart.
    #[inline(always)]
    pub(crate) fn is_multi(&self) -> bool {
        matches!(self.mode, StreamMode::Multi)
    }

    /// Returns whether a request of a stream needs only best fit.
    #[inline(always)]
    pub(crate) fn is_fast(&self, stream: Stream) -> bool {
        stream.has_fast_handle(self.fast_stream)
    }

    /// Returns whether frees need no order: there is one stream, or none was named so far, and no stamps.
    #[inline(always)]
    pub fn frees_fast(&self) -> bool {
        self.fast_stream != NO_FAST_STREAM
    }

    /// Reserves room for `count` more chunks. The slab grows last: a vacant place always has a chunk state, also after a
    /// failure.
    #[inline]
    pub(crate) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        if self.is_multi() {
            self.queues.reserve(self.heap.chunks().places_with(count))?;
        }
        self.heap.reserve_chunks(count)
    }

    /// Makes a chunk that is in no tree and no list reusable by every stream.
    pub(crate) fn make_reusable(&mut self, id: ChunkId) {
        self.release_to_all(id, None);
    }

    /// Returns the bytes that mapped chunks tile: the regions without their tails and without unmapped chunks.
    pub(crate) fn usable_bytes(&self, vm: &VmRange) -> u64 {
        self.heap.regions().iter().map(|(_, region)| region.bytes).sum::<u64>() - vm.bytes()
    }

    /// Returns how often the work of a queue progressed. Memory may have become available each time.
    pub(crate) fn advances(&self) -> u64 {
        self.queues.advances
    }

    /// Forgets all streams, with all memory. The count of [`Self::advances`] continues.
    pub(crate) fn forget_all(&mut self) {
        let advances = self.queues.advances;
        self.queues = StreamQueues::new(self.settings.seed, self.settings.events);
        self.queues.advances = advances;
        let synchronized_frees = self.heap.counters().frees();
        self.mode = StreamMode::Single { stream: Stream::NONE, synchronized_frees, has_recorded: false };
        self.fast_stream = first_fast_stream(self.settings);
    }

    /// Gives back the host memory of past streams.
    pub(crate) fn forget_past(&mut self) {
        self.queues.forget_past();
    }

    /// Gives back host memory that the current chunks do not need.
    pub(crate) fn shrink(&mut self) {
        self.queues.shrink(self.heap.chunks().places());
    }

    /// Returns the bytes of the largest free span that belongs to one queue.
    pub(crate) fn largest_own(&self) -> u64 {
        self.queues.largest_span()
    }

    /// Returns the bytes of the largest free span that belongs to a stream's queue.
    pub fn largest_own_of(&self, stream: Stream) -> u64 {
        let own = self.queues.find(self.queues.directed(stream));
        own.map_or(0, |queue| self.queues.largest_span_of(queue))
    }

    /// Returns the host memory beside the struct itself, in bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.heap.metadata_bytes() + self.queues.metadata_bytes()
    }
}

/// Returns the handle whose requests are fast before any stream has appeared.
fn first_fast_stream(settings: StreamSettings) -> u64 {
    if settings.timestamps || settings.steered { NO_FAST_STREAM } else { Stream::NONE.fast_handle() }
}
