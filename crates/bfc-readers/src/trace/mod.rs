//! Recorded traces: reading, checking, and the form in which they are replayed.
//!
//! A trace is text, one event per line, usually gzipped: docs/trace-format.md. All errors in a trace are found here,
//! with their lines, and ids become slots of a dense table, so that the timed loop neither looks anything up nor checks
//! anything.

mod events;
mod parser;

use std::io::{BufReader, Cursor, Read};

use anyhow::{Context, Result, bail};
use flate2::read::MultiGzDecoder;

pub use events::{ALIGNMENT, Event, Trace};
pub use parser::Parser;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Trace {
    /// Reads a trace, gzipped or not; `name` is for messages.
    pub fn from_reader(name: &str, mut input: impl Read) -> Result<Self> {
        let mut head = Vec::new();
        let magic = input.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut head);
        magic.with_context(|| format!("cannot read {name}"))?;
        if head.is_empty() {
            bail!("{name} is empty; a trace has lines like '+ ID BYTES STREAM' and '- ID STREAM'");
        }
        // The name does not matter: a recording may have any.
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
}

#[cfg(test)]
mod tests;
