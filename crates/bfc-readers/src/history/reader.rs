//! Reads the file of a history, which may be written at the same time, truncated, or damaged.
//!
//! Nothing in it is trusted: sizes are compared with the length of the file, and an event counts only if its stamp is
//! that of its place. Memory is allocated for what the file contains, not for what the header says.

#![allow(missing_docs)] // Of fields and variants whose names say it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::rc::Rc;

use super::fields::{field, number};
use super::source::Source;
use super::stacks::{Backtrace, Module, Stacks};
use bfc_formats::history::layout::{
    Event, HEADER_BYTES, Header, Kind, MAGIC, MOST_FUNCTION, MOST_TEXT, OPTIONS_BYTES, RECORDING,
    STACK_BYTES, TEXT_BYTES, TextHead, TextKind, complete, text_extent,
};

const EVENT_BYTES: usize = size_of::<Event>();
/// How many bytes of the ring are read at once.
const PIECE: usize = 1 << 20;

/// The history of a process.
#[derive(Debug, Default)]
pub struct History {
    /// The name of the file, without its folder.
    pub file: String,
    pub process: u32,
    /// When the process started, in clock ticks since the machine did.
    pub started: u64,
    pub program: String,
    /// Whether the recording was not stopped: it continues, or the process ended.
    pub is_open: bool,
    /// The number of events that the process has recorded. The file contains the last of them.
    pub written: u64,
    /// In the order in which they were recorded.
    pub events: Vec<Recorded>,
    /// Events that should be in the ring and are incomplete: the process was killed while it wrote them, or is writing
    /// them now.
    pub incomplete: u64,
    /// Names that did not fit into the file.
    pub texts_lost: u64,
    /// Events without a backtrace, because the file had no room for it.
    pub stacks_lost: u64,
    /// When the recording began, in nanoseconds since 1970.
    pub began: u64,
    pools: HashMap<u16, (i32, String)>,
    options: HashMap<u16, PoolOptions>,
    operations: HashMap<(u16, u32), Rc<str>>,
    marks: HashMap<u32, Rc<str>>,
    nameless: Rc<str>,
    /// The backtraces.
    pub stacks: Stacks,
}

/// The options of a pool when its recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolOptions {
    /// Bits of [`bfc_formats::history::layout::options`].
    pub flags: u32,
    pub limit: u64,
    /// The bytes of the first region, or 0.
    pub initial_region: u64,
    /// Between 0 and 1. 0 is none.
    pub fragmentation_fraction: f64,
}

/// An event. [`Event`] says what the numbers mean for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number, from 0.
    pub number: u64,
    /// Nanoseconds since the recording began.
    pub time: u64,
    pub kind: Kind,
    pub cause: u8,
    pub pool: u16,
    /// The number of the operation or of the mark. 0 is none.
    pub name: u32,
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub stream: Option<u64>,
    pub in_use: u64,
    /// The backtrace, for [`History::frames`]. 0 is none.
    pub stack: u32,
}

