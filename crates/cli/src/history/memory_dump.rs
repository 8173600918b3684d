//! Writes a pool of a history as TensorFlow's MemoryDump, which its allocator writes when memory runs out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::timeline::{Live, PoolState, follow};

/// How many of the last sizes are in the dump, as in TensorFlow's.
const MOST_SIZES: usize = 4096;
/// The number of TensorFlow's size classes, and the smallest of them.
const BINS: u32 = 21;
const SMALLEST: u64 = 256;

#[derive(Clone, PartialEq, Message)]
struct MemoryDump {
    #[prost(string, tag = "1")]
    allocator_name: String,
    #[prost(message, repeated, tag = "2")]
    bin_summary: Vec<BinSummary>,
    #[prost(message, repeated, tag = "3")]
    chunk: Vec<MemChunk>,
    #[prost(message, repeated, tag = "4")]
    snap_shot: Vec<SnapShot>,
    #[prost(message, optional, tag = "5")]
    stats: Option<MemAllocatorStats>,
}

#[derive(Clone, PartialEq, Message)]
struct MemAllocatorStats {
    #[prost(int64, tag = "1")]
    num_allocs: i64,
    #[prost(int64, tag = "2")]
    bytes_in_use: i64,
    #[prost(int64, tag = "3")]
    peak_bytes_in_use: i64,
    #[prost(int64, tag = "4")]
    largest_alloc_size: i64,
    #[prost(float, tag = "5")]
    fragmentation_metric: f32,
}

#[derive(Clone, PartialEq, Message)]
struct MemChunk {
    #[prost(uint64, tag = "1")]
    address: u64,
    #[prost(int64, tag = "2")]
    size: i64,
    #[prost(int64, tag = "3")]
    requested_size: i64,
    #[prost(int32, tag = "4")]
    bin: i32,
    #[prost(string, tag = "5")]
    op_name: String,
    #[prost(uint64, tag = "7")]
    action_count: u64,
    #[prost(bool, tag = "8")]
    in_use: bool,
    #[prost(uint64, tag = "9")]
    step_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct BinSummary {
    #[prost(int32, tag = "1")]
    bin: i32,
    #[prost(int64, tag = "2")]
    total_bytes_in_use: i64,
    #[prost(int64, tag = "3")]
    total_bytes_in_bin: i64,
    #[prost(int64, tag = "4")]
    total_chunks_in_use: i64,
    #[prost(int64, tag = "5")]
    total_chunks_in_bin: i64,
}

#[derive(Clone, PartialEq, Message)]
struct SnapShot {
    #[prost(uint64, tag = "1")]
    action_count: u64,
    #[prost(int64, tag = "2")]
    size: i64,
}

/// Writes the dump of the pool with the highest peak, at its first failed request, or else at its peak.
pub fn write(history: &History, out: &mut dyn Write) -> io::Result<()> {
    let mut peaks: BTreeMap<u16, Moment> = BTreeMap::new();
    follow(history, |event, state| {
        if event.kind != Kind::Mark {
            peaks.entry(event.pool).or_default().see(event, state);
        }
    });
    let fullest = peaks.into_iter().max_by_key(|(pool, moment)| (moment.peak, u16::MAX - pool));
    let dump = fullest.map(|(pool, moment)| Dump::new(history, pool, &moment).finish());
    out.write_all(&dump.unwrap_or_default().encode_to_vec())
}

/// The moment of a pool that is shown.
#[derive(Default)]
struct Moment {
    peak: u64,
    event: u64,
    has_failed: bool,
}

impl Moment {
    fn see(&mut self, event: &Recorded, state: &PoolState) {
        let is_first_failure = event.kind == Kind::OutOfMemory && !self.has_failed;
        if is_first_failure || (!self.has_failed && state.in_use > self.peak) {
            self.event = event.number;
        }
        self.has_failed |= event.kind == Kind::OutOfMemory;
        self.peak = self.peak.max(state.in_use);
    }
}

/// Collects the dump of a pool.
struct Dump<'a> {
    history: &'a History,
    pool: u16,
    dump: MemoryDump,
    /// The step of each live allocation, by its event.
    steps: BTreeMap<u64, u64>,
}

