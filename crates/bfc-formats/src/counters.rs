//! The counters of a process as stored in the file of `bfc run --report=FILE`, and their summary.
//!
//! Each process that allocates appends a [`Record`] and updates it through a shared mapping, so that it is complete
//! however the process ends. The interposer writes it, and `bfc report` reads it.

#![allow(missing_docs)] // Of fields and constants whose names say it.

use core::fmt::{self, Display};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The first bytes of a record. The number is the version of the layout.
pub const MAGIC: [u8; 64] = *b"libbfc counters 1, one record a process; read by: bfc report\n\0\0\0";

/// One for each device, and one for pinned host memory.
pub const POOLS: usize = 65;

/// The length up to which a verdict is kept.
pub const VERDICT: usize = 1000;

/// The process is running, or ended without reporting.
pub const RUNNING: u32 = 0;
/// The process ended by exit, or by returning from main.
pub const ENDED: u32 = 1;
/// The process executed another program.
pub const REPLACED: u32 = 2;

/// A process. Its size is a power of two, so that no record crosses pages of that size, and smaller pages are not
/// shared.
#[repr(C)]
pub struct Record {
    pub magic: [u8; 64],
    pub state: AtomicU32,
    pub process: u32,
    /// When the process started, in clock ticks since the machine did: identifies a process together with its number.
    pub started: u64,
    /// The inode of the namespace of process numbers.
    pub namespace: u64,
    /// When the record was created, in seconds since 1970.
    pub began: u64,
    /// The identifier of the machine's start.
    pub boot: [u8; 40],
    /// The command line, its words separated by spaces.
    pub program: [u8; 256],
    /// Events missing in the trace because it could not grow.
    pub lost_events: AtomicU64,
    pub pools: [Counters; POOLS],
    /// The size of the last refused request, and the reason.
    pub last_refused: AtomicU64,
    pub verdict_length: AtomicU32,
    pub verdict: [AtomicU8; VERDICT],
    /// What device pools consist of: [`REGIONS`], [`GRANULES`], or 0 in records of older interposers, which do not say.
    pub memory: u32,
    /// What cudaFree does: [`WAITING`], [`SYNCHRONIZING`], or 0 in records of older interposers.
    pub frees: u32,
    /// Reserved; 0.
    pub spare: [u8; 1052],
}

const _: () = assert!(size_of::<Record>() == 8192);

/// The counters of a pool.
#[repr(C)]
pub struct Counters {
    pub served: AtomicU64,
    pub freed: AtomicU64,
    pub obtained: AtomicU64,
    pub returned: AtomicU64,
    pub synchronizations: AtomicU64,
    /// Requests refused because memory ran out, and the largest of them.
    pub refused: AtomicU64,
    pub largest_refused: AtomicU64,
    /// Bytes requested and live, and the peaks.
    pub requested: AtomicU64,
    pub peak_requested: AtomicU64,
    pub peak_in_use: AtomicU64,
    pub peak_held: AtomicU64,
}

/// Memory of device pools: regions (`cuda`), or granules of a reserved range (`cuda-vmm`).
pub const REGIONS: u32 = 1;
pub const GRANULES: u32 = 2;

/// cudaFree: it returns at once and the memory waits for the device (`--free wait`), or it synchronizes (`--free sync`).
pub const WAITING: u32 = 1;
pub const SYNCHRONIZING: u32 = 2;

/// The size of a granule on all current devices.
const GRANULE: u64 = 2 << 20;

/// The index of pinned host memory among the pools; a device's is its number.
pub const PINNED: usize = POOLS - 1;

impl Record {
    /// Returns the pools that were asked for memory, with their names.
    pub fn used(&self) -> impl Iterator<Item = (Name, &Counters)> {
        let all = self.pools.iter().enumerate().map(|(place, counters)| (Name(place), counters));
        all.filter(|(_, counters)| get(&counters.served) | get(&counters.refused) != 0)
    }

