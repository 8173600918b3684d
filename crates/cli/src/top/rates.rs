//! Pools over time: rates between two readings, and the bytes in use of the last readings.

use std::collections::{HashMap, VecDeque};

use bfc_formats::published::layout::STATISTICS;
use bfc_readers::published::reader::{PoolReading, Process, Reading, State};

/// How many readings of the bytes in use are kept.
pub const KEPT: usize = 120;

/// A pool of a process, with what is computed from its readings.
#[derive(Debug, Clone)]
pub struct Row {
    pub process: Process,
    pub pool: PoolReading,
    /// Allocations and frees a second. `None` before the second reading, for a process that is not running, and if the
    /// counters were reset.
    pub allocs_per_second: Option<f64>,
    pub frees_per_second: Option<f64>,
    /// The bytes in use in the last readings, the newest last.
    pub in_use: Vec<u64>,
}

/// A statistic by its name in `bfc_stats_t`.
pub fn statistic(pool: &PoolReading, name: &str) -> u64 {
    let place = STATISTICS.iter().position(|there| *there == name);
    place.map_or(0, |place| pool.statistics[place])
}

impl Row {
    pub fn get(&self, name: &str) -> u64 {
        statistic(&self.pool, name)
    }

    /// The share of the free bytes outside of the largest free chunk. `None` without free bytes.
    pub fn fragmentation(&self) -> Option<f64> {
        let free = self.get("pool_bytes").saturating_sub(self.get("bytes_in_use"));
        let largest = self.get("largest_free_block_bytes").min(free);
        (free != 0).then(|| 1.0 - largest as f64 / free as f64)
    }

    /// Held bytes by live bytes. `None` if nothing is live.
    pub fn overhead(&self) -> Option<f64> {
        let live = self.get("bytes_requested");
        (live != 0).then(|| self.get("pool_bytes") as f64 / live as f64)
    }
}

/// The identity of a pool between readings.
type Key = (u32, u64, u64);

struct Past {
    time: u64,
    allocs: u64,
    frees: u64,
    rates: Option<(f64, f64)>,
    in_use: VecDeque<u64>,
}

/// Remembers pools from reading to reading.
#[derive(Default)]
pub struct Rates {
    pools: HashMap<Key, Past>,
}

impl Rates {
    /// Adds a reading, and returns a row for each of its pools, in the same order.
    pub fn take(&mut self, reading: &Reading) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut pools = HashMap::new();
        for process in &reading.processes {
            for pool in &process.pools {
                let key = (process.id, process.started, pool.device);
                let past = follow(self.pools.remove(&key), process, pool);
                rows.push(Row {
                    process: Process { pools: Vec::new(), ..process.clone() },
                    pool: pool.clone(),
                    allocs_per_second: past.rates.map(|rates| rates.0),
                    frees_per_second: past.rates.map(|rates| rates.1),
                    in_use: past.in_use.iter().copied().collect(),
                });
                pools.insert(key, past);
            }
        }
        // Pools that are gone are forgotten.
        self.pools = pools;
        rows
    }
}

fn follow(past: Option<Past>, process: &Process, pool: &PoolReading) -> Past {
    let (allocs, frees) = (statistic(pool, "num_allocs"), statistic(pool, "num_frees"));
    let mut now = Past { time: pool.time, allocs, frees, rates: None, in_use: VecDeque::new() };
    if let Some(past) = past {
        let seconds = pool.time.saturating_sub(past.time) as f64 / 1e9;
        let rate = |now: u64, before: u64| now.checked_sub(before).map(|count| count as f64 / seconds);
        now.rates = match (rate(allocs, past.allocs), rate(frees, past.frees)) {
            // The process has not written since.
            _ if seconds == 0.0 => past.rates,
            (Some(allocs), Some(frees)) => Some((allocs, frees)),
            _ => None,
        };
        now.in_use = past.in_use;
    }
    if process.state != State::Running {
        now.rates = None;
    }
    if now.in_use.len() == KEPT {
        now.in_use.pop_front();
    }
    now.in_use.push_back(statistic(pool, "bytes_in_use"));
    now
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A pool with these allocations, frees and bytes in use, at this time in milliseconds.
    pub fn pool(time: u64, allocs: u64, frees: u64, in_use: u64) -> PoolReading {
        let mut statistics = [0; STATISTICS.len()];
        let mut set = |name: &str, value| {
            statistics[STATISTICS.iter().position(|there| *there == name).expect(name)] = value;
        };
        set("num_allocs", allocs);
        set("num_frees", frees);
        set("bytes_in_use", in_use);
        set("bytes_requested", in_use / 2);
        set("pool_bytes", 2 * in_use);
        set("peak_bytes_in_use", in_use);
        set("bytes_limit", 1 << 30);
        set("largest_free_block_bytes", in_use / 4);
        PoolReading {
            device: 0,
            name: "bfc".into(),
            backend: "host".into(),
            is_failed: false,
            time: time * 1_000_000,
            statistics,
            holders_time: 0,
            holders: Vec::new(),
        }
    }

    pub fn process(id: u32, state: State, pools: Vec<PoolReading>) -> Process {
        Process { id, started: 1, program: "train".into(), state, updated: 0, left_out: 0, pools }
    }

    pub fn reading(processes: Vec<Process>) -> Reading {
        Reading { processes, unreadable: Vec::new() }
    }

    #[test]
    fn rates_are_those_between_two_readings() {
        let mut rates = Rates::default();
        let mut of = |state, pool| {
            let row = rates.take(&reading(vec![process(7, state, vec![pool])])).remove(0);
            (row.allocs_per_second, row.frees_per_second, row.in_use.len())
        };
        assert_eq!(of(State::Running, pool(1000, 100, 50, 1)), (None, None, 1));
        assert_eq!(of(State::Running, pool(1500, 200, 75, 1)), (Some(200.0), Some(50.0), 2));
        // The process has not written meanwhile.
        assert_eq!(of(State::Running, pool(1500, 200, 75, 1)), (Some(200.0), Some(50.0), 3));
        // bfc_reset_stats.
        assert_eq!(of(State::Running, pool(2000, 10, 5, 1)), (None, None, 4));
        assert_eq!(of(State::Ended, pool(3000, 20, 5, 1)), (None, None, 5));
        for time in 4000..4200 {
            of(State::Running, pool(time, 20, 5, 1));
        }
        assert_eq!(of(State::Running, pool(5000, 20, 5, 1)).2, KEPT);
    }

    #[test]
    fn fragmentation_and_overhead_take_any_numbers() {
        let row = |pool: PoolReading| {
            Rates::default().take(&reading(vec![process(7, State::Running, vec![pool])])).remove(0)
        };
        let usual = row(pool(0, 2, 1, 1024));
        assert_eq!((usual.fragmentation(), usual.overhead()), (Some(0.75), Some(4.0)));
        let empty = row(pool(0, 0, 0, 0));
        assert_eq!((empty.fragmentation(), empty.overhead()), (None, None));
        let mut damaged = pool(0, 1, 1, 1);
        damaged.statistics = [u64::MAX; STATISTICS.len()];
        assert_eq!(row(damaged.clone()).fragmentation(), None);
        // More in use than held.
        damaged.statistics[9] = 1;
        assert_eq!(row(damaged).fragmentation(), None);
    }
}
