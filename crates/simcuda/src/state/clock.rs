//! The order of device work, as vector clocks. A lane is a sequence of work: a stream, or a branch of a graph that may
//! run beside the rest. The host has one clock for all its threads, because the driver does not see how threads wait for
//! each other.
//!
//! What is forgotten counts as done and known to the host. So a limit costs a report and never makes a false one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::stream::Point;

/// The most lanes that have ended and are still remembered.
const MOST_ENDED: usize = 256;

/// The most states of a lane that are remembered.
const MOST_STATES: usize = 256;

/// Work that comes before something: of each lane the last item.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<u64, u64>);

impl Clock {
    fn has(&self, point: Point) -> bool {
        self.0.get(&point.stream).is_some_and(|item| *item >= point.item)
    }

    fn add(&mut self, point: Point) {
        let item = self.0.entry(point.stream).or_default();
        *item = point.item.max(*item);
    }

    fn join(&mut self, other: &Self) {
        for (stream, item) in &other.0 {
            self.add(Point { stream: *stream, item: *item });
        }
    }
}

/// A lane, and what comes before its items. A state holds from its item to the next state.
#[derive(Default)]
struct Lane {
    states: VecDeque<(u64, Arc<Clock>)>,
    last: u64,
    has_ended: bool,
}

impl Lane {
    fn latest(&self) -> Arc<Clock> {
        self.states.back().map(|(_, clock)| Arc::clone(clock)).unwrap_or_default()
    }

    /// Returns what comes before an item; for one that is too old, what comes before a later one.
    fn at(&self, item: u64) -> Option<&Clock> {
        let next = self.states.partition_point(|(from, _)| *from <= item);
        self.states.get(next.saturating_sub(1)).map(|(_, clock)| &**clock)
    }

    fn enter(&mut self, item: u64, clock: Clock) -> Arc<Clock> {
        self.last = item.max(self.last);
        let latest = self.latest();
        if *latest == clock {
            return latest;
        }
        if self.states.is_empty() {
            self.states.push_back((0, latest));
        }
        if self.states.len() == MOST_STATES {
            self.states.pop_front();
        }
        let clock = Arc::new(clock);
        self.states.push_back((item, Arc::clone(&clock)));
        clock
    }
}

/// The clocks of all lanes and of the host.
#[derive(Default)]
pub(crate) struct Clocks {
    lanes: BTreeMap<u64, Lane>,
    host: Arc<Clock>,
}

impl Clocks {
    /// Returns the work that the host knows to be done.
    pub(crate) fn host(&self) -> Arc<Clock> {
        Arc::clone(&self.host)
    }

    /// Returns all work that was done so far.
    pub(crate) fn everything(&self) -> Clock {
        let mut all = Clock::clone(&self.host);
        for (lane, there) in &self.lanes {
            all.add(Point { stream: *lane, item: there.last });
        }
        all
    }

    /// Returns whether an item comes before what has this clock. True for a lane that is not known any more.
    pub(crate) fn is_before(&self, point: Point, clock: &Clock) -> bool {
        clock.has(point) || !self.lanes.contains_key(&point.stream)
    }

    /// Runs an item that comes after its lane's earlier ones, after a clock, and after other points. Returns its clock.
    pub(crate) fn run(&mut self, at: Point, behind: &Clock, after: &[Point]) -> Arc<Clock> {
        let mut clock =
            self.lanes.get(&at.stream).map(|lane| Clock::clone(&lane.latest())).unwrap_or_default();
        clock.join(behind);
        self.join_points(&mut clock, after);
        self.lanes.entry(at.stream).or_default().enter(at.item, clock)
    }

    fn join_points(&self, clock: &mut Clock, points: &[Point]) {
        for point in points {
            let Some(lane) = self.lanes.get(&point.stream) else {
                // Nothing has run there, or the host knows all of it.
                clock.join(&self.host);
                continue;
            };
            clock.add(*point);
            if let Some(there) = lane.at(point.item) {
                clock.join(there);
            }
        }
        // A lane that was dropped needs no place.
        clock.0.retain(|lane, _| self.lanes.contains_key(lane));
    }

    /// Records that the host knows the work up to some points to be done.
    pub(crate) fn learn(&mut self, points: &[Point]) {
        let mut host = Clock::clone(&self.host);
        self.join_points(&mut host, points);
        if host != *self.host {
            self.lanes.retain(|lane, there| {
                !there.has_ended || !host.has(Point { stream: *lane, item: there.last })
            });
            self.host = Arc::new(host);
        }
    }

    /// Records that a lane gets no more items. It is remembered until the host knows that they are done.
    pub(crate) fn end(&mut self, lane: u64) {
        let Some(there) = self.lanes.get_mut(&lane) else { return };
        there.has_ended = true;
        let end = Point { stream: lane, item: there.last };
        let ended = self.lanes.iter().filter(|(_, there)| there.has_ended).map(|(lane, _)| *lane);
        if self.host.has(end) {
            self.lanes.remove(&lane);
        } else if ended.clone().count() > MOST_ENDED
            && let Some(first) = ended.min()
        {
            self.forget(first);
        }
    }

    /// Forgets a lane. Its work counts as known to the host.
    pub(crate) fn forget(&mut self, lane: u64) {
        let Some(there) = self.lanes.get(&lane) else { return };
        self.learn(&[Point { stream: lane, item: there.last }]);
        self.lanes.remove(&lane);
    }

    pub(crate) fn knows(&self, lane: u64) -> bool {
        self.lanes.contains_key(&lane)
    }
}
