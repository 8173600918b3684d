//! Turns a device's events into a trace without contradictions.
//!
//! PyTorch's viewer begins with the last moment and undoes one entry after another. It fails at an allocation outside
//! of any segment and at a missing segment. A history may have both, because it lacks its oldest events, or because the
//! file is damaged. So memory whose allocation is not recorded exists since the start of the trace, and impossible
//! events are left out.

use std::collections::BTreeMap;

use bfc_formats::history::layout::Kind;
use bfc_readers::history::ranges::Ranges;
use bfc_readers::history::reader::Recorded;

/// The maximum number of marks and steps in the trace of a device. Marks are in every device's trace.
pub const MOST_MARKS: usize = 10_000;

/// The stream of segments that are mapped in parts. The viewer merges the parts only if they have the same stream, and
/// if all streams are 0 it compares 0 with null.
pub const MAPPED_STREAM: u64 = 1;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Alloc,
    Free,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    /// A request failed. The address is what the limit would have allowed to obtain.
    OutOfMemory,
    Mark,
    Step,
}

/// An entry of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub action: Action,
    /// Nanoseconds since the recording began.
    pub time: u64,
    pub address: u64,
    /// The requested bytes of an allocation, or the bytes of a segment.
    pub bytes: u64,
    pub stream: u64,
    pub origin: Origin,
}

/// Where an allocation comes from, or which mark or step it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    pub pool: u16,
    /// The number of the operation, or of the mark.
    pub name: u32,
    pub step: u64,
    /// The backtrace, for `History::frames`. 0 is none.
    pub stack: u32,
}

/// An allocation that is live at the end.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub bytes: u64,
    pub requested: u64,
    pub stream: u64,
    pub origin: Origin,
}

/// The trace of a device, and its state at the end.
#[derive(Debug, Default)]
pub struct Trace {
    pub entries: Vec<Entry>,
    pub segments: Ranges,
    pub blocks: BTreeMap<u64, Block>,
    /// Whether segments grow and shrink in parts.
    pub is_expandable: bool,
}

impl Trace {
    /// Makes the trace of a device from its events and the marks, in their order.
    pub fn of<'a>(events: impl Iterator<Item = &'a Recorded> + Clone) -> Self {
        // First the memory that existed before the first event, then the changes of segments.
        let mut survey = Walker::new(Ranges::default(), true);
        survey.walk(events.clone());
        let mut plain = Walker::new(survey.found, false);
        let initial = plain.initial.clone();
        plain.walk(events.clone());
        if !plain.is_partial {
            return plain.trace();
        }
        drop(plain);
        let mut expandable = Walker::new(initial, true);
        expandable.walk(events);
        expandable.trace()
    }
}

/// Follows the events.
struct Walker {
    is_expandable: bool,
    /// Whether memory was obtained, used or returned across the boundaries of segments.
    is_partial: bool,
    segments: Ranges,
    /// The memory that existed before the first event and was not returned since.
    initial: Ranges,
    /// The memory that has ever been obtained or used.
    known: Ranges,
    /// The memory that must have existed before the first event.
    found: Ranges,
    /// The memory that has ever been part of a block.
    used: Ranges,
    blocks: BTreeMap<u64, Block>,
    entries: Vec<Entry>,
    marks: usize,
    limit: u64,
    /// The sum of the segments.
    held: u64,
    step: u64,
}

impl Walker {
    fn new(initial: Ranges, is_expandable: bool) -> Self {
        Walker {
            is_expandable,
            is_partial: false,
            held: initial.iter().map(|(from, to, ())| to - from).sum(),
            segments: initial.clone(),
            known: initial.clone(),
            initial,
            found: Ranges::default(),
            used: Ranges::default(),
            blocks: BTreeMap::new(),
            entries: Vec::new(),
            marks: 0,
            limit: 0,
            step: 0,
        }
    }

    fn trace(self) -> Trace {
        let Walker { entries, segments, blocks, is_expandable, .. } = self;
        Trace { entries, segments, blocks, is_expandable }
    }