    /// Returns a line of advice on one of its pools, or nothing.
    pub fn advice(&self, name: &Name, counters: &Counters) -> &'static str {
        let held = get(&counters.peak_held);
        // Granules hardly fragment, so as many are held as are in use, unless freed memory waits.
        let by_granules = get(&counters.peak_in_use).div_ceil(GRANULE).saturating_mul(GRANULE);
        let is_wasteful = held.saturating_sub(by_granules) > held / 10;
        if !is_wasteful || name.0 == PINNED {
            return "";
        }
        match (self.memory, self.frees) {
            // The counters do not say which of the two it is.
            (REGIONS, WAITING) => {
                "  advice       try --free sync (freed memory waits less, each cudaFree synchronizes), or --backend cuda-vmm \
                 (less fragmentation, no legacy IPC)\n"
            }
            (REGIONS, _) => "  advice       --backend cuda-vmm holds less; it has no legacy IPC\n",
            (GRANULES, WAITING) => {
                "  advice       try --free sync (freed memory waits less, each cudaFree synchronizes)\n"
            }
            _ => "",
        }
    }

    /// Returns the last refused request, if there is one.
    pub fn refusal(&self) -> Option<Refusal<'_>> {
        let length = self.verdict_length.load(Ordering::Acquire) as usize;
        let verdict = self.verdict.get(..length).filter(|verdict| !verdict.is_empty())?;
        Some(Refusal { bytes: get(&self.last_refused), verdict })
    }
}

/// The last refused request, as a line of the summary.
pub struct Refusal<'a> {
    bytes: u64,
    verdict: &'a [AtomicU8],
}

impl Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; VERDICT];
        for (place, byte) in text.iter_mut().zip(self.verdict) {
            *place = byte.load(Ordering::Relaxed);
        }
        // The text may be cut within a character.
        let text = text.get(..self.verdict.len()).unwrap_or_default().utf8_chunks().next();
        writeln!(f, "  last refused {}: {}", Bytes(self.bytes), text.map_or("", |chunk| chunk.valid()))
    }
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

/// The name of a pool.
pub struct Name(usize);

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PINNED => f.write_str("pinned host memory"),
            device => write!(f, "device {device}"),
        }
    }
}

/// The summary of a pool: lines, each indented.
impl Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (served, freed) = (get(&self.served), get(&self.freed));
        let (refused, largest) = (get(&self.refused), get(&self.largest_refused));
        if refused != 0 {
            let refused = Counted(refused, "request");
            writeln!(f, "  refused      {refused} for want of memory, the largest of {}", Bytes(largest))?;
        }
        if served == 0 {
            return writeln!(f, "  served       nothing");
        }
        let [obtained, returned, synchronizations] =
            [&self.obtained, &self.returned, &self.synchronizations].map(get);
        // The command reads them from a file, which may be damaged.
        let calls = served.saturating_add(freed);
        let made = obtained.saturating_add(returned).saturating_add(synchronizations);
        let saved = calls.saturating_sub(made);
        writeln!(f, "  served       {}, {}", Counted(served, "allocation"), Counted(freed, "free"))?;
        let (regions, waits) = (Counted(obtained, "region"), Counted(synchronizations, "device check"));
        writeln!(
            f,
            "  driver calls {saved} saved of {calls} ({} %): {made} made, for {regions} obtained, \
             {returned} returned, {waits}",
            percent(saved, calls)
        )?;
        let (requested, held) = (get(&self.peak_requested), get(&self.peak_held));
        let waste = held.saturating_sub(requested);
        writeln!(
            f,
            "  peaks        {} requested, {} in use, {} held from the driver",
            Bytes(requested),
            Bytes(get(&self.peak_in_use)),
            Bytes(held)
        )?;
        writeln!(
            f,
            "  waste        {} ({} % of what was held) at the peak; {} live now",
            Bytes(waste),
            percent(waste, held),
            Bytes(get(&self.requested))
        )
    }
}

fn percent(part: u64, whole: u64) -> Tenths {
    Tenths::of(100 * u128::from(part), u128::from(whole.max(1)))
}

/// A number with one decimal place. Without floating point, whose formatting needs 2 KiB of stack.
struct Tenths(u128);

impl Tenths {
    /// Returns a quotient rounded to even, as floating point is formatted.
    fn of(number: u128, by: u128) -> Self {
        let (tenths, rest) = (10 * number / by, 10 * number % by);
        let is_up = 2 * rest > by || (2 * rest == by && tenths % 2 == 1);
        Tenths(tenths + u128::from(is_up))
    }
}

impl Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// A number of things: `1 region`, `2 regions`.
pub struct Counted(pub u64, pub &'static str);

impl Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}

/// A number of bytes, formatted for reading.
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = self.0.max(1).ilog2() / 10;
        let unit = power.checked_sub(1).and_then(|place| units.get(place as usize));
        match unit {
            None => write!(f, "{} bytes", self.0),
            Some(unit) => write!(f, "{} {unit}", Tenths::of(self.0.into(), 1 << (10 * power))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_one_that_is_written() {
        assert_eq!(size_of::<Record>(), 8192);
        assert_eq!(core::mem::offset_of!(Record, state), 64);
        assert_eq!(core::mem::offset_of!(Record, pools), 400);
    }
}
