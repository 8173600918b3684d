//! Recorded traces: reading, checking, and the form in which they are replayed.
//!
//! A trace is text, one event a line, usually gzipped: `+ ID BYTES STREAM` an allocation, `- ID STREAM`
//! its free, `# TEXT` a mark. Whatever can be wrong with one is found here, with the line; and ids become
//! slots of a dense table, so that the timed loop neither looks anything up nor checks anything.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::read::MultiGzDecoder;

/// The unit in which every BFC allocator rounds.
pub const ALIGNMENT: u64 = 256;

/// Events between two looks at the clock and the progress bar.
const CHUNK: usize = 8192;

/// A line longer than this is not a trace's; binary data may not have a line end at all.
const LONGEST_LINE: u64 = 64 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One event. The slot is where the allocation's address is kept while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request.
    Alloc { bytes: u64, slot: u32, stream: u16 },
    /// The free of what is in the slot.
    Free { slot: u32, stream: u16 },
}

/// The timed loop reads the events in order: at 16 bytes that is four to a cache line.
const _: () = assert!(size_of::<Event>() == 16);

/// A mark, which stands before the event of that index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Index into the events.
    pub event: usize,
    /// The text after `#`.
    pub text: String,
}

/// A trace, checked and ready to run.
#[derive(Debug, Default)]
pub struct Trace {
    /// What it is called in the output: the path, or `standard input`.
    pub name: String,
    /// Requests and frees in order.
    pub events: Vec<Event>,
    /// Steps or requests of the recorded program.
    pub marks: Vec<Mark>,
    /// Addresses that live at once, at most.
    pub slots: usize,
    /// How many events are requests.
    pub requests: usize,
    /// How many streams there are; events hold them as numbers below this, in order of appearance
    /// except that the trace's stream 0, the default stream, is 0.
    pub streams: usize,
    /// The peak of the live bytes, each request rounded up to 256: what no pool can do without.
    pub peak_live_bytes: u64,
    /// The peak of the live bytes as requested.
    pub peak_requested_bytes: u64,
}

impl Trace {
    /// Reads a trace file; `-` is standard input.
    pub fn read(path: &Path) -> Result<Self> {
        if path.as_os_str() == "-" {
            return Self::from_reader("standard input", io::stdin().lock());
        }
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        Self::from_reader(&name, file)
    }

    /// Reads a trace, gzipped or not; `name` is for messages.
    pub fn from_reader(name: &str, mut input: impl Read) -> Result<Self> {
        let mut head = Vec::new();
        let magic = input.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut head);
        magic.with_context(|| format!("cannot read {name}"))?;
        if head.is_empty() {
            bail!("{name} is empty; a trace has lines like '+ ID BYTES STREAM' and '- ID STREAM'");
        }
        let gzipped = head == GZIP_MAGIC;
        if !gzipped && name.ends_with(".gz") {
            bail!("{name}:1: not gzip, though its name says so (it begins with {head:02x?}, not [1f, 8b])");
        }
        let input = Cursor::new(head).chain(input);
        let mut parser = Parser::default();
        if gzipped {
            parser.lines(name, BufReader::new(MultiGzDecoder::new(BufReader::new(input))))?;
        } else {
            parser.lines(name, BufReader::new(input))?;
        }
        let trace = parser.finish(name);
        if trace.events.is_empty() {
            bail!("{name} has no events; a trace has lines like '+ ID BYTES STREAM' and '- ID STREAM'");
        }
        Ok(trace)
    }

    /// The events in pieces to be timed one by one: they end at marks, and before they grow long.
    pub fn chunks(&self) -> Vec<Range<usize>> {
        let marks = self.marks.iter().map(|mark| mark.event);
        let mut chunks = Vec::new();
        let mut start = 0;
        for end in marks.chain([self.events.len()]) {
            while start < end {
                let next = end.min(start + CHUNK);
                chunks.push(start..next);
                start = next;
            }
        }
        chunks
    }

    /// The mark that the event at `index` belongs to.
    pub fn mark_of(&self, index: usize) -> Option<&str> {
        let after = self.marks.partition_point(|mark| mark.event <= index);
        after.checked_sub(1).map(|at| self.marks[at].text.as_str())
    }
}

