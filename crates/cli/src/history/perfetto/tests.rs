use std::collections::{HashMap, HashSet};

use prost::Message;

use super::super::samples::{PAGE, contradictory, event, history};
use super::*;

fn written(events: Vec<Recorded>) -> Trace {
    let history = history(events);
    let mut file = Vec::new();
    write(&history, &mut file).expect("memory");
    Trace::decode(&*file).expect("a trace")
}

/// Slices of a track must nest, and each event needs a track that was described before.
fn check(trace: &Trace) -> usize {
    let (mut tracks, mut open, mut slices) = (HashSet::new(), HashMap::<u64, u32>::new(), 0);
    for packet in &trace.packet {
        if let Some(track) = &packet.track_descriptor {
            assert!(tracks.insert(track.uuid), "two tracks with one number");
        }
        let Some(event) = &packet.track_event else { continue };
        assert!(tracks.contains(&event.track_uuid), "no track for {event:?}");
        let depth = open.entry(event.track_uuid.unwrap_or_default()).or_default();
        match event.r#type() {
            EventType::SliceBegin => *depth += 1,
            EventType::SliceEnd => *depth = depth.checked_sub(1).expect("a begin"),
            _ => {}
        }
        slices += usize::from(event.r#type() == EventType::SliceBegin);
        assert!(*depth <= 1, "the slices of {:?} overlap", event.track_uuid);
    }
    assert!(open.values().all(|depth| *depth == 0), "a slice has no end");
    slices
}

#[test]
fn slices_end_and_do_not_overlap() {
    let slices: usize = contradictory(1000).map(|events| check(&written(events))).sum();
    assert!(slices > 3000, "{slices}");
}

#[test]
fn the_largest_allocations_are_shown() {
    let allocations = (0..3000)
        .map(|number| Recorded { number, ..event(Kind::Alloc, number << 32, (1 + number % 1500) * PAGE) });
    let trace = written(allocations.collect());
    check(&trace);
    let bytes = trace.packet.iter().filter_map(|packet| packet.track_event.as_ref()).filter_map(|event| {
        event.debug_annotations.iter().find(|annotation| annotation.name() == "bytes")?.uint_value
    });
    let bytes: Vec<u64> = bytes.collect();
    assert_eq!(bytes.len(), lanes::SHOWN);
    assert_eq!(bytes.iter().min(), Some(&(1001 * PAGE)));
}
