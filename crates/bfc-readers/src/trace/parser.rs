//! The lines of a trace: docs/trace-format.md.
//!
//! The stored data is bounded, and exceeding the bounds is an error: an endless input must not exhaust the machine's
//! memory.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use anyhow::{Result, anyhow};

use super::events::{ALIGNMENT, Event, Mark, Reusable, Trace};

/// Longer lines do not occur in traces, and binary data may have no line ends at all.
const LONGEST_LINE: u64 = 64 << 10;

/// A trace does not contain this many lines without an event.
const MOST_IDLE_LINES: u64 = 1 << 20;

/// The maximum number of events of a trace: 4 GiB.
const MOST_EVENTS: usize = 1 << 28;

/// The number of bytes kept of a mark's text.
const LONGEST_MARK: usize = 256;

const NO_MEMORY: &str = "no host memory for the rest of the trace; split it into shorter ones";

/// The state of an id: a trace names every allocation once.
enum Id {
    Live { slot: u32, bytes: u64, line: u64 },
    Freed { line: u64 },
}

/// Builds a trace from lines, or from events one by one.
#[derive(Default)]
pub struct Parser {
    trace: Trace,
    ids: HashMap<u64, Id>,
    streams: HashMap<u64, u16>,
    free_slots: Vec<u32>,
    line: u64,
    /// Lines since the last event.
    idle: u64,
    /// 128 bits, because the sum of arbitrary 64-bit sizes must not wrap.
    live: u128,
    live_requested: u128,
}