/// Why a file is not read.
#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    OtherFile,
    OtherVersion,
    CutOff { bytes: u64, expected: u64 },
    Damaged(&'static str),
    Unreadable(io::ErrorKind),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::OtherFile => f.write_str("is not a history"),
            Malformed::OtherVersion => {
                f.write_str("is a history of another version of libbfc; use the bfc command of that version")
            }
            Malformed::CutOff { bytes, expected } => {
                write!(f, "is truncated: it has {bytes} of {expected} bytes; copy it again")
            }
            Malformed::Damaged(what) => write!(f, "is damaged: {what}"),
            Malformed::Unreadable(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

impl From<io::Error> for Malformed {
    fn from(error: io::Error) -> Self {
        Malformed::Unreadable(error.kind())
    }
}

/// The beginning of the file of a history, in any version.
pub const FAMILY: &[u8; 15] = b"libbfc history ";

/// Reads a file. Its backtraces have no frames until [`Stacks::name`] has named them.
pub fn parse(source: &dyn Source) -> Result<History, Malformed> {
    let bytes = source.bytes()?;
    let file = &part(source, 0, bytes.min(HEADER_BYTES as u64))?[..];
    if !file.starts_with(FAMILY) {
        return Err(Malformed::OtherFile);
    }
    if !file.starts_with(&MAGIC) {
        return Err(Malformed::OtherVersion);
    }
    if file.len() < HEADER_BYTES {
        return Err(Malformed::CutOff { bytes, expected: HEADER_BYTES as u64 });
    }
    let sizes = [
        (field!(file, Header, header_bytes, u32) as u64, HEADER_BYTES),
        (field!(file, Header, event_bytes, u32) as u64, EVENT_BYTES),
        (field!(file, Header, text_bytes, u64), TEXT_BYTES),
    ];
    if sizes.iter().any(|&(there, here)| there != here as u64) {
        return Err(Malformed::Damaged("the sizes in the header are not those of this version"));
    }
    let capacity = field!(file, Header, capacity, u64);
    if !capacity.is_power_of_two() {
        return Err(Malformed::Damaged("the number of events is not a power of two"));
    }
    let stack_bytes = match field!(file, Header, stack_bytes, u64) {
        0 => 0,
        bytes if bytes == STACK_BYTES as u64 => bytes,
        _ => {
            return Err(Malformed::Damaged("the size of the area of backtraces is not that of this version"));
        }
    };
    let stacks = (HEADER_BYTES + TEXT_BYTES) as u64;
    let ring = stacks + stack_bytes;
    let expected = capacity.saturating_mul(EVENT_BYTES as u64).saturating_add(ring);
    if bytes < expected {
        return Err(Malformed::CutOff { bytes, expected });
    }
    let mut history = History {
        process: field!(file, Header, process, u32),
        started: field!(file, Header, started, u64),
        is_open: field!(file, Header, state, u32) == RECORDING,
        written: field!(file, Header, written, u64),
        texts_lost: field!(file, Header, text_lost, u64),
        stacks_lost: field!(file, Header, stacks_lost, u64),
        began: field!(file, Header, first.nanoseconds, u64),
        ..History::default()
    };
    let used = field!(file, Header, text_used, u64).min(TEXT_BYTES as u64);
    history.read_texts(&part(source, HEADER_BYTES as u64, used)?);
    let used = field!(file, Header, stacks_used, u64).min(stack_bytes);
    history.stacks.read(&part(source, stacks, used)?);
    history.read_events(source, ring, capacity, &Clock::of(file))?;
    Ok(history)
}

/// Reads a part, which the caller knows to be small.
fn part(source: &dyn Source, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut part = vec![0; bytes as usize];
    source.read_at(at, &mut part)?;
    Ok(part)
}

/// Returns the process that records into a file and when it started, from the first page, unless it was stopped.
pub fn writer(head: &[u8]) -> Option<(u32, u64)> {
    let is_open = head.len() >= HEADER_BYTES
        && head.starts_with(&MAGIC)
        && field!(head, Header, state, u32) == RECORDING;
    is_open.then(|| (field!(head, Header, process, u32), field!(head, Header, started, u64)))
}

/// Makes times of ticks.
struct Clock {
    begin: u64,
    ticks: u64,
    nanoseconds: u64,
}

impl Clock {
    fn of(file: &[u8]) -> Self {
        let begin = field!(file, Header, first.ticks, u64);
        let ticks = field!(file, Header, last.ticks, u64).wrapping_sub(begin);
        let (from, to) =
            (field!(file, Header, first.nanoseconds, u64), field!(file, Header, last.nanoseconds, u64));
        Clock { begin, ticks, nanoseconds: to.saturating_sub(from) }
    }

    fn time(&self, ticks: u64) -> u64 {
        let since = u128::from(ticks.saturating_sub(self.begin));
        let time = since * u128::from(self.nanoseconds) / u128::from(self.ticks.max(1));
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

impl History {
    fn read_texts(&mut self, mut area: &[u8]) {
        while area.len() >= size_of::<TextHead>() {
            let bytes = field!(area, TextHead, bytes, u32) as usize;
            let extent = text_extent(bytes);
            if extent > area.len() {
                return;
            }
            let raw = &area[size_of::<TextHead>()..size_of::<TextHead>() + bytes];
            let (pool, number) = (field!(area, TextHead, pool, u16), field!(area, TextHead, number, u32));
            let kind = field!(area, TextHead, kind, u16);
            area = &area[extent..];
            // A module has its path and more. No library writes a longer text, and each event may have it as its name.
            let most = if kind == TextKind::Module as u16 { 2 * MOST_TEXT } else { MOST_TEXT };
            if bytes > most {
                continue;
            }
            let text = String::from_utf8_lossy(raw);
            match kind {
                kind if kind == TextKind::Pool as u16 => {
                    self.pools.insert(pool, (number.cast_signed(), text.into_owned()));
                }
                kind if kind == TextKind::Operation as u16 => {
                    self.operations.insert((pool, number), text.into());
                }
                kind if kind == TextKind::Mark as u16 => {
                    self.marks.insert(number, text.into());
                }
                kind if kind == TextKind::Program as u16 => self.program = text.into_owned(),
                // A longer one is damage, and each frame would have a copy of it.
                kind if kind == TextKind::Function as u16 && bytes <= MOST_FUNCTION => {
                    self.stacks.add_function(number, &text);
                }
                kind if kind == TextKind::Module as u16 => {
                    self.stacks.modules.extend(Module::parse(number, raw));
                }
                kind if kind == TextKind::Options as u16 && bytes == OPTIONS_BYTES => {
                    self.options.insert(pool, pool_options(number, raw));
                }
                _ => {}
            }
        }
    }

    /// Reads the ring, whose first part comes after its second one if it has been filled.
    fn read_events(
        &mut self,
        source: &dyn Source,
        ring: u64,
        capacity: u64,
        clock: &Clock,
    ) -> io::Result<()> {
        let oldest = self.written.saturating_sub(capacity);
        let count = self.written - oldest;
        let place = oldest & (capacity - 1);
        let first = count.min(capacity - place);
        for (number, place, count) in [(oldest, place, first), (oldest + first, 0, count - first)] {
            let begin = ring + place * EVENT_BYTES as u64;
            self.read_part(source, (begin, begin + count * EVENT_BYTES as u64), number, clock)?;
        }
        self.incomplete = count.saturating_sub(self.events.len() as u64);
        Ok(())
    }

    /// Reads the events of a part of the ring. The first one has this number.
    fn read_part(
        &mut self,
        source: &dyn Source,
        (begin, end): (u64, u64),
        number: u64,
        clock: &Clock,
    ) -> io::Result<()> {
        const BYTES: u64 = EVENT_BYTES as u64;
        let (mut buffer, mut again) = (Vec::new(), Vec::new());
        let mut at = begin;
        while let Some((from, to)) = source.written(at).filter(|&(from, _)| from < end) {
            // Whole events.
            at = begin + from.saturating_sub(begin) / BYTES * BYTES;
            let to = begin + to.min(end).saturating_sub(begin).next_multiple_of(BYTES);
            while at < to {
                buffer.resize((to - at).min(PIECE as u64) as usize, 0);
                source.read_at(at, &mut buffer)?;
                if self.is_open {
                    again.resize(buffer.len(), 0);
                    source.read_at(at, &mut again)?;
                    drop_replaced(&mut buffer, &again);
                }
                let first = number + (at - begin) / BYTES;
                let (events, _) = buffer.as_chunks::<EVENT_BYTES>();
                let found = events.iter().enumerate();
                self.events
                    .extend(found.filter_map(|(index, bytes)| event(bytes, first + index as u64, clock)));
                at += buffer.len() as u64;
            }
        }
        Ok(())
    }

    /// The ordinal of a pool's device, and the pool's name.
    pub fn pool(&self, pool: u16) -> Option<(i32, &str)> {
        self.pools.get(&pool).map(|(device, name)| (*device, &**name))
    }

    /// The options of a pool, if they fitted into the file.
    pub fn options(&self, pool: u16) -> Option<&PoolOptions> {
        self.options.get(&pool)
    }

    /// The name of an operation of a pool, or its number where the file lacks the name. None is memory without an
    /// operation.
    pub fn operation_name(&self, pool: u16, number: u32) -> Option<Rc<str>> {
        let name = || self.operations.get(&(pool, number)).cloned();
        (number != 0).then(|| name().unwrap_or_else(|| format!("operation {number}").into()))
    }

    /// The name of a mark, which is empty where the file lacks it.
    pub fn mark(&self, number: u32) -> &Rc<str> {
        self.marks.get(&number).unwrap_or(&self.nameless)
    }

    /// The frames of a backtrace. There are none if there is no such backtrace.
    pub fn frames(&self, stack: u32) -> &Backtrace {
        self.stacks.frames(stack)
    }

    /// How many of the first events are no longer in the file.
    pub fn overwritten(&self) -> u64 {
        self.written - self.incomplete - self.events.len() as u64
    }
}

fn pool_options(flags: u32, text: &[u8]) -> PoolOptions {
    let fraction = f64::from_bits(number::<8>(text, 16));
    PoolOptions {
        flags,
        limit: number::<8>(text, 0),
        initial_region: number::<8>(text, 8),
        // The file may be damaged.
        fragmentation_fraction: if (0.0..=1.0).contains(&fraction) { fraction } else { 0.0 },
    }
}

/// Drops the events whose stamp has changed at a second look. The process may replace events while they are read, and
/// such an event may be composed of two.
fn drop_replaced(events: &mut [u8], again: &[u8]) {
    let stamp = offset_of!(Event, stamp)..offset_of!(Event, stamp) + size_of::<u64>();
    let (events, _) = events.as_chunks_mut::<EVENT_BYTES>();
    for (event, again) in events.iter_mut().zip(again.as_chunks::<EVENT_BYTES>().0) {
        if event[stamp.clone()] != again[stamp.clone()] {
            event[stamp.clone()].fill(0);
        }
    }
}

/// The event at the place of a number, if it is complete and has that number.
fn event(bytes: &[u8], number: u64, clock: &Clock) -> Option<Recorded> {
    let stamp = field!(bytes, Event, stamp, u64);
    let stack = (stamp >> 32) as u32;
    if stamp != complete(number, stack) {
        return None;
    }
    let what = field!(bytes, Event, what, u64).to_le_bytes();
    let stream = field!(bytes, Event, stream, u64);
    Some(Recorded {
        number,
        time: clock.time(field!(bytes, Event, ticks, u64)),
        kind: Kind::from_code(what[0])?,
        cause: what[1],
        pool: u16::from_le_bytes([what[2], what[3]]),
        name: u32::from_le_bytes([what[4], what[5], what[6], what[7]]),
        address: field!(bytes, Event, address, u64),
        bytes: field!(bytes, Event, bytes, u64),
        requested: field!(bytes, Event, requested, u64),
        stream: (stream != 0).then_some(stream),
        in_use: field!(bytes, Event, in_use, u64),
        stack,
    })
}
