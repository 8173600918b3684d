//! The page's data about a pool: a row for each event, for each chunk's life, and for each region's life.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;

use serde::{Serialize, Serializer};

use super::columns::{Column, Columns, MOST};
use super::free_space::FreeSpace;
use super::lives::{Life, Lives, Span, place, spans};
use bfc_formats::history::layout::{Kind, cause_name};
use bfc_readers::history::ranges::Ranges;
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::stacks::{Backtrace, Frame};
use bfc_readers::history::timeline::{PoolState, follow};

/// A pool. Columns of one kind have equal lengths.
#[derive(Serialize)]
pub struct Pool {
    device: Option<i32>,
    name: String,
    /// Whether the pool is one range of addresses, in which memory is mapped in pieces.
    is_range: bool,
    /// The names of operations. Chunks have positions in it, from 1; 0 is none.
    operations: Vec<Rc<str>>,
    /// The handles of streams. Chunks have positions in it, from 1; 0 is none.
    streams: Vec<String>,
    /// Backtraces, the outermost frame first. Chunks have positions in it, from 1; 0 is none.
    stacks: Vec<Stack>,
    spans: Vec<SpanText>,
    failures: Vec<Failure>,
    /// For each event that changed the step: its position, and the step.
    steps: Vec<(usize, u64)>,
    events: BTreeMap<&'static str, Column>,
    chunks: BTreeMap<&'static str, Column>,
    regions: BTreeMap<&'static str, Column>,
}

/// A span. Addresses may be larger than the integers of JavaScript.
#[derive(Serialize)]
struct SpanText {
    address: String,
    bytes: u64,
    offset: u64,
}

#[derive(Serialize)]
struct Failure {
    event: usize,
    requested: u64,
    largest_free: u64,
    cause: &'static str,
    /// Positions in the lists of the pool, as chunks have them.
    operation: u64,
    stack: u64,
}

/// The state of a pool after each of its events.
#[derive(Default)]
struct Rows {
    numbers: Vec<u64>,
    times: Vec<u64>,
    in_use: Vec<u64>,
    known: Vec<u64>,
    requested: Vec<u64>,
    held: Vec<u64>,
    limit: Vec<u64>,
    free: Vec<u64>,
    largest_free: Vec<u64>,
    /// The bytes of the request, if the event is one.
    request: Vec<u64>,
}

#[derive(Default)]
struct Builder {
    rows: Rows,
    lives: Lives,
    space: FreeSpace,
    /// What is held, without what was obtained over it.
    held: Ranges,
    /// Failed requests, with their positions.
    failures: Vec<(usize, Recorded)>,
    steps: Vec<(usize, u64)>,
}

/// The pools of a history, whose numbers go to `columns`.
pub fn pools(history: &History, columns: &mut Columns) -> Vec<Pool> {
    let ranges = ranges(history);
    let mut builders: BTreeMap<u16, Builder> = BTreeMap::new();
    follow(history, |event, state| {
        if event.kind != Kind::Mark {
            let is_range = ranges.get(&event.pool).copied().unwrap_or(false);
            builders.entry(event.pool).or_default().see(event, state, is_range);
        }
    });
    let finish = |(number, builder): (u16, Builder)| {
        let is_range = ranges.get(&number).copied().unwrap_or(false);
        builder.finish(history, number, is_range, columns)
    };
    builders.into_iter().map(finish).collect()
}

/// Which pools are one range: a chunk in them lies across pieces that were obtained one by one.
fn ranges(history: &History) -> HashMap<u16, bool> {
    let mut ranges = HashMap::new();
    follow(history, |event, state| {
        if matches!(event.kind, Kind::Alloc | Kind::Present) {
            let region = state.regions.at(event.address);
            if region.is_some_and(|(_, end, ())| end < event.address.saturating_add(event.bytes)) {
                ranges.insert(event.pool, true);
            }
        }
    });
    ranges
}

