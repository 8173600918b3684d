//! The layout of the file in which a process publishes its statistics: a header, and a record for each pool.
//!
//! The library writes it through a mapping, and `bfc top` reads it at any time, also after the process was killed. So a
//! record has two copies. The writer fills the one that is not current, and then makes it the current one. A reader takes
//! a copy as whole only if `sequence` is the same before and after.

#![allow(missing_docs)] // Of fields and constants whose names say it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

pub const MAGIC: [u8; 16] = *b"libbfc publish 1";
/// What a file of any version begins with.
pub const FAMILY: &[u8; 15] = b"libbfc publish ";
/// The bytes of the header, a page.
pub const HEADER_BYTES: usize = 4096;
/// The number of records. Pools beyond it are counted, and not shown.
pub const POOLS: usize = 32;
/// How many of the largest holders a record has.
pub const HOLDERS: usize = 8;
/// The bytes of a pool's name. A longer one is cut.
pub const POOL_NAME: usize = 64;
/// The bytes of an operation's name. A longer one is cut.
pub const HOLDER_NAME: usize = 120;
/// The bytes of a whole file.
pub const FILE_BYTES: usize = HEADER_BYTES + POOLS * size_of::<Record>();
/// What a process that was killed has left is removed after so many seconds.
pub const KEPT_SECONDS: u64 = 600;

/// Returns the process whose file has this name: `PID`, or `PID.NAMESPACE`.
pub fn process_of(name: &[u8]) -> Option<u32> {
    let name = core::str::from_utf8(name).ok()?;
    let (process, namespace) = name.split_once('.').unwrap_or((name, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(process) && is_number(namespace) { process.parse().ok() } else { None }
}

/// Returns whether the process of a file with this beginning has not finished it. The magic is written last. Such a file is
/// being created, or its process was killed meanwhile.
pub fn is_unfinished(start: &[u8]) -> bool {
    start.iter().take(MAGIC.len()).all(|&byte| byte == 0)
}

/// The statistics in a record, under the names of `bfc_stats_t` and in its order.
pub const STATISTICS: [&str; 17] = [
    "num_allocs",
    "num_frees",
    "num_failures",
    "bytes_in_use",
    "peak_bytes_in_use",
    "bytes_requested",
    "peak_bytes_requested",
    "largest_alloc_size",
    "bytes_limit",
    "pool_bytes",
    "peak_pool_bytes",
    "largest_free_block_bytes",
    "num_regions",
    "num_chunks",
    "num_free_chunks",
    "metadata_bytes",
    "num_planned_allocs",
];

/// The first page.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 16],
    /// The sizes that the writer used, so that a reader notices another layout.
    pub header_bytes: u32,
    pub record_bytes: u32,
    pub records: u32,
    pub process: u32,
    /// When the process started, in clock ticks since the machine did, so that a later one of the same number is not
    /// taken for it. 0 is not known.
    pub started: u64,
    /// The inode of the process's namespace of process ids. 0 is not known.
    pub namespace: u64,
    /// The time between two rounds of the writer, in milliseconds.
    pub interval_ms: u32,
    pub state: AtomicU32,
    /// The program's name, as the kernel has it.
    pub program: [u8; 16],
    /// When the last round ended, in nanoseconds since 1970.
    pub updated: AtomicU64,
    /// The number of rounds.
    pub rounds: AtomicU64,
    /// The number of pools without a record.
    pub left_out: AtomicU64,
}

/// The process publishes, unless it was killed.
pub const PUBLISHING: u32 = 1;
/// The process has come to its end.
pub const ENDED: u32 = 2;

/// The record of a pool.
#[repr(C, align(1024))]
pub struct Record {
    /// How often the record was written. The current copy is the one of its lowest bit. 0 is a record that was never
    /// written.
    pub sequence: AtomicU64,
    copies: [[AtomicU64; WORDS]; 2],
}

const WORDS: usize = size_of::<Pool>() / size_of::<u64>();
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Record>() == 3072);

/// A pool at one moment. All fields are words or texts of whole words, so that there is no padding.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pool {
    pub state: u64,
    /// The ordinal of the device.
    pub device: u64,
    /// When the statistics were copied, in nanoseconds since 1970.
    pub time: u64,
    pub statistics: [u64; STATISTICS.len()],
    /// Texts end at the first zero, or at their end.
    pub backend: [u8; 16],
    pub name: [u8; POOL_NAME],
    /// When the holders were computed, in nanoseconds since 1970. 0: no operation has a name.
    pub holders_time: u64,
    /// The largest holders, the largest first. One without bytes is none.
    pub holders: [Holder; HOLDERS],
}

/// The memory in use that was allocated for an operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Holder {
    pub bytes: u64,
    pub chunks: u64,
    /// The highest step of its allocations.
    pub last_step: u64,
    /// Empty for all memory without a name.
    pub name: [u8; HOLDER_NAME],
}

/// The pool was destroyed. What is in the record are its last statistics.
pub const GONE: u64 = 0;
/// The pool exists.
pub const LIVE: u64 = 1;
/// The pool is disabled after an internal error.
pub const FAILED: u64 = 2;

