//! Writes a history as a trace for Perfetto: counters of each pool, its steps and operations, failed requests, marks,
//! and how long the largest allocations lived.
//!
//! ```text
//!   schema     the part of Perfetto's messages that is used        lanes      the tracks of the largest allocations
//! ```

mod lanes;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Write};

use os::terms::{NO_OPERATION, is_no_limit};
use prost::Message;

use bfc_formats::history::layout::{Kind, cause_name};
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::timeline::{PoolState, follow};
use lanes::{Lanes, largest};
use schema::{
    Annotation, Clock, ClockSnapshot, Counter, Event, EventType, Packet, Process, REAL_TIME, TRACE_TIME,
    Trace, Track, Unit,
};

/// The only source of packets.
const SEQUENCE: u32 = 1;
/// The track of the process, with the marks.
const PROCESS: u64 = 1;
/// The tracks of a pool, starting with its own number.
const COUNTERS: [&str; 4] = ["live", "in use", "held", "limit"];
const STEPS: u64 = 5;
const OPERATIONS: u64 = 6;
const LANES: u64 = 7;

/// Writes the trace.
pub fn write(history: &History, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer {
        history,
        out,
        lanes: Lanes::new(largest(history)),
        pools: BTreeMap::new(),
        end: history.events.last().map_or(0, |last| last.time),
        failed: None,
    };
    writer.begin()?;
    follow(history, |event, state| {
        if writer.failed.is_none() {
            writer.failed = writer.see(event, state).err();
        }
    });
    match writer.failed.take() {
        Some(error) => Err(error),
        None => writer.finish(),
    }
}

/// What the tracks of a pool show.
#[derive(Default)]
struct Shown {
    counters: [Option<u64>; COUNTERS.len()],
    has_step: bool,
    /// The operation that allocates. 0 is none.
    operation: u32,
    lanes: u64,
}

struct Writer<'a> {
    history: &'a History,
    out: &'a mut dyn Write,
    lanes: Lanes,
    pools: BTreeMap<u16, Shown>,
    end: u64,
    failed: Option<io::Error>,
}