impl Builder {
    fn see(&mut self, event: &Recorded, state: &PoolState, is_range: bool) {
        let at = self.rows.times.len();
        self.lives.see(event, u32::try_from(at).unwrap_or(u32::MAX - 1));
        self.follow_free_space(event, state, is_range);
        match event.kind {
            Kind::OutOfMemory => self.failures.push((at, *event)),
            Kind::Step => self.steps.push((at, event.bytes)),
            _ => {}
        }
        let is_request = matches!(event.kind, Kind::Alloc | Kind::OutOfMemory);
        let rows = &mut self.rows;
        // The counters of processors may differ slightly. Time does not run backwards on the page.
        let time = event.time.max(rows.times.last().copied().unwrap_or(0));
        rows.numbers.push(event.number);
        rows.times.push(time);
        rows.in_use.push(state.in_use);
        rows.known.push(state.known);
        rows.requested.push(state.requested);
        rows.held.push(state.held);
        rows.limit.push(state.limit);
        rows.free.push(self.space.total());
        rows.largest_free.push(self.space.largest());
        rows.request.push(if is_request { event.requested } else { 0 });
    }

    fn follow_free_space(&mut self, event: &Recorded, state: &PoolState, is_range: bool) {
        let (from, to) = (event.address, event.address.saturating_add(event.bytes));
        let is_wall = |address: u64| !is_range && state.regions.begins_at(address);
        match event.kind {
            Kind::Alloc | Kind::Present => self.space.take(from, to),
            Kind::Returned => {
                self.space.take(from, to);
                self.held.remove(from, to);
            }
            // No part of memory that the file does not record as held is known to be free.
            Kind::Free if state.regions.at(from).is_some_and(|(_, end, ())| is_range || end >= to) => {
                self.space.give(from, to, is_wall);
            }
            Kind::Obtained => {
                // The free space of memory that was held already is known. Examining its chunks again could take long.
                for (from, to) in self.held.gaps(from, to) {
                    self.space.give(from, to, is_wall);
                    let before = state.live.range(..from).next_back();
                    for (&address, live) in before.into_iter().chain(state.live.range(from..to)) {
                        self.space.take(address, address.saturating_add(live.bytes));
                    }
                }
                self.held.merge(from, to);
            }
            Kind::End => (self.space, self.held) = Default::default(),
            _ => {}
        }
    }

    fn finish(self, history: &History, number: u16, is_range: bool, columns: &mut Columns) -> Pool {
        let Builder { rows, lives, failures, steps, .. } = self;
        let spans = spans(&lives);
        let mut names = Names::default();
        let (device, name) = history.pool(number).unzip();
        let events = u32::try_from(rows.times.len()).unwrap_or(u32::MAX);
        let chunks = chunk_columns(history, &lives.chunks, &spans, events, &mut names, columns);
        let regions = region_columns(&lives.regions, &spans, events, columns);
        let failure = |&(event, failed): &(usize, Recorded)| Failure {
            event,
            requested: failed.requested,
            largest_free: failed.bytes,
            cause: cause_name(failed.cause),
            operation: names.operation(failed.name),
            stack: names.stack(history, failed.stack),
        };
        let failures = failures.iter().map(failure).collect();
        Pool {
            device,
            name: name.unwrap_or_default().to_owned(),
            is_range,
            operations: names
                .operations
                .list
                .iter()
                .filter_map(|&of| history.operation_name(number, of))
                .collect(),
            streams: names.streams.list.iter().map(stream_name).collect(),
            stacks: names.stacks.list.iter().map(|&stack| Stack(history.frames(stack).clone())).collect(),
            spans: spans.iter().map(SpanText::new).collect(),
            failures,
            steps,
            events: rows.columns(columns),
            chunks,
            regions,
        }
    }
}

impl Rows {
    fn columns(&self, columns: &mut Columns) -> BTreeMap<&'static str, Column> {
        BTreeMap::from([
            ("number", columns.add_ascending(&self.numbers)),
            ("time", columns.add_ascending(&self.times)),
            ("in_use", columns.add(&self.in_use)),
            ("known", columns.add(&self.known)),
            ("requested", columns.add(&self.requested)),
            ("held", columns.add(&self.held)),
            ("limit", columns.add(&self.limit)),
            ("free", columns.add(&self.free)),
            ("largest_free", columns.add(&self.largest_free)),
            ("request", columns.add(&self.request)),
        ])
    }
}

