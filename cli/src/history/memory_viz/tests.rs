//! Traces of histories that lack events, or contradict themselves, beside a model of PyTorch's viewer.

use std::collections::BTreeMap;

use super::super::layout::Kind;
use super::super::reader::Recorded;
use super::trace::{Action, Trace};

const PAGE: u64 = 256;

fn event(kind: Kind, address: u64, bytes: u64) -> Recorded {
    Recorded {
        number: 0,
        time: 0,
        kind,
        cause: 0,
        pool: 1,
        name: 0,
        address,
        bytes,
        requested: bytes - bytes / 8,
        stream: None,
        in_use: 0,
    }
}

/// The viewer's memory. It undoes the entries from the last to the first, as `simulate_memory` of MemoryViz.js does.
struct Viewer {
    segments: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
}

impl Viewer {
    /// Shows the trace at each of its entries.
    fn show(trace: &Trace) {
        let blocks = trace.blocks.iter().map(|(&address, block)| (address, block.bytes)).collect();
        let mut viewer = Viewer { segments: trace.segments.clone(), blocks };
        viewer.check();
        for entry in trace.entries.iter().rev() {
            let (from, to) = (entry.address, entry.address.saturating_add(entry.bytes));
            match entry.action {
                Action::Alloc => assert!(viewer.blocks.remove(&from).is_some(), "{entry:?}"),
                Action::Free => assert!(viewer.blocks.insert(from, entry.bytes).is_none(), "{entry:?}"),
                Action::SegmentAlloc => assert_eq!(viewer.segments.remove(&from), Some(to), "{entry:?}"),
                Action::SegmentFree => {
                    assert_eq!(viewer.segments.insert(from, to), None, "{entry:?}");
                }
                Action::SegmentMap => viewer.unmap(from, to),
                Action::SegmentUnmap => viewer.map(from, to),
                Action::OutOfMemory | Action::Mark | Action::Step => {}
            }
            viewer.check();
        }
    }

    fn map(&mut self, mut from: u64, mut to: u64) {
        if let Some(end) = self.segments.remove(&to) {
            to = end;
        }
        let before = self.segments.range(..from).next_back().filter(|&(_, &end)| end == from);
        if let Some((&base, _)) = before {
            from = base;
        }
        self.segments.insert(from, to);
    }

    fn unmap(&mut self, from: u64, to: u64) {
        let (&base, &end) = self.segments.range(..=from).next_back().expect("a segment");
        assert!(to <= end, "the segment is not as large");
        self.segments.remove(&base);
        if base < from {
            self.segments.insert(base, from);
        }
        if to < end {
            self.segments.insert(to, end);
        }
    }

    /// Every block has a segment: the viewer fails at the first that has none. No two overlap.
    fn check(&self) {
        let mut behind = 0;
        for (&address, &bytes) in &self.blocks {
            assert!(address >= behind, "two blocks overlap at {address:#x}");
            behind = address + bytes;
            let segment = self.segments.range(..=address).next_back();
            assert!(segment.is_some_and(|(_, &end)| address + bytes <= end), "no segment has {address:#x}");
        }
    }
}

fn trace(events: &[Recorded]) -> Trace {
    let trace = Trace::of(events.iter());
    Viewer::show(&trace);
    trace
}

fn actions(trace: &Trace) -> Vec<(Action, u64, u64)> {
    trace.entries.iter().map(|entry| (entry.action, entry.address, entry.bytes)).collect()
}

#[test]
fn a_whole_history_is_its_trace() {
    let trace = trace(&[
        event(Kind::Begin, 0, 64 * PAGE),
        event(Kind::Obtained, PAGE, 8 * PAGE),
        event(Kind::Alloc, PAGE, 2 * PAGE),
        event(Kind::Alloc, 3 * PAGE, PAGE),
        event(Kind::OutOfMemory, 0, 5 * PAGE),
        event(Kind::Free, PAGE, 2 * PAGE),
    ]);
    let expected = [
        (Action::SegmentAlloc, PAGE, 8 * PAGE),
        (Action::Alloc, PAGE, 448),
        (Action::Alloc, 3 * PAGE, 224),
        (Action::OutOfMemory, 56 * PAGE, 1120),
        (Action::Free, PAGE, 448),
    ];
    assert_eq!(actions(&trace), expected);
    assert!(!trace.is_expandable);
    assert_eq!(trace.segments, BTreeMap::from([(PAGE, 9 * PAGE)]));
    assert_eq!(trace.blocks.keys().copied().collect::<Vec<_>>(), [3 * PAGE]);
}