impl<'a> Dump<'a> {
    fn new(history: &'a History, pool: u16, moment: &Moment) -> Self {
        let mut dump = Dump { history, pool, dump: MemoryDump::default(), steps: BTreeMap::new() };
        let (mut step, mut peak, mut largest, mut actions, mut is_over) = (0, 0, 0, 0, false);
        let mut sizes = std::collections::VecDeque::new();
        follow(history, |event, state| {
            if event.pool != pool || event.kind == Kind::Mark || is_over {
                return;
            }
            match event.kind {
                Kind::Step => step = event.bytes,
                Kind::Alloc | Kind::Present => {
                    largest = event.bytes.max(largest);
                    let named_step = if event.name == 0 { 0 } else { step };
                    dump.steps.insert(event.number, named_step);
                }
                _ => {}
            }
            if matches!(event.kind, Kind::Alloc | Kind::Free) {
                actions += 1;
                sizes.push_back(SnapShot { action_count: actions, size: signed(state.in_use) });
                if sizes.len() > MOST_SIZES {
                    sizes.pop_front();
                }
            }
            peak = state.in_use.max(peak);
            if event.number == moment.event {
                dump.fill(state);
                let stats = dump.dump.stats.get_or_insert_default();
                (stats.peak_bytes_in_use, stats.largest_alloc_size) = (signed(peak), signed(largest));
                is_over = true;
            }
        });
        dump.dump.snap_shot = sizes.into();
        dump
    }

    fn finish(self) -> MemoryDump {
        self.dump
    }

    /// Takes the chunks of a moment, in use and free.
    fn fill(&mut self, state: &PoolState) {
        self.dump.allocator_name =
            self.history.pool(self.pool).map_or_else(String::new, |(_, name)| name.to_owned());
        let mut bins = vec![BinSummary::default(); BINS as usize];
        let (mut free, mut largest) = (0, 0);
        let mut live = state.live.iter().peekable();
        for (mut at, end, ()) in state.regions.iter() {
            while let Some((&address, chunk)) = live.next_if(|&(&address, _)| address < end) {
                if at < address {
                    free = u64::saturating_add(free, address - at);
                    largest = largest.max(address - at);
                    self.add(&mut bins, at, address - at, None);
                }
                self.add(&mut bins, address, chunk.bytes, Some(chunk));
                at = at.max(address.saturating_add(chunk.bytes));
            }
            if at < end {
                (free, largest) = (u64::saturating_add(free, end - at), largest.max(end - at));
                self.add(&mut bins, at, end - at, None);
            }
        }
        // Allocations whose region is no longer in the history.
        live.for_each(|(&address, chunk)| self.add(&mut bins, address, chunk.bytes, Some(chunk)));
        self.dump.bin_summary = bins.into_iter().filter(|bin| bin.total_chunks_in_bin != 0).collect();
        self.dump.stats = Some(MemAllocatorStats {
            num_allocs: signed(state.allocations),
            bytes_in_use: signed(state.in_use),
            fragmentation_metric: if free == 0 { 0.0 } else { (free - largest) as f32 / free as f32 },
            ..MemAllocatorStats::default()
        });
    }

    fn add(&mut self, bins: &mut [BinSummary], address: u64, bytes: u64, used: Option<&Live>) {
        let number = bin_of(bytes);
        let bin = &mut bins[number as usize];
        bin.bin = number as i32;
        bin.total_bytes_in_bin = bin.total_bytes_in_bin.saturating_add(signed(bytes));
        bin.total_chunks_in_bin += 1;
        if used.is_some() {
            bin.total_bytes_in_use = bin.total_bytes_in_use.saturating_add(signed(bytes));
            bin.total_chunks_in_use += 1;
        }
        let name = used.and_then(|chunk| self.history.operation_name(self.pool, chunk.operation));
        self.dump.chunk.push(MemChunk {
            address,
            size: signed(bytes),
            requested_size: used.map_or(0, |chunk| signed(chunk.requested)),
            // TensorFlow has no bin for chunks in use.
            bin: if used.is_some() { -1 } else { number as i32 },
            op_name: name.unwrap_or_default().to_string(),
            action_count: used.map_or(0, |chunk| chunk.since),
            in_use: used.is_some(),
            step_id: used.and_then(|chunk| self.steps.get(&chunk.since)).copied().unwrap_or(0),
        });
    }
}

/// TensorFlow's size class: 256 bytes for the first, and twice the previous one for each further one.
fn bin_of(bytes: u64) -> u32 {
    (bytes.max(SMALLEST) / SMALLEST).ilog2().min(BINS - 1)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::samples::{contradictory, history};
    use super::*;

    #[test]
    fn size_classes_are_tensorflows() {
        let bins = [0, 256, 511, 512, 1 << 20, 256 << 20, u64::MAX].map(bin_of);
        assert_eq!(bins, [0, 0, 0, 1, 12, 20, 20]);
    }

    #[test]
    fn a_damaged_history_has_a_dump() {
        for events in contradictory(1000) {
            let history = history(events);
            let mut file = Vec::new();
            write(&history, &mut file).expect("memory");
            MemoryDump::decode(&*file).expect("a dump");
        }
    }
}
