//! What fuzz targets run of the command, and what holds whatever the input is.

use bfc_formats::history::layout::Kind;
use bfc_formats::published::layout::POOLS;
use bfc_readers::counters::BYTES;
use bfc_readers::history::reader::Recorded;
use bfc_readers::published::reader::Reading;

use crate::counters;
use crate::history::memory_viz::trace::Trace as MemoryViz;
use crate::history::page::lives::{Lives, spans};
use crate::top::rates::Rates;
use crate::top::{document, metrics, text};
use crate::trace::Trace;

/// Reads a trace, as `bfc replay` and `bfc plan` do.
pub fn trace(input: &[u8]) {
    if let Ok(trace) = Trace::from_reader("fuzz", input) {
        // Each event is a line of its own.
        assert!(
            trace.incomplete.is_some()
                || input.starts_with(&[0x1f, 0x8b])
                || trace.events.len() <= input.len()
        );
        assert!(trace.chunks().iter().all(|chunk| chunk.end <= trace.events.len()));
    }
}

/// Shows the file of `bfc run --report=FILE`, as `bfc report` does.
pub fn counters(file: &[u8]) {
    match counters::summaries(file, &"fuzz") {
        Err(error) => panic!("a buffer can be read: {error}"),
        Ok((summaries, end)) => {
            let whole = file.len() / BYTES;
            assert!(summaries.len() <= whole && (end.is_err() || summaries.len() == whole));
            assert!(summaries.iter().all(|summary| summary.starts_with("process ")));
        }
    }
}

/// What the page and the snapshot for PyTorch make of the events of a history.
pub fn history(events: &[Recorded]) {
    let mut lives = Lives::default();
    (0..).zip(events).for_each(|(at, event)| lives.see(event, at));
    // An event leaves at most two parts of regions, and adds one.
    assert!(lives.chunks.len() <= events.len() && lives.regions.len() <= 3 * events.len());
    assert!(spans(&lives).len() <= lives.chunks.len() + lives.regions.len());
    let of_pools = events.iter().filter(|event| event.kind != Kind::Mark);
    let trace = MemoryViz::of(of_pools);
    // A block and the segments that it lies in and between.
    assert!(trace.entries.len() <= 8 * events.len());
}

/// Shows published statistics of one process, as `bfc top` does.
pub fn published(reading: &Reading) {
    let rows = Rates::default().take(reading);
    assert!(rows.len() <= POOLS);
    let document = document::document(reading, &rows).expect("it is a document");
    serde_json::from_str::<serde_json::Value>(&document).expect("it is JSON");
    text::once(reading, &rows);
    metrics::text(&rows);
}
