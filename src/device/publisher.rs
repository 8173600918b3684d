//! The thread that publishes the statistics of all allocators for `bfc top` (`BFC_PUBLISH`).
//!
//! It copies the statistics of each allocator with its lock held, four times a second. The program's calls do no work
//! for it. It is started when an allocator is created, so a forked child has one once it creates an allocator itself.

use super::service::Service;
use super::table::{Device, USED, devices_in};
use crate::error::ErrorKind;
use crate::options;
use crate::pool::snapshot;
use crate::publish::{self, Round};
use crate::report;
use crate::sys::clock::{monotonic_ms, unix_ns};
use crate::sys::{futex, process};
use bfc_core::stats::Stats;
use bfc_formats::published::layout::{
    FAILED, GONE, HOLDERS, Holder, LIVE, POOLS, Pool, STATISTICS, put_text,
};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use std::time::Duration;

/// The time between two copies.
const INTERVAL: Duration = Duration::from_millis(250);
/// The minimum time between two sums of the largest holders, which visit every chunk.
const HOLDERS_INTERVAL_MS: u64 = 1000;
/// The maximum part of the time that summing up the holders takes, however many chunks there are.
const HOLDERS_SHARE: u64 = 50;

/// The process that was checked, to distinguish a child from its parent. 0 is none.
static PROCESS: AtomicI32 = AtomicI32::new(0);

static SERVICE: Service = Service { thread: c"bfc-publish", variable: "BFC_PUBLISH", work: publish_for_ever };

/// Starts publishing if the environment requests it, at the first creation of an allocator in the process. Out of line,
/// so that its frame is not part of each creation.
#[inline(never)]
pub(super) fn start_as_the_environment_says() {
    let process = process();
    if PROCESS.swap(process, AcqRel) == process || !options::is_publishing_wanted() {
        return;
    }
    if publish::begin(INTERVAL) {
        SERVICE.start();
    }
}

fn publish_for_ever() {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let mut places = Places::new();
    let mut next_holders = 0;
    let mut is_first = true;
    while let Some(round) = Round::start() {
        let begin = monotonic_ms();
        let with_holders = begin >= next_holders;
        places.publish(round, with_holders);
        if with_holders {
            let took = monotonic_ms() - begin;
            next_holders = begin + HOLDERS_INTERVAL_MS.max(took * HOLDERS_SHARE);
        }
        if std::mem::take(&mut is_first) {
            publish::remove_stale_files();
        }
        futex::wait(&NEVER, 0, Some(INTERVAL));
    }
}

/// The assignment of records to allocators.
struct Places([Place; POOLS]);

#[derive(Clone, Copy)]
struct Place {
    device: Device,
    is_live: bool,
}

/// The data to write for an allocator.
enum Entry {
    Live(Stats, bool),
    Failed,
    Gone,
}

impl Places {
    const fn new() -> Self {
        // No allocator has this ordinal.
        Places([Place { device: Device(-1), is_live: false }; POOLS])
    }

    /// Writes the records of all allocators.
    fn publish(&mut self, round: Round, with_holders: bool) {
        let mut left_out = 0;
        for device in devices_in(&USED) {
            let mut pool = Pool { device: device.ordinal() as u64, ..Pool::EMPTY };
            let entry = entry_of(device, &mut pool);
            let known = self.0.iter().position(|place| place.device == device);
            let index = match (known, &entry) {
                (Some(index), _) => index,
                (None, Entry::Gone) => continue,
                // Records of allocators that no longer exist are used last.
                (None, _) => match self.vacant() {
                    Some(index) => index,
                    None => {
                        left_out += 1;
                        continue;
                    }
                },
            };
            let is_live = matches!(entry, Entry::Live(..));
            let was_live = std::mem::replace(&mut self.0[index], Place { device, is_live }).is_live;
            match entry {
                Entry::Live(stats, has_names) => {
                    (pool.state, pool.time) = (LIVE, unix_ns());
                    copy_statistics(&mut pool, &stats);
                    if has_names {
                        round.keep_holders(index, &mut pool);
                        if with_holders || !was_live {
                            sum_up_holders(device, &mut pool);
                        }
                    }
                    round.write(index, &pool);
                }
                // The previous statistics stay.
                Entry::Failed if was_live => round.change_state(index, FAILED),
                Entry::Gone if was_live => round.change_state(index, GONE),
                Entry::Failed | Entry::Gone => {}
            }
        }
        round.end(left_out);
    }

    fn vacant(&self) -> Option<usize> {
        let unused = self.0.iter().position(|place| place.device.0 < 0);
        unused.or_else(|| self.0.iter().position(|place| !place.is_live))
    }
}

/// Copies the statistics of an allocator, and its names into the record.
fn entry_of(device: Device, pool: &mut Pool) -> Entry {
    let guard = match device.slot().enter() {
        Ok(guard) => guard,
        Err(ErrorKind::Internal) => return Entry::Failed,
        Err(_) => return Entry::Gone,
    };
    put_text(&mut pool.backend, guard.backend.get().name());
    put_text(&mut pool.name, &guard.name);
    Entry::Live(guard.stats(), !guard.arena.names().is_empty())
}

fn copy_statistics(pool: &mut Pool, stats: &Stats) {
    const { assert!(STATISTICS.len() == Stats::COUNT) };
    for (place, (_, value)) in pool.statistics.iter_mut().zip(stats.fields()) {
        *place = value;
    }
}

/// Sums up the memory by operation. Without host memory for that, or without an allocator, the earlier sums stay.
#[inline(never)]
fn sum_up_holders(device: Device, pool: &mut Pool) {
    let mut holders = [Holder::EMPTY; HOLDERS];
    let summed = snapshot::report(device.slot(), |subject| {
        let mut places = holders.iter_mut();
        report::each_holder(&subject.view, |name, bytes, chunks, last_step| {
            let Some(place) = places.next() else { return false };
            (place.bytes, place.chunks, place.last_step) = (bytes, chunks, last_step);
            put_text(&mut place.name, name);
            true
        })
    });
    if matches!(summed, Ok(Ok(()))) {
        (pool.holders, pool.holders_time) = (holders, unix_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_have_the_names_of_the_layout() {
        assert_eq!(Stats::default().fields().map(|(name, _)| name), STATISTICS);
    }

    #[test]
    fn a_new_allocator_takes_the_record_of_one_that_is_gone_last() {
        let mut places = Places::new();
        assert_eq!(places.vacant(), Some(0));
        for (index, place) in places.0.iter_mut().enumerate() {
            *place = Place { device: Device(index as i32), is_live: index != 3 };
        }
        assert_eq!(places.vacant(), Some(3));
        places.0[7].device = Device(-1);
        assert_eq!(places.vacant(), Some(7));
        places.0[7] = Place { device: Device(7), is_live: true };
        places.0[3].is_live = true;
        assert_eq!(places.vacant(), None);
    }
}