impl Pool {
    pub const EMPTY: Self = Pool {
        state: GONE,
        device: 0,
        time: 0,
        statistics: [0; STATISTICS.len()],
        backend: [0; 16],
        name: [0; POOL_NAME],
        holders_time: 0,
        holders: [Holder::EMPTY; HOLDERS],
    };

    fn words(&self) -> &[u64; WORDS] {
        // SAFETY: the struct consists of so many words without padding, and is aligned as they are.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }
}

impl Holder {
    pub const EMPTY: Self = Holder { bytes: 0, chunks: 0, last_step: 0, name: [0; HOLDER_NAME] };
}

impl Record {
    /// Writes a pool. There is one writer at a time. It never waits.
    pub fn write(&self, pool: &Pool) {
        let next = self.sequence.load(Relaxed).wrapping_add(1);
        // Readers of the copy that is overwritten have to see that it is not the current one any more.
        fence(Release);
        for (to, &from) in self.copies[(next & 1) as usize].iter().zip(pool.words()) {
            to.store(from, Relaxed);
        }
        self.sequence.store(next, Release);
    }

    /// Reads the current copy. Returns `None` if it was overwritten meanwhile, and of a record that was never written.
    pub fn read(&self) -> Option<Pool> {
        let sequence = self.sequence.load(Acquire);
        if sequence == 0 {
            return None;
        }
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(&self.copies[(sequence & 1) as usize]) {
            *to = from.load(Relaxed);
        }
        fence(Acquire);
        if self.sequence.load(Relaxed) != sequence {
            return None;
        }
        // SAFETY: as many words as the struct has, and any are valid.
        Some(unsafe { core::mem::transmute::<[u64; WORDS], Pool>(words) })
    }
}

impl Record {
    /// Returns the sequence of a record's bytes in a file.
    pub fn sequence_of(bytes: &[u8]) -> Option<u64> {
        Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
    }

    /// Returns the copy that is the current one for a sequence, from a record's bytes in a file.
    pub fn copy_of(bytes: &[u8], sequence: u64) -> Option<Pool> {
        let copies = core::mem::offset_of!(Record, copies);
        let copy =
            bytes.get(copies + (sequence & 1) as usize * size_of::<Pool>()..)?.get(..size_of::<Pool>())?;
        // SAFETY: as many bytes as the struct has, and any are valid.
        Some(unsafe { copy.as_ptr().cast::<Pool>().read_unaligned() })
    }
}

/// Stores a text, cut at a whole character if it is too long.
pub fn put_text(place: &mut [u8], text: &str) {
    let mut end = text.len().min(place.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    place.fill(0);
    place[..end].copy_from_slice(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let copy = || [const { AtomicU64::new(0) }; WORDS];
        Record { sequence: AtomicU64::new(0), copies: [copy(), copy()] }
    }

    #[test]
    fn names_of_files_are_numbers() {
        let names = ["17", "17.4026531836", "", "x", "17.", "17.x", "-1", "99999999999", "."];
        let found = names.map(|name| process_of(name.as_bytes()));
        assert_eq!(found[..2], [Some(17), Some(17)]);
        assert!(found[2..].iter().all(Option::is_none), "{found:?}");
    }

    #[test]
    fn a_writer_that_is_killed_leaves_the_last_whole_copy() {
        let record = record();
        assert!(record.read().is_none(), "it was never written");
        record.write(&Pool { device: 7, ..Pool::EMPTY });
        record.write(&Pool { device: 8, time: 9, ..Pool::EMPTY });
        // The next one begins, and does not come to its end.
        record.copies[1].iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let read = record.read().expect("the current copy is whole");
        assert_eq!((read.device, read.time, read.state), (8, 9, GONE));
        // SAFETY: the record's own bytes, which nothing writes now.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(&record).cast(), size_of::<Record>()) };
        let sequence = Record::sequence_of(bytes).expect("it is there");
        let read = Record::copy_of(bytes, sequence).expect("it is there");
        assert_eq!((sequence, read.device, read.time), (2, 8, 9));
    }

    #[test]
    fn readers_see_whole_copies_only() {
        let record = record();
        let end = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while end.load(Relaxed) == 0 || seen == 0 {
                        let Some(pool) = record.read() else { continue };
                        assert!(pool.statistics.iter().all(|&value| value == pool.device));
                        assert!(pool.holders.iter().all(|holder| holder.bytes == pool.device));
                        seen += 1;
                    }
                });
            }
            for device in 1..=100_000 {
                let holders = [Holder { bytes: device, ..Holder::EMPTY }; HOLDERS];
                let statistics = [device; STATISTICS.len()];
                record.write(&Pool { device, statistics, holders, ..Pool::EMPTY });
            }
            end.store(1, Relaxed);
        });
    }

    #[test]
    fn a_text_is_cut_at_a_whole_character() {
        let mut place = [1; 4];
        put_text(&mut place, "aé");
        assert_eq!(&place, b"a\xc3\xa9\0");
        put_text(&mut place, "abcé");
        assert_eq!(&place, b"abc\0");
    }
}