/// What is known of an id: a trace names every allocation once.
enum Id {
    Live { slot: u32, bytes: u64, line: u64 },
    Freed { line: u64 },
}

#[derive(Default)]
struct Parser {
    trace: Trace,
    ids: HashMap<u64, Id>,
    streams: HashMap<u64, u16>,
    free_slots: Vec<u32>,
    line: u64,
    /// 128 bits: the sum of wild 64-bit sizes must not wrap.
    live: u128,
    live_requested: u128,
}

impl Parser {
    fn lines(&mut self, name: &str, mut input: impl BufRead) -> Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|error| anyhow::anyhow!("{name}: {}", self.unreadable(&error)))?;
            if read == 0 {
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
            result.map_err(|what| anyhow::anyhow!("{name}:{number}: {what}"))?;
        }
    }

    /// Says what a failed read means; for gzip the line is the only position that helps.
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
        match fields.next() {
            None => Ok(()),
            Some("+") => {
                let [id, bytes, stream] = numbers(fields, "+", ["ID", "BYTES", "STREAM"])?;
                self.alloc(id, bytes, stream)
            }
            Some("-") => {
                let [id, stream] = numbers(fields, "-", ["ID", "STREAM"])?;
                self.free(id, stream)
            }
            Some(first) if first.starts_with('#') => {
                let text = line[1..].trim_ascii().to_owned();
                self.trace.marks.push(Mark { event: self.trace.events.len(), text });
                Ok(())
            }
            Some(other) => {
                let letter: String = other.chars().take(20).collect();
                Err(format!(
                    "unknown event letter {letter:?}; an event begins with '+', '-' or '#' and a space"
                ))
            }
        }
    }

    fn alloc(&mut self, id: u64, bytes: u64, stream: u64) -> Result<(), String> {
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
        self.ids.insert(id, Id::Live { slot, bytes, line: self.line });
        self.live += rounded(bytes);
        self.live_requested += u128::from(bytes);
        let peak = |peak: u64, live: u128| peak.max(u64::try_from(live).unwrap_or(u64::MAX));
        self.trace.peak_live_bytes = peak(self.trace.peak_live_bytes, self.live);
        self.trace.peak_requested_bytes = peak(self.trace.peak_requested_bytes, self.live_requested);
        self.trace.requests += 1;
        self.trace.events.push(Event::Alloc { bytes, slot, stream });
        Ok(())
    }

    fn free(&mut self, id: u64, stream: u64) -> Result<(), String> {
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
        self.free_slots.push(slot);
        self.live -= rounded(bytes);
        self.live_requested -= u128::from(bytes);
        self.trace.events.push(Event::Free { slot, stream });
        Ok(())
    }

    fn new_slot(&mut self) -> Result<u32, String> {
        let slot = u32::try_from(self.trace.slots).map_err(|_| "more than 2^32 live allocations")?;
        self.trace.slots += 1;
        Ok(slot)
    }

    /// Streams become numbers in order of appearance; 0 is kept for the default stream, seen or not.
    fn stream(&mut self, stream: u64) -> Result<u16, String> {
        if let Some(number) = self.streams.get(&stream) {
            return Ok(*number);
        }
        let others = self.streams.keys().filter(|key| **key != 0).count();
        let number = if stream == 0 { Some(0) } else { u16::try_from(others + 1).ok() };
        let number = number.ok_or("more than 65535 streams")?;
        self.streams.insert(stream, number);
        Ok(number)
    }

    fn finish(self, name: &str) -> Trace {
        Trace { name: name.to_owned(), streams: self.streams.len(), ..self.trace }
    }
}

fn rounded(bytes: u64) -> u128 {
    u128::from(bytes).next_multiple_of(u128::from(ALIGNMENT))
}

/// Exactly the numbers named, or what is wrong with the line.
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
        // Digits alone: `parse` would also take a sign.
        if !field.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("{name} is {field:?}, which is not a number"));
        }
        *value = field.parse().map_err(|_| format!("{name} is {field}, which does not fit in 64 bits"))?;
    }
    match fields.next() {
        None => Ok(values),
        Some(field) => Err(format!("{field:?} is too much; the line is '{letter} {}'", names.join(" "))),
    }
}

#[cfg(test)]
mod tests;
