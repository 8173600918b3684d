//! What a pool records into the history, while one is recorded.

use super::listener::{RegionEvent, record};
use crate::history::{self, Captured, Entry, Kind, Recorder, options};
use bfc_core::arena::Arena;
use bfc_core::heap::{RegionGrowth, Tag};
use bfc_core::ids::NIL;
use bfc_core::request::Request;
use bfc_core::stats::FailureCause;
use bfc_core::stream_id::Stream;

/// A pool's part in the recording. It is in the pool while that is recorded.
pub(super) struct PoolHistory {
    recorder: Recorder,
    /// How many names of operations were stored.
    named: u32,
    /// The step of the last request in a scope.
    step: u64,
}

/// Where a request comes from.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    /// The number of its operation's name, or 0.
    number: u32,
    /// The number of its backtrace, or 0.
    stack: u32,
}

impl Origin {
    pub(super) const NONE: Self = Origin { number: 0, stack: 0 };
}

impl PoolHistory {
    /// Begins with what the pool has already.
    pub(super) fn new(recorder: Recorder, arena: &Arena) -> Self {
        recorder.record_rare_event(&Entry { bytes: arena.growth().limit(), ..Entry::of(Kind::Begin) });
        record_options(&recorder, arena);
        let mut history = PoolHistory { recorder, named: 0, step: 0 };
        history.record_present(arena);
        history
    }

    /// Returns whether the recording has ended.
    pub(super) fn is_over(&self) -> bool {
        self.recorder.is_over()
    }

    #[cold]
    fn record_present(&mut self, arena: &Arena) {
        let mut in_use = 0;
        for (_, region) in arena.regions().iter() {
            if arena.range().is_none() {
                record(&self.recorder, RegionEvent::Obtained, region.span());
            }
            let mut mapped = arena.range().and_then(|_| arena.mapped_from(region.first));
            while let Some((span, behind)) = mapped {
                record(&self.recorder, RegionEvent::Obtained, span);
                mapped = arena.mapped_from(behind);
            }
            let (chunks, mut id) = (arena.chunks(), region.first);
            while id != NIL {
                if chunks.in_use(id) {
                    let (cold, tag, bytes) = (chunks.cold(id), chunks.tag(id), chunks.size(id));
                    in_use += bytes;
                    let number = self.number_of(&tag, arena, in_use);
                    let (address, requested) = (chunks.addr(id), cold.requested);
                    let entry =
                        Entry { address, bytes, requested, in_use, number, ..Entry::of(Kind::Present) };
                    self.recorder.record(&entry);
                }
                id = chunks.next(id);
            }
        }
    }

    /// Records an allocation. `before` bytes were in use before it.
    #[inline(always)]
    pub(super) fn allocated(
        &self,
        arena: &Arena,
        address: u64,
        requested: u64,
        stream: Stream,
        before: u64,
        Origin { number, stack }: Origin,
    ) {
        let in_use = arena.counters().bytes_in_use;
        let (stream, bytes) = (stream.handle(), in_use.wrapping_sub(before));
        let entry =
            Entry { address, bytes, requested, stream, in_use, number, stack, ..Entry::of(Kind::Alloc) };
        self.recorder.record(&entry);
    }

    /// Records a free. `before` bytes were in use before it.
    #[inline(always)]
    pub(super) fn freed(&self, arena: &Arena, address: u64, stream: Stream, before: u64) {
        let in_use = arena.counters().bytes_in_use;
        let (stream, bytes) = (stream.handle(), before.wrapping_sub(in_use));
        self.recorder.record(&Entry { address, bytes, stream, in_use, ..Entry::of(Kind::Free) });
    }

    /// Records a failed request.
    #[cold]
    pub(super) fn failed(&mut self, arena: &Arena, request: &Request<'_>, cause: FailureCause) {
        let (in_use, bytes, cause) = (arena.counters().bytes_in_use, arena.largest_free(), cause as u8 + 1);
        let (requested, Origin { number, stack }) =
            (request.requested, self.origin_of(request, arena, in_use));
        let entry = Entry { cause, bytes, requested, in_use, number, stack, ..Entry::of(Kind::OutOfMemory) };
        self.recorder.record_rare_event(&entry);
    }

    /// Records that free memory was given back.
    #[cold]
    pub(super) fn trimmed(&self, arena: &Arena, bytes: u64) {
        let in_use = arena.counters().bytes_in_use;
        self.recorder.record_rare_event(&Entry { bytes, in_use, ..Entry::of(Kind::Trim) });
    }

    /// Records another limit.
    #[cold]
    pub(super) fn limited(&self, arena: &Arena) {
        let (bytes, in_use) = (arena.growth().limit(), arena.counters().bytes_in_use);
        self.recorder.record_rare_event(&Entry { bytes, in_use, ..Entry::of(Kind::Limit) });
    }

    /// Records the end of the pool.
    #[cold]
    pub(super) fn ended(&self) {
        self.recorder.record_rare_event(&Entry::of(Kind::End));
    }

    /// Returns where a request comes from. Stores its operation's name first if that is new.
    #[inline]
    pub(super) fn origin_of(&mut self, request: &Request<'_>, arena: &Arena, in_use: u64) -> Origin {
        let number = request.scope.map_or(0, |tag| self.number_of(tag, arena, in_use));
        Origin { number, stack: Captured::stack_of(request.stack) }
    }

    /// Returns the number of an operation's name, which is stored first if it is new. Records a new step.
    fn number_of(&mut self, tag: &Tag, arena: &Arena, in_use: u64) -> u32 {
        if tag.name > self.named {
            self.store_names(tag.name, arena);
        }
        if tag.name != 0 && tag.step != self.step {
            self.step = tag.step;
            self.recorder.record_rare_event(&Entry { bytes: tag.step, in_use, ..Entry::of(Kind::Step) });
        }
        tag.name
    }

    #[cold]
    #[inline(never)]
    fn store_names(&mut self, up_to: u32, arena: &Arena) {
        for number in self.named + 1..=up_to {
            if let Some(name) = arena.names().name(number) {
                history::name_operation(&self.recorder, number, name);
            }
        }
        self.named = up_to;
    }
}

/// Stores the options that a replay of the pool's requests needs, where newer events do not displace them.
#[cold]
fn record_options(recorder: &Recorder, arena: &Arena) {
    let settings = arena.settings();
    let is_set = [
        (options::GROWTH, settings.growth.grows()),
        (options::GROWTH_NEED, settings.growth == RegionGrowth::ByNeed),
        (options::GARBAGE_COLLECTION, settings.garbage_collection),
        (options::SPLIT_ALWAYS, settings.split_always),
        (options::TWO_ENDS, arena.has_two_ends()),
        (options::VIRTUAL, arena.range().is_some()),
        (options::TIMESTAMPS, settings.reuse.has_stamps()),
        (options::PLAN, arena.plan().is_some()),
    ];
    let bits = is_set.into_iter().filter(|(_, is_set)| *is_set).fold(0, |bits, (bit, _)| bits | bit);
    let fraction = settings.fragmentation_fraction.to_bits();
    history::note_options(recorder, bits, [arena.growth().limit(), settings.initial_region, fraction]);
}