    fn walk<'a>(&mut self, events: impl Iterator<Item = &'a Recorded>) {
        for event in events {
            if self.is_partial && !self.is_expandable {
                // The result is useless. Continuing could take long with a damaged file.
                return;
            }
            self.see(event);
        }
    }

    fn see(&mut self, event: &Recorded) {
        let Recorded { time, address, bytes, .. } = *event;
        let origin = Origin { pool: event.pool, name: event.name, step: self.step, stack: event.stack };
        // The viewer's numbers are signed.
        let end = address.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok() && bytes != 0);
        match (event.kind, end) {
            (Kind::Alloc | Kind::Present, Some(end)) => {
                self.free_within(time, address, end);
                self.cover(time, address, end);
                self.used.merge(address, end);
                let requested = event.requested.min(bytes);
                let block = Block { bytes, requested, stream: event.stream.unwrap_or(0), origin };
                self.blocks.insert(address, block);
                self.add(Action::Alloc, time, address, &block);
            }
            (Kind::Free, Some(end)) => match self.blocks.remove(&address) {
                Some(block) => self.add(Action::Free, time, address, &block),
                None => self.free_unknown(event, end),
            },
            (Kind::Obtained, Some(end)) => self.obtain(time, address, end),
            (Kind::Returned, Some(end)) => self.give_back(time, address, end),
            (Kind::OutOfMemory, _) => {
                let address = self.limit.saturating_sub(self.held);
                let (bytes, stream) = (event.requested, event.stream.unwrap_or(0));
                let entry = Entry { action: Action::OutOfMemory, time, address, bytes, stream, origin };
                self.entries.push(entry);
            }
            (Kind::Mark, _) => self.mark(Action::Mark, time, origin),
            (Kind::Step, _) => {
                self.step = bytes;
                self.mark(Action::Step, time, Origin { step: bytes, ..origin });
            }
            (Kind::Begin, _) => (self.limit, self.step) = (bytes, 0),
            (Kind::Limit, _) => self.limit = bytes,
            (Kind::End, _) => self.end(time),
            // A damaged event, or one that the viewer has no entry for.
            _ => {}
        }
    }

    fn add(&mut self, action: Action, time: u64, address: u64, block: &Block) {
        let Block { requested: bytes, stream, origin, .. } = *block;
        self.entries.push(Entry { action, time, address, bytes, stream, origin });
    }

    fn add_segment(&mut self, is_new: bool, time: u64, from: u64, to: u64) {
        let action = match (is_new, self.is_expandable) {
            (true, false) => Action::SegmentAlloc,
            (false, false) => Action::SegmentFree,
            (true, true) => Action::SegmentMap,
            (false, true) => Action::SegmentUnmap,
        };
        let (address, bytes, origin) = (from, to - from, Origin::default());
        self.held = if is_new { self.held + bytes } else { self.held - bytes };
        let stream = if self.is_expandable { MAPPED_STREAM } else { 0 };
        self.entries.push(Entry { action, time, address, bytes, stream, origin });
    }

    fn mark(&mut self, action: Action, time: u64, origin: Origin) {
        self.marks += 1;
        if self.marks <= MOST_MARKS {
            self.entries.push(Entry { action, time, address: 0, bytes: 0, stream: 0, origin });
        }
    }

    /// Frees what was allocated before the first event.
    fn free_unknown(&mut self, event: &Recorded, end: u64) {
        let Recorded { time, address, bytes, .. } = *event;
        if self.known.overlapping(address, end).next().is_none() {
            self.cover(time, address, end);
        }
        let was_there = self.initial.gaps(address, end).next().is_none();
        if was_there && self.used.overlapping(address, end).next().is_none() {
            self.used.merge(address, end);
            let (requested, origin) = (bytes, Origin::default());
            let block = Block { bytes, requested, stream: event.stream.unwrap_or(0), origin };
            self.add(Action::Free, time, address, &block);
        }
    }

    fn obtain(&mut self, time: u64, from: u64, to: u64) {
        if self.segments.overlapping(from, to).next().is_some() {
            // Its return is not recorded.
            self.give_back(time, from, to);
        }
        self.add_to_segments(from, to);
        self.known.merge(from, to);
        self.add_segment(true, time, from, to);
    }

    fn add_to_segments(&mut self, from: u64, to: u64) {
        if self.is_expandable {
            self.segments.merge(from, to);
        } else {
            self.segments.insert(from, to, ());
        }
    }

    fn give_back(&mut self, time: u64, from: u64, to: u64) {
        self.free_within(time, from, to);
        self.cover_unknown(from, to);
        self.is_partial |=
            self.segments.overlapping(from, to).any(|(base, end, ())| (base, end) != (from, to));
        for (from, to, ()) in self.segments.remove(from, to) {
            self.add_segment(false, time, from, to);
        }
        self.initial.remove(from, to);
    }

    fn end(&mut self, time: u64) {
        for (address, block) in std::mem::take(&mut self.blocks) {
            self.add(Action::Free, time, address, &block);
        }
        for (from, to, ()) in std::mem::take(&mut self.segments).iter() {
            self.add_segment(false, time, from, to);
        }
        self.initial = Ranges::default();
    }

    /// Makes sure that used memory is part of a segment.
    fn cover(&mut self, time: u64, from: u64, to: u64) {
        self.cover_unknown(from, to);
        for (from, to) in self.segments.gaps(from, to).collect::<Vec<_>>() {
            // It existed before, and its second allocation is not recorded.
            self.add_to_segments(from, to);
            self.add_segment(true, time, from, to);
        }
        self.is_partial |= self.segments.overlapping(from, to).nth(1).is_some();
    }

    /// Treats unknown memory as memory that existed from the beginning.
    fn cover_unknown(&mut self, from: u64, to: u64) {
        for (from, to) in self.known.gaps(from, to).collect::<Vec<_>>() {
            let ranges = [&mut self.found, &mut self.initial, &mut self.segments, &mut self.known];
            ranges.into_iter().for_each(|ranges| ranges.merge(from, to));
            self.held += to - from;
        }
    }

    fn blocks_within(&self, from: u64, to: u64) -> Vec<u64> {
        let before = self.blocks.range(..from).next_back();
        let before = before.filter(|(address, block)| **address + block.bytes > from);
        let within = self.blocks.range(from..to);
        before.into_iter().chain(within).map(|(&address, _)| address).collect()
    }

    /// Frees blocks whose frees are not recorded, as when a context was lost.
    fn free_within(&mut self, time: u64, from: u64, to: u64) {
        for address in self.blocks_within(from, to) {
            if let Some(block) = self.blocks.remove(&address) {
                self.add(Action::Free, time, address, &block);
            }
        }
    }
}