impl Parser {
    pub(super) fn lines(&mut self, name: &str, mut input: impl BufRead) -> Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|error| anyhow!("{name}: {}", self.unreadable(&error)))?;
            // The recording of a process that was killed ends with zeros: room for lines that were never written.
            if read == 0 || line.first() == Some(&0) {
                return Ok(());
            }
            self.line += 1;
            let number = self.line;
            let result = if read as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
                Err(format!("a line of more than {LONGEST_LINE} bytes; this is not a trace"))
            } else {
                str::from_utf8(&line)
                    .map_err(|_| "not text; this is not a trace".to_owned())
                    .and_then(|line| self.line(line))
            };
            result.map_err(|what| anyhow!("{name}:{number}: {what}"))?;
        }
    }

    /// The trace. `name` is for messages.
    pub fn finish(self, name: &str) -> Trace {
        Trace { name: name.to_owned(), streams: self.streams.len(), ..self.trace }
    }

    /// Explains a failed read. For gzip the line is the only useful position.
    fn unreadable(&self, error: &io::Error) -> String {
        let line = self.line;
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                format!("truncated gzip: the data ends after line {line}")
            }
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                format!("damaged gzip after line {line}: {error}")
            }
            _ => format!("cannot read on after line {line}: {error}"),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let line = line.trim_ascii();
        let mut fields = line.split_ascii_whitespace();
        let events = self.trace.events.len();
        match fields.next() {
            None => {}
            Some("+") => {
                let [id, bytes, stream] = numbers(fields, "+", ["ID", "BYTES", "STREAM"])?;
                self.alloc(id, bytes, stream)?;
            }
            Some("-") => {
                let [id, stream] = numbers(fields, "-", ["ID", "STREAM"])?;
                self.free(id, stream)?;
            }
            Some("!") => {
                let [bytes, stream] = numbers(fields, "!", ["BYTES", "STREAM"])?;
                self.refused(bytes, stream)?;
            }
            Some(first) if first.starts_with('#') => self.mark(line[1..].trim_ascii())?,
            Some("%incomplete") => {
                self.trace.incomplete = Some(cut(line["%incomplete".len()..].trim_ascii()).to_owned());
            }
            // Information from a later version.
            Some(first) if first.starts_with('%') => {}
            Some(other) => {
                let letter: String = other.chars().take(20).collect();
                return Err(format!(
                    "unknown event letter {letter:?}; an event begins with '+', '-', '!' or '#' and a space"
                ));
            }
        }
        self.idle = if self.trace.events.len() == events { self.idle + 1 } else { 0 };
        if self.idle > MOST_IDLE_LINES {
            return Err(format!("more than {MOST_IDLE_LINES} lines without an event; this is not a trace"));
        }
        Ok(())
    }

    /// Adds a request of a new id.
    pub fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> Result<(), String> {
        match self.ids.get(&id) {
            Some(Id::Live { line, .. }) => {
                return Err(format!("duplicate id {id}: allocated at line {line} and still live"));
            }
            Some(Id::Freed { line }) => {
                return Err(format!("duplicate id {id}: used before, and freed at line {line}"));
            }
            None => {}
        }
        let stream = self.stream(stream)?;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => self.new_slot()?,
        };
        self.ids.try_reserve(1).map_err(|_| NO_MEMORY)?;
        self.ids.insert(id, Id::Live { slot, bytes, line: self.line });
        self.live += rounded(bytes);
        self.live_requested += u128::from(bytes);
        raise(&mut self.trace.peak_live_bytes, self.live);
        raise(&mut self.trace.peak_wanted_bytes, self.live);
        raise(&mut self.trace.peak_requested_bytes, self.live_requested);
        self.trace.requests += 1;
        self.event(Event::Alloc { bytes, slot, stream })
    }

    /// Adds the free of a live id.
    pub fn free(&mut self, id: u64, stream: u64) -> Result<(), String> {
        let (slot, bytes) = match self.ids.get(&id) {
            Some(Id::Live { slot, bytes, .. }) => (*slot, *bytes),
            Some(Id::Freed { line }) => {
                return Err(format!("double free: id {id} was freed at line {line} already"));
            }
            None => {
                return Err(format!("free of the unknown id {id}: no line before allocates it"));
            }
        };
        let stream = self.stream(stream)?;
        self.ids.insert(id, Id::Freed { line: self.line });
        push(&mut self.free_slots, slot)?;
        self.live -= rounded(bytes);
        self.live_requested -= u128::from(bytes);
        self.event(Event::Free { slot, stream })
    }

    /// Adds a request that was refused in the program.
    pub fn refused(&mut self, bytes: u64, stream: u64) -> Result<(), String> {
        let stream = self.stream(stream)?;
        raise(&mut self.trace.peak_wanted_bytes, self.live + rounded(bytes));
        self.trace.requests += 1;
        self.trace.refused += 1;
        self.event(Event::Refused { bytes, stream })
    }

    /// How many frees there are so far.
    pub fn frees(&self) -> usize {
        self.trace.events.len() - self.trace.requests
    }

    /// Records that the memory of this many first frees is reusable after the last event.
    pub fn reusable(&mut self, frees: usize) {
        self.trace.reusable.push(Reusable { event: self.trace.events.len(), frees });
    }

    fn mark(&mut self, text: &str) -> Result<(), String> {
        self.trace.mark_count += 1;
        let mark = Mark { event: self.trace.events.len(), text: cut(text).to_owned() };
        match self.trace.marks.last_mut().filter(|last| last.event == mark.event) {
            // No event belongs to the previous one.
            Some(last) => *last = mark,
            None => push(&mut self.trace.marks, mark)?,
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        if self.trace.events.len() == MOST_EVENTS {
            return Err(format!("more than {MOST_EVENTS} events; split the trace into shorter ones"));
        }
        push(&mut self.trace.events, event)
    }

    fn new_slot(&mut self) -> Result<u32, String> {
        let slot = u32::try_from(self.trace.slots).map_err(|_| "more than 2^32 live allocations")?;
        self.trace.slots += 1;
        Ok(slot)
    }

    /// Streams become numbers in order of appearance. 0 is reserved for the default stream, even if it does not occur.
    fn stream(&mut self, stream: u64) -> Result<u16, String> {
        if let Some(number) = self.streams.get(&stream) {
            return Ok(*number);
        }
        let others = self.streams.len() - usize::from(self.streams.contains_key(&0));
        let number = if stream == 0 { Some(0) } else { u16::try_from(others + 1).ok() };
        let number = number.ok_or("more than 65535 streams")?;
        self.streams.insert(stream, number);
        Ok(number)
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), String> {
    list.try_reserve(1).map_err(|_| NO_MEMORY)?;
    list.push(item);
    Ok(())
}

fn raise(peak: &mut u64, to: u128) {
    *peak = (*peak).max(u64::try_from(to).unwrap_or(u64::MAX));
}

fn rounded(bytes: u64) -> u128 {
    u128::from(bytes).next_multiple_of(u128::from(ALIGNMENT))
}

/// The beginning of a long text.
fn cut(text: &str) -> &str {
    let longest = LONGEST_MARK.min(text.len());
    let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns exactly the named numbers, or the error of the line. They may be followed by fields `KEY=VALUE`, which later
/// versions write, and by a remark.
fn numbers<'a, const N: usize>(
    mut fields: impl Iterator<Item = &'a str>,
    letter: &str,
    names: [&str; N],
) -> Result<[u64; N], String> {
    let mut values = [0; N];
    for (value, name) in values.iter_mut().zip(names) {
        let Some(field) = fields.next() else {
            return Err(format!("{name} is missing; the line is '{letter} {}'", names.join(" ")));
        };
        // Digits only: `parse` would also accept a sign.
        if !field.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("{name} is {field:?}, which is not a number"));
        }
        *value = field.parse().map_err(|_| format!("{name} is {field}, which does not fit in 64 bits"))?;
    }
    match fields.take_while(|field| *field != "#").find(|field| !field.contains('=')) {
        None => Ok(values),
        Some(field) => Err(format!("unexpected field {field:?}; the line is '{letter} {}'", names.join(" "))),
    }
}