#[test]
fn memory_from_before_the_first_event_is_there_from_the_start() {
    let trace = trace(&[
        event(Kind::Free, 2 * PAGE, PAGE),
        event(Kind::Alloc, 5 * PAGE, PAGE),
        event(Kind::Free, 5 * PAGE, PAGE),
        event(Kind::Returned, PAGE, 8 * PAGE),
        event(Kind::Obtained, 20 * PAGE, PAGE),
    ]);
    let expected = [
        (Action::Free, 2 * PAGE, PAGE),
        (Action::Alloc, 5 * PAGE, 224),
        (Action::Free, 5 * PAGE, 224),
        (Action::SegmentFree, PAGE, 8 * PAGE),
        (Action::SegmentAlloc, 20 * PAGE, PAGE),
    ];
    assert_eq!(actions(&trace), expected);
}

#[test]
fn virtual_memory_is_mapped_in_parts() {
    let trace = trace(&[
        event(Kind::Obtained, PAGE, 4 * PAGE),
        event(Kind::Obtained, 5 * PAGE, 4 * PAGE),
        event(Kind::Alloc, 3 * PAGE, 4 * PAGE),
        event(Kind::Free, 3 * PAGE, 4 * PAGE),
        event(Kind::Returned, 2 * PAGE, 5 * PAGE),
    ]);
    assert!(trace.is_expandable);
    assert_eq!(trace.segments, BTreeMap::from([(PAGE, 2 * PAGE), (7 * PAGE, 9 * PAGE)]));
}

#[test]
fn what_lived_in_returned_memory_is_freed() {
    let trace = trace(&[
        event(Kind::Obtained, PAGE, 4 * PAGE),
        event(Kind::Alloc, PAGE, PAGE),
        event(Kind::Returned, PAGE, 4 * PAGE),
        event(Kind::Obtained, PAGE, 4 * PAGE),
        event(Kind::Alloc, PAGE, PAGE),
        event(Kind::End, 0, 0),
    ]);
    let kinds: Vec<Action> = trace.entries.iter().map(|entry| entry.action).collect();
    use Action::*;
    let one = [SegmentAlloc, Alloc, Free, SegmentFree];
    assert_eq!(kinds, [one, one].concat());
    assert!(trace.segments.is_empty() && trace.blocks.is_empty());
}

/// The numbers of a damaged file.
#[test]
fn no_history_makes_the_viewer_fail() {
    let kinds = [
        Kind::Alloc,
        Kind::Alloc,
        Kind::Alloc,
        Kind::Free,
        Kind::Free,
        Kind::Present,
        Kind::Obtained,
        Kind::Returned,
        Kind::OutOfMemory,
        Kind::End,
    ];
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut expandable = 0;
    for _ in 0..3000 {
        let (length, spread) = (random(40), 1 + random(30));
        let events: Vec<Recorded> = (0..length)
            .map(|_| {
                // The end of a pool is rare.
                let most = if random(8) == 0 { 10 } else { 9 };
                let kind = kinds[random(most) as usize];
                let (address, bytes) = (random(spread) * PAGE, random(6) * PAGE);
                match random(60) {
                    0 => event(kind, address, u64::MAX - bytes),
                    1 => event(kind, random(u64::MAX), bytes),
                    _ => event(kind, address, bytes),
                }
            })
            .collect();
        expandable += u32::from(trace(&events).is_expandable);
    }
    assert!((300..2900).contains(&expandable), "both kinds of segments: {expandable}");
}

/// A damaged file must not take for ever.
#[test]
fn many_contradictions_take_no_longer() {
    let regions = (0..200_000).map(|i| event(Kind::Obtained, 2 * i * PAGE, PAGE));
    let blocks = (0..200_000).map(|_| event(Kind::Alloc, 0, 400_000 * PAGE));
    let failures = (0..200_000).map(|_| event(Kind::OutOfMemory, 0, PAGE));
    let events: Vec<Recorded> = regions.chain(blocks).chain(failures).collect();
    let trace = Trace::of(events.iter());
    // Each block frees the one before it.
    assert_eq!(trace.entries.iter().filter(|entry| entry.action == Action::Free).count(), 199_999);
}
