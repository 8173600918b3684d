//! The programs that allocators are timed on: recorded ones, and random sizes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use flate2::read::MultiGzDecoder;

/// An allocation into a slot, or with 0 bytes the free of what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    pub bytes: u64,
    /// Slots are few and used again, so that the harness stays in the cache.
    pub slot: u32,
}

/// A program whose passes can follow each other.
pub struct Program {
    /// What is run once, before the first pass.
    pub setup: Vec<Op>,
    /// A pass. It leaves as many slots filled as it found.
    pub pass: Vec<Op>,
    pub slots: u32,
    /// The region that allocators get.
    pub capacity: u64,
    /// The most bytes that are live, each allocation rounded up to 256. Of recorded programs only.
    pub peak: u64,
    /// Whether a byte of each page of an allocation is written.
    pub touched: bool,
}

/// Which program: a trace's file, or `uniform/N`, `log-uniform/N` or `touched/N` with N live chunks.
#[derive(Clone, Debug)]
pub struct Name(pub String);

/// Live chunks and sizes of random programs.
pub const RANDOM: [&str; 9] = [
    "uniform/100",
    "uniform/1000",
    "uniform/10000",
    "uniform/100000",
    "log-uniform/100",
    "log-uniform/1000",
    "log-uniform/10000",
    "log-uniform/100000",
    "touched/1000",
];

/// Pairs of a pass of a random program.
const PAIRS: usize = 1 << 17;

/// Sizes are up to this, and with touched memory up to a sixteenth.
const LARGEST: u64 = 1 << 20;

impl Name {
    /// What tables and charts show.
    pub fn title(&self) -> String {
        let name = Path::new(&self.0)
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        match self.is_recorded() {
            true => name.trim_end_matches(".gz").trim_end_matches(".trace").to_owned(),
            false => self.0.clone(),
        }
    }

    pub fn is_recorded(&self) -> bool {
        self.0.contains(".trace")
    }

    /// The kind of a random program and its number of live chunks.
    pub fn random(&self) -> Option<(&str, u32)> {
        let (kind, live) = self.0.split_once('/')?;
        Some((kind, live.parse().ok()?)).filter(|_| !self.is_recorded())
    }

    pub fn load(&self) -> Result<Program> {
        match self.random() {
            Some((kind, live)) => random(kind, live),
            None => trace(&PathBuf::from(&self.0)).with_context(|| format!("cannot use {}", self.0)),
        }
    }
}

/// Reads a trace; tests/traces/README.md has the format. What is live at its end is freed there.
fn trace(path: &Path) -> Result<Program> {
    let file = BufReader::new(MultiGzDecoder::new(File::open(path)?));
    let mut live: HashMap<u64, Op> = HashMap::new();
    let (mut pass, mut spare, mut slots) = (Vec::new(), Vec::new(), 0);
    let (mut now, mut peak) = (0, 0);
    for line in file.lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match line.as_bytes().first() {
            Some(b'+') => {
                let (Some(id), Some(bytes @ 1..)) = (
                    {
                        number();
                        number()
                    },
                    number(),
                ) else {
                    bail!("bad line: {line}")
                };
                let slot = spare.pop().unwrap_or_else(|| {
                    slots += 1;
                    slots - 1
                });
                let op = Op { bytes, slot };
                if live.insert(id, op).is_some() {
                    bail!("allocated twice: {line}");
                }
                now += bytes.next_multiple_of(256);
                peak = peak.max(now);
                pass.push(op);
            }
            Some(b'-') => {
                let Some(op) = ({
                    number();
                    number()
                })
                .and_then(|id| live.remove(&id)) else {
                    bail!("bad line: {line}")
                };
                now -= op.bytes.next_multiple_of(256);
                spare.push(op.slot);
                pass.push(Op { bytes: 0, ..op });
            }
            Some(b'#') => {}
            _ => bail!("bad line: {line}"),
        }
    }
    let mut rest: Vec<Op> = live.into_values().map(|op| Op { bytes: 0, ..op }).collect();
    rest.sort_by_key(|op| op.slot);
    pass.append(&mut rest);
    // Room for allocators that are not exact, or keep sizes apart.
    let capacity = (2 * peak).next_multiple_of(2 << 20);
    Ok(Program { setup: Vec::new(), pass, slots, capacity, peak, touched: false })
}

/// Frees a chunk at random and allocates another, of a random size.
fn random(kind: &str, live: u32) -> Result<Program> {
    let touched = kind == "touched";
    let (is_uniform, largest) = match kind {
        "uniform" => (true, LARGEST),
        "log-uniform" => (false, LARGEST),
        "touched" => (false, LARGEST / 16),
        _ => bail!("there is no program of the kind {kind}"),
    };
    let mut state = u64::from(live) ^ 0x9E37_79B9_7F4A_7C15;
    // SplitMix64 (Steele, Lea and Flood, 2014).
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    let size = |random: u64| match is_uniform {
        true => 1 + random % largest,
        false => (random as f64 / u64::MAX as f64 * (largest as f64).log2()).exp2() as u64,
    };
    let setup: Vec<Op> = (0..live).map(|slot| Op { bytes: size(next()).max(1), slot }).collect();
    let mut pass = Vec::with_capacity(2 * PAIRS);
    for _ in 0..PAIRS {
        let slot = (next() % u64::from(live)) as u32;
        pass.push(Op { bytes: 0, slot });
        pass.push(Op { bytes: size(next()).max(1), slot });
    }
    let bytes: u64 = setup.iter().map(|op| op.bytes.next_multiple_of(256)).sum();
    let capacity = (2 * (bytes + 16 * largest)).next_multiple_of(2 << 20);
    Ok(Program { setup, pass, slots: live, capacity, peak: 0, touched })
}