impl Writer<'_> {
    fn packet(&mut self, packet: Packet) -> io::Result<()> {
        let packet = Packet { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    fn event(&mut self, time: u64, track: u64, kind: EventType, event: Event) -> io::Result<()> {
        let event = Event { r#type: Some(kind as i32), track_uuid: Some(track), ..event };
        self.packet(Packet { timestamp: Some(time), track_event: Some(event), ..Packet::default() })
    }

    fn track(&mut self, track: Track) -> io::Result<()> {
        self.packet(Packet { track_descriptor: Some(track), ..Packet::default() })
    }

    fn begin(&mut self) -> io::Result<()> {
        let History { began, process, .. } = *self.history;
        let clock = |id, time| Clock { clock_id: Some(id), timestamp: Some(time) };
        let clocks = vec![clock(TRACE_TIME, 0), clock(REAL_TIME, began)];
        let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(TRACE_TIME as i32) };
        self.packet(Packet { timestamp: Some(0), clock_snapshot: Some(snapshot), ..Packet::default() })?;
        let name = Some(self.history.program.clone());
        let process = Process { pid: Some(process.cast_signed()), process_name: name.clone() };
        self.track(Track { uuid: Some(PROCESS), name, process: Some(process), ..Track::default() })
    }

    fn see(&mut self, event: &Recorded, state: &PoolState) -> io::Result<()> {
        let Recorded { time, pool, .. } = *event;
        if event.kind == Kind::Mark {
            let name = self.history.mark(event.name).to_string();
            return self.event(time, PROCESS, EventType::Instant, named(name));
        }
        if let Entry::Vacant(new) = self.pools.entry(pool) {
            new.insert(Shown::default());
            self.pool(pool)?;
        }
        match event.kind {
            Kind::Step => self.step(time, pool, Some(event.bytes))?,
            Kind::OutOfMemory => {
                let mut annotations = vec![
                    number("requested bytes", event.requested),
                    number("largest free chunk", event.bytes),
                    text("cause", cause_name(event.cause)),
                ];
                annotations.extend(self.name_of(pool, event.name).map(|name| text("operation", &name)));
                annotations.extend(self.frames(event));
                let failure = Event { debug_annotations: annotations, ..named("out of memory".into()) };
                self.event(time, tracks(pool), EventType::Instant, failure)?;
            }
            Kind::Alloc | Kind::Present => {
                let has_step = self.pools.get(&pool).is_some_and(|shown| shown.has_step);
                if event.name != 0 && !has_step && self.history.overwritten() == 0 {
                    // Only changes are recorded, and each pool begins with step 0.
                    self.step(time, pool, Some(0))?;
                }
                if event.kind == Kind::Alloc {
                    self.operation(time, pool, event.name)?;
                }
                self.end_lanes(time, pool, event.address, 1)?;
                self.begin_lane(event)?;
            }
            Kind::Free => self.end_lanes(time, pool, event.address, 1)?,
            Kind::Returned => self.end_lanes(time, pool, event.address, event.bytes)?,
            Kind::End => {
                self.end_lanes(time, pool, 0, u64::MAX)?;
                self.operation(time, pool, 0)?;
                self.step(time, pool, None)?;
            }
            _ => {}
        }
        self.counters(time, pool, state)
    }

    /// Describes the tracks of a pool.
    fn pool(&mut self, pool: u16) -> io::Result<()> {
        let name = match self.history.pool(pool) {
            Some((device, name)) => format!("device {device} ({name})"),
            None => format!("pool {pool}"),
        };
        let base = tracks(pool);
        let track = |uuid, parent, name: &str| Track {
            uuid: Some(uuid),
            parent_uuid: Some(parent),
            name: Some(name.to_owned()),
            ..Track::default()
        };
        self.track(track(base, PROCESS, &name))?;
        for (number, counter) in (1..).zip(COUNTERS) {
            let unit = Some(Counter { unit: Some(Unit::Bytes as i32) });
            self.track(Track { counter: unit, ..track(base + number, base, counter) })?;
        }
        self.track(track(base + STEPS, base, "steps"))?;
        self.track(track(base + OPERATIONS, base, "operations"))
    }

    fn counters(&mut self, time: u64, pool: u16, state: &PoolState) -> io::Result<()> {
        let limit = if is_no_limit(state.limit) { 0 } else { state.limit };
        let values = [state.requested, state.in_use, state.held, limit];
        for (index, value) in values.into_iter().enumerate() {
            let Some(shown) = self.pools.get_mut(&pool) else { continue };
            if shown.counters[index].replace(value) != Some(value) {
                let track = tracks(pool) + 1 + index as u64;
                let value = Event { counter_value: Some(value.cast_signed()), ..Event::default() };
                self.event(time, track, EventType::Counter, value)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, time: u64, pool: u16, step: Option<u64>) -> io::Result<()> {
        let Some(shown) = self.pools.get_mut(&pool) else { return Ok(()) };
        let had = std::mem::replace(&mut shown.has_step, step.is_some());
        let track = tracks(pool) + STEPS;
        if had {
            self.event(time, track, EventType::SliceEnd, Event::default())?;
        }
        match step {
            Some(step) => self.event(time, track, EventType::SliceBegin, named(format!("step {step}"))),
            None => Ok(()),
        }
    }

    /// Shows which operation allocates, as long as no other does.
    fn operation(&mut self, time: u64, pool: u16, operation: u32) -> io::Result<()> {
        let Some(shown) = self.pools.get_mut(&pool) else { return Ok(()) };
        let before = std::mem::replace(&mut shown.operation, operation);
        if before == operation {
            return Ok(());
        }
        let track = tracks(pool) + OPERATIONS;
        if before != 0 {
            self.event(time, track, EventType::SliceEnd, Event::default())?;
        }
        match self.name_of(pool, operation) {
            Some(name) => self.event(time, track, EventType::SliceBegin, named(name)),
            None => Ok(()),
        }
    }

    fn name_of(&self, pool: u16, operation: u32) -> Option<String> {
        self.history.operation_name(pool, operation).map(|name| name.to_string())
    }

    fn begin_lane(&mut self, event: &Recorded) -> io::Result<()> {
        let Some(lane) = self.lanes.begin(event) else { return Ok(()) };
        let Some(shown) = self.pools.get_mut(&event.pool) else { return Ok(()) };
        let uuid = tracks(event.pool) + LANES + lane;
        if lane >= shown.lanes {
            shown.lanes = lane + 1;
            // Tracks with the same name are shown as one.
            let track = Track {
                uuid: Some(uuid),
                parent_uuid: Some(tracks(event.pool)),
                name: Some("largest allocations".into()),
                ..Track::default()
            };
            self.track(track)?;
        }
        let name = self.name_of(event.pool, event.name).unwrap_or_else(|| NO_OPERATION.into());
        let mut annotations = vec![
            number("bytes", event.bytes),
            number("requested bytes", event.requested),
            Annotation { pointer_value: Some(event.address), ..annotation("address") },
        ];
        annotations.extend(event.stream.map(|stream| number("stream", stream)));
        annotations.extend(self.frames(event));
        let slice = Event { debug_annotations: annotations, ..named(name) };
        self.event(event.time, uuid, EventType::SliceBegin, slice)
    }

    /// The backtrace of an event.
    fn frames(&self, event: &Recorded) -> impl Iterator<Item = Annotation> {
        self.history.frames(event.stack).iter().map(|frame| text("frame", &frame.function))
    }

    fn end_lanes(&mut self, time: u64, pool: u16, address: u64, bytes: u64) -> io::Result<()> {
        for lane in self.lanes.end(pool, address, bytes) {
            self.event(time, tracks(pool) + LANES + lane, EventType::SliceEnd, Event::default())?;
        }
        Ok(())
    }

    /// Ends slices that have no end in the history.
    fn finish(mut self) -> io::Result<()> {
        let pools: Vec<u16> = self.pools.keys().copied().collect();
        for pool in pools {
            self.end_lanes(self.end, pool, 0, u64::MAX)?;
            self.operation(self.end, pool, 0)?;
            self.step(self.end, pool, None)?;
        }
        Ok(())
    }
}

/// The number of the first track of a pool.
fn tracks(pool: u16) -> u64 {
    (u64::from(pool) + 1) << 32
}

fn named(name: String) -> Event {
    Event { name: Some(name), ..Event::default() }
}

fn annotation(name: &str) -> Annotation {
    Annotation { name: Some(name.to_owned()), ..Annotation::default() }
}

fn number(name: &str, value: u64) -> Annotation {
    Annotation { uint_value: Some(value), ..annotation(name) }
}

fn text(name: &str, value: &str) -> Annotation {
    Annotation { string_value: Some(value.to_owned()), ..annotation(name) }
}
