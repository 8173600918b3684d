//! The tracks of the largest allocations. Slices of a track must nest, but lifetimes do not, so each allocation has a
//! track to itself while it is live.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};

/// How many allocations are shown.
pub const SHOWN: usize = 1000;

/// Returns the numbers of the events of the largest allocations, the first of equal ones.
pub fn largest(history: &History) -> HashSet<u64> {
    let mut heap = BinaryHeap::new();
    for event in history.events.iter().filter(|event| matches!(event.kind, Kind::Alloc | Kind::Present)) {
        heap.push(Reverse((event.bytes, Reverse(event.number))));
        if heap.len() > SHOWN {
            heap.pop();
        }
    }
    heap.into_iter().map(|Reverse((_, Reverse(number)))| number).collect()
}

/// The tracks of allocations, by pool.
pub struct Lanes {
    shown: HashSet<u64>,
    pools: HashMap<u16, OfPool>,
}

#[derive(Default)]
struct OfPool {
    /// The tracks in use, by the address of the allocation.
    live: BTreeMap<u64, u64>,
    free: BTreeSet<u64>,
    count: u64,
}

impl Lanes {
    pub fn new(shown: HashSet<u64>) -> Self {
        Lanes { shown, pools: HashMap::new() }
    }

    /// Returns the track of an allocation, if it is shown. Its address must not be in use.
    pub fn begin(&mut self, event: &Recorded) -> Option<u64> {
        if !self.shown.contains(&event.number) {
            return None;
        }
        let pool = self.pools.entry(event.pool).or_default();
        let lane = pool.free.pop_first().unwrap_or_else(|| {
            pool.count += 1;
            pool.count - 1
        });
        pool.live.insert(event.address, lane);
        Some(lane)
    }

    /// Frees the tracks of what begins in a range.
    pub fn end(&mut self, pool: u16, address: u64, bytes: u64) -> Vec<u64> {
        let Some(pool) = self.pools.get_mut(&pool) else { return Vec::new() };
        let range = pool.live.range(address..address.saturating_add(bytes));
        let ended: Vec<(u64, u64)> = range.map(|(&address, &lane)| (address, lane)).collect();
        for (address, lane) in &ended {
            pool.live.remove(address);
            pool.free.insert(*lane);
        }
        ended.into_iter().map(|(_, lane)| lane).collect()
    }
}
