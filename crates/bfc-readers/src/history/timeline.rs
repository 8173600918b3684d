//! Follows the events of a history: what is live, in use and held at each moment.

#![allow(missing_docs)] // Of fields whose names say it.

use std::collections::BTreeMap;

use super::ranges::Ranges;
use super::reader::{History, Recorded};
use bfc_formats::history::layout::Kind;

/// A chunk in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub bytes: u64,
    pub requested: u64,
    pub stream: Option<u64>,
    pub operation: u32,
    /// The event that allocated it.
    pub since: u64,
    /// The backtrace of the allocation, for `History::frames`.
    pub stack: u32,
}

/// The state of a pool at a moment.
#[derive(Clone, Debug, Default)]
pub struct PoolState {
    pub live: BTreeMap<u64, Live>,
    /// What is held.
    pub regions: Ranges,
    pub held: u64,
    /// As the pool counts it.
    pub in_use: u64,
    /// The sum over `live`. Less than `in_use` if the events that allocated the rest are no longer in the file.
    pub known: u64,
    pub limit: u64,
    pub allocations: u64,
    pub frees: u64,
    pub failures: u64,
    /// How often free memory was given back, except by requests, and how much.
    pub trims: u64,
    pub trimmed: u64,
    /// How often the limit changed.
    pub limit_changes: u64,
    /// The sizes of the requests that are live, before rounding.
    pub requested: u64,
    /// The step of the last operation that allocated, if the file has it.
    pub step: Option<u64>,
    /// Whether the recording of the pool began with an event that the file has.
    is_whole: bool,
}

impl PoolState {
    /// The state before the first event of a pool. The event with its limit may have been displaced.
    pub fn of_pool(history: &History, pool: u16) -> Self {
        PoolState { limit: history.options(pool).map_or(0, |options| options.limit), ..PoolState::default() }
    }

    /// Takes an event into account.
    pub fn apply(&mut self, event: &Recorded) {
        match event.kind {
            Kind::Alloc | Kind::Present => {
                if event.name != 0 && self.is_whole {
                    // Only changes of the step are recorded, and the first is 0.
                    self.step.get_or_insert(0);
                }
                let live = Live {
                    bytes: event.bytes,
                    requested: event.requested,
                    stream: event.stream,
                    operation: event.name,
                    since: event.number,
                    stack: event.stack,
                };
                self.remove(event.address);
                self.live.insert(event.address, live);
                self.known = self.known.saturating_add(live.bytes);
                self.requested = self.requested.saturating_add(live.requested);
                self.allocations += u64::from(event.kind == Kind::Alloc);
                self.in_use = event.in_use;
            }
            Kind::Free => {
                self.remove(event.address);
                self.frees += 1;
                self.in_use = event.in_use;
            }
            Kind::Obtained => {
                let end = event.address.saturating_add(event.bytes);
                // The return of the earlier memory is not recorded.
                let before = self.regions.insert(event.address, end, ());
                self.held = self.held - sum(&before) + (end - event.address);
            }
            Kind::Returned => self.give_back(event.address, event.bytes),
            Kind::OutOfMemory => {
                self.failures += 1;
                self.in_use = event.in_use;
            }
            Kind::Begin => (self.limit, self.is_whole) = (event.bytes, true),
            Kind::Step => self.step = Some(event.bytes),
            Kind::End => *self = PoolState { limit: self.limit, ..PoolState::counts_of(self) },
            Kind::Trim => {
                self.trims += 1;
                self.trimmed = self.trimmed.saturating_add(event.bytes);
            }
            Kind::Limit => {
                self.limit = event.bytes;
                self.limit_changes += 1;
            }
            Kind::Mark => {}
        }
    }

    fn counts_of(state: &Self) -> Self {
        let PoolState { allocations, frees, failures, trims, trimmed, limit_changes, .. } = *state;
        PoolState { allocations, frees, failures, trims, trimmed, limit_changes, ..PoolState::default() }
    }

    fn remove(&mut self, address: u64) {
        if let Some(gone) = self.live.remove(&address) {
            // The sums of a damaged file may have overflowed.
            self.known = self.known.saturating_sub(gone.bytes);
            self.requested = self.requested.saturating_sub(gone.requested);
        }
    }

    /// Removes memory from what is held. It may be a part of a region, and chunks in it are gone, because its context
    /// was lost.
    fn give_back(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        self.held -= sum(&self.regions.remove(address, end));
        let gone: Vec<u64> = self.live.range(address..end).map(|(&address, _)| address).collect();
        for address in gone {
            self.remove(address);
            self.in_use = self.known;
        }
    }
}

/// The bytes of ranges that do not overlap, which cannot exceed the address space.
fn sum(ranges: &[(u64, u64, ())]) -> u64 {
    ranges.iter().map(|(from, to, ())| to - from).sum()
}

/// Follows all events, and calls `see` after each with the state of its pool.
pub fn follow(history: &History, mut see: impl FnMut(&Recorded, &PoolState)) -> BTreeMap<u16, PoolState> {
    let mut pools: BTreeMap<u16, PoolState> = BTreeMap::new();
    let nothing = PoolState::default();
    for event in &history.events {
        if event.kind == Kind::Mark {
            see(event, &nothing);
            continue;
        }
        let state = pools.entry(event.pool).or_insert_with(|| PoolState::of_pool(history, event.pool));
        state.apply(event);
        see(event, state);
    }
    pools
}