/// The different values of a property of chunks.
struct Values<T> {
    list: Vec<T>,
    positions: HashMap<T, u64>,
}

impl<T: Copy + Eq + std::hash::Hash> Values<T> {
    /// The position of a value, from 1.
    fn position(&mut self, value: T) -> u64 {
        *self.positions.entry(value).or_insert_with(|| {
            self.list.push(value);
            self.list.len() as u64
        })
    }
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Values { list: Vec::new(), positions: HashMap::new() }
    }
}

#[derive(Default)]
struct Names {
    operations: Values<u32>,
    streams: Values<u64>,
    stacks: Values<u32>,
    by_frames: HashMap<*const Frame, u32>,
}

impl Names {
    /// The position of an operation. 0 is none.
    fn operation(&mut self, number: u32) -> u64 {
        if number == 0 { 0 } else { self.operations.position(number) }
    }

    /// The position of a backtrace. 0 is none. Backtraces that differ only in addresses have the same frames, and are one.
    fn stack(&mut self, history: &History, number: u32) -> u64 {
        match &**history.frames(number) {
            [] => 0,
            frames => self.stacks.position(*self.by_frames.entry(frames.as_ptr()).or_insert(number)),
        }
    }
}

fn chunk_columns(
    history: &History,
    lives: &[Life],
    spans: &[Span],
    events: u32,
    names: &mut Names,
    columns: &mut Columns,
) -> BTreeMap<&'static str, Column> {
    let operations: Vec<u64> = lives.iter().map(|life| names.operation(life.operation)).collect();
    let stream = |life: &Life| life.stream.map_or(0, |stream| names.streams.position(stream));
    let streams: Vec<u64> = lives.iter().map(stream).collect();
    let stacks: Vec<u64> = lives.iter().map(|life| names.stack(history, life.stack)).collect();
    let mut column = |of: &dyn Fn(&Life) -> u64| columns.add(&lives.iter().map(of).collect::<Vec<_>>());
    let mut found = BTreeMap::from([
        ("first", column(&|life| u64::from(life.first))),
        ("last", column(&|life| u64::from(life.last.min(events)))),
        ("place", column(&|life| place(spans, life.address))),
        ("bytes", column(&|life| life.bytes)),
        ("requested", column(&|life| life.requested)),
        ("step", column(&|life| life.step)),
        ("is_known", column(&|life| u64::from(life.is_known))),
    ]);
    found.insert("operation", columns.add(&operations));
    found.insert("stream", columns.add(&streams));
    found.insert("stack", columns.add(&stacks));
    found
}

fn region_columns(
    lives: &[Life],
    spans: &[Span],
    events: u32,
    columns: &mut Columns,
) -> BTreeMap<&'static str, Column> {
    let mut column = |of: &dyn Fn(&Life) -> u64| columns.add(&lives.iter().map(of).collect::<Vec<_>>());
    BTreeMap::from([
        ("first", column(&|life| u64::from(life.first))),
        ("last", column(&|life| u64::from(life.last.min(events)))),
        ("place", column(&|life| place(spans, life.address))),
        ("bytes", column(&|life| life.bytes)),
    ])
}

/// The frames of a backtrace as texts, the outermost first. They are written one by one, because each pool has its own
/// list, and many backtraces have the same long names.
struct Stack(Backtrace);

impl Serialize for Stack {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().rev().map(FrameText))
    }
}

struct FrameText<'a>(&'a Frame);

impl Serialize for FrameText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for FrameText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame { function, file, line } = self.0;
        match file {
            Some(file) if *line != 0 => write!(f, "{function} ({file}:{line})"),
            Some(file) => write!(f, "{function} ({file})"),
            None => f.write_str(function),
        }
    }
}

fn stream_name(stream: &u64) -> String {
    match stream {
        1 => "default stream".to_owned(),
        2 => "per-thread default stream".to_owned(),
        handle => format!("{handle:#x}"),
    }
}

impl SpanText {
    fn new(span: &Span) -> Self {
        SpanText {
            address: format!("{:#x}", span.address),
            bytes: span.bytes.min(MOST),
            offset: span.offset.min(MOST),
        }
    }
}
