//! Traces of histories that lack events, or contradict themselves, beside a model of PyTorch's viewer.

use std::collections::BTreeMap;

use super::super::samples::{PAGE, contradictory, event, history};
use super::trace::{Action, Trace};
use bfc_formats::history::layout::Kind;
use bfc_formats::history::layout::StackHead;
use bfc_readers::history::reader::Recorded;

/// The viewer's memory. It undoes the entries from the last to the first, as `simulate_memory` of MemoryViz.js does.
struct Viewer {
    segments: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
}

/// Ends by beginnings.
fn segments(trace: &Trace) -> BTreeMap<u64, u64> {
    trace.segments.iter().map(|(from, to, ())| (from, to)).collect()
}

impl Viewer {
    /// Shows the trace at each of its entries.
    fn show(trace: &Trace) {
        let blocks = trace.blocks.iter().map(|(&address, block)| (address, block.bytes)).collect();
        let mut viewer = Viewer { segments: segments(trace), blocks };
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

    /// Every block is in a segment: the viewer fails at the first one that is not. No two overlap.
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
    assert_eq!(segments(&trace), BTreeMap::from([(PAGE, 9 * PAGE)]));
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
    assert_eq!(segments(&trace), BTreeMap::from([(PAGE, 2 * PAGE), (7 * PAGE, 9 * PAGE)]));
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
    assert!(segments(&trace).is_empty() && trace.blocks.is_empty());
}

#[test]
fn no_history_makes_the_viewer_fail() {
    let expandable = contradictory(3000).filter(|events| trace(events).is_expandable).count();
    assert!((300..2900).contains(&expandable), "both kinds of segments: {expandable}");
}

#[test]
fn a_backtrace_is_in_the_file_once() {
    let allocation =
        |number: u64| Recorded { name: number as u32, stack: 1, ..event(Kind::Alloc, number * PAGE, PAGE) };
    let mut history = history((1..50).map(allocation).collect());
    let words = [StackHead { native: 2, ..StackHead::default() }.word(), 0xabcd1, 0xabcd2];
    history.stacks.read(&words.map(u64::to_le_bytes).concat());
    history.stacks.name(|_, _, _| Vec::new());
    let mut file = Vec::new();
    super::write(&history, &mut file).expect("memory");
    let count = |text: &str| file.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
    assert_eq!((count("operation 7"), count("0xabcd1"), count("0xabcd2")), (1, 1, 1));
}

/// A damaged file must not take forever.
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
