//! Recorded traces: reading, checking, and the form in which they are replayed.
//!
//! A trace is text, one event a line, usually gzipped: docs/trace-format.md. Whatever can be wrong with one is found here,
//! with the line; and ids become slots of a dense table, so that the timed loop neither looks anything up nor checks
//! anything.

mod parser;

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Cursor, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::read::MultiGzDecoder;

use crate::output::{self, progress};
pub use parser::Parser;

/// The unit in which every BFC allocator rounds.
pub const ALIGNMENT: u64 = 256;

/// Events between two looks at the clock and the progress bar.
const CHUNK: usize = 8192;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One event. The slot is where the allocation's address is kept while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request.
    Alloc { bytes: u64, slot: u32, stream: u16 },
    /// The free of what is in the slot.
    Free { slot: u32, stream: u16 },
    /// A request that the recorded program was refused: tried, and freed at once if it is granted.
    Refused { bytes: u64, stream: u16 },
}

/// The timed loop reads the events in order: at 16 bytes that is four to a cache line.
const _: () = assert!(size_of::<Event>() == 16);

/// A mark, which stands before the event of that index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Index into the events.
    pub event: usize,
    /// The text after `#`, or the beginning of a long one.
    pub text: String,
}

/// Before the event of that index, the memory of the first so many frees is reusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reusable {
    pub event: usize,
    pub frees: usize,
}

/// A trace, checked and ready to run.
#[derive(Debug, Default)]
pub struct Trace {
    /// What it is called in the output: the path, or `standard input`.
    pub name: String,
    /// Requests and frees in order.
    pub events: Vec<Event>,
    /// When freed memory became reusable, in order. Only of pools in which it waits, and no file has it.
    pub reusable: Vec<Reusable>,
    /// Steps or requests of the recorded program. Of several marks before the same event only the last is kept.
    pub marks: Vec<Mark>,
    /// How many marks there are in the file.
    pub mark_count: usize,
    /// Addresses that live at once, at most.
    pub slots: usize,
    /// How many events are requests, granted or refused.
    pub requests: usize,
    /// How many of them the recorded program was refused.
    pub refused: usize,
    /// How many streams there are; events hold them as numbers below this, in order of appearance
    /// except that the trace's stream 0, the default stream, is 0.
    pub streams: usize,
    /// The peak of the live bytes, each request rounded up to 256: what no pool can do without.
    pub peak_live_bytes: u64,
    /// The peak of the live bytes as requested.
    pub peak_requested_bytes: u64,
    /// `peak_live_bytes` with each refused request counted as if it had been granted: what no pool can do without in
    /// which no request fails.
    pub peak_wanted_bytes: u64,
    /// Why the recording is incomplete, if it says so.
    pub incomplete: Option<String>,
}

impl Trace {
    /// Reads a trace file, with a progress bar unless `is_quiet`; `-` is standard input.
    pub fn read(path: &Path, is_quiet: bool) -> Result<Self> {
        if path.as_os_str() == "-" {
            return Self::from_source("standard input", io::stdin().lock(), None, is_quiet);
        }
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        // A pipe has no length.
        let length = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
        Self::from_source(&name, file, length, is_quiet)
    }

    fn from_source(name: &str, input: impl Read, length: Option<u64>, is_quiet: bool) -> Result<Self> {
        let template = match length {
            Some(_) => "{msg} {wide_bar} {percent:>3}% {eta}",
            None => "{msg} ({binary_bytes})",
        };
        let bar = progress(is_quiet, length, template);
        output::show(&bar, &format!("reading {name}"));
        let trace = Self::from_reader(name, bar.wrap_read(input));
        bar.finish_and_clear();
        trace
    }

    /// Reads a trace, gzipped or not; `name` is for messages.
    pub fn from_reader(name: &str, mut input: impl Read) -> Result<Self> {
        let mut head = Vec::new();
        let magic = input.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut head);
        magic.with_context(|| format!("cannot read {name}"))?;
        if head.is_empty() {
            bail!("{name} is empty; a trace has lines like '+ ID BYTES STREAM' and '- ID STREAM'");
        }
        // The name does not count: a recording may have any.
        let gzipped = head == GZIP_MAGIC;
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

#[cfg(test)]
mod tests;
