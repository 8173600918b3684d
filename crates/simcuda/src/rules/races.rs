//! The check for races (`Choice::Races`): two uses of the same bytes, at least one of them not a read, that nothing
//! orders. What counts as order, with NVIDIA's sentences, is listed in README.md. The order is that of the calls and
//! not that in which the simulation runs the work, so a race is found whichever work is done first.
//!
//! An item's clock is settled when its turn comes: then everything that it comes after has run.

use std::io::Write as _;
use std::sync::Arc;

use crate::options::{Choice, RACES_ABORT};
use crate::sim::Sim;
use crate::state::clock::Clock;
use crate::state::memory::Origin;
use crate::state::races::{Gone, Order, Races};
use crate::state::stream::{Point, Role, Stream};
use crate::state::touched::{Act, By, Conflict, Use};
use crate::state::work::{Way, Work};
use crate::system;

/// The most races that are printed. All are counted.
const MOST_PRINTED: u64 = 20;

impl Sim {
    /// Calls `act` with what the check knows, if it is on, and with the rest of the state.
    fn with_races<T>(&mut self, act: impl FnOnce(&mut Sim, &mut Races) -> T) -> Option<T> {
        let mut races = self.races.take()?;
        let result = act(self, &mut races);
        self.races = Some(races);
        Some(result)
    }

    /// Gives queued work its place in the order, after points elsewhere and the work that the host knows to be done.
    pub(crate) fn put_in_order(&mut self, at: Point, after: Vec<Point>) {
        self.with_races(|sim, races| {
            let by = By {
                stream: sim.streams.get(&at.stream).map(Stream::role),
                call: sim.record.current(system::thread()),
            };
            let order = Order { at, after, host: races.clocks.host(), closes: Vec::new(), by };
            races.orders.insert((at.stream, at.item), order);
        });
    }

    /// Settles the clock of work whose turn has come, and checks what it touches unless its context has failed.
    pub(crate) fn run_in_order(&mut self, at: Point, work: &Work, is_sound: bool) {
        self.with_races(|sim, races| {
            let Some(order) = races.orders.remove(&(at.stream, at.item)) else { return };
            let mut behind = order.host;
            if matches!(work, Work::Receive { .. } | Work::WaitValue { .. }) {
                // Which work sent or stored what it has waited for is not traced.
                behind = Arc::new(races.clocks.everything());
            }
            let clock = races.clocks.run(order.at, &behind, &order.after);
            if matches!(work, Work::HostFunction { .. } | Work::Callback { .. }) {
                races.clocks.learn(&[order.at]);
            }
            if is_sound {
                sim.check_work(races, work, order.at, order.by, &clock);
            }
            if !order.closes.is_empty() {
                races.clocks.run(at, &Clock::default(), &order.closes);
            }
        });
    }

    fn check_work(&mut self, races: &mut Races, work: &Work, at: Point, by: By, clock: &Clock) {
        let of = |act, work| Use { at, act, work, by };
        match *work {
            Work::Alloc { at: start, bytes, .. } => {
                races.touched.put(start, start + bytes, of(Act::Allocates, "allocation"));
            }
            Work::Free { at: start, .. } => {
                let living = self.living.get(&start).map(|living| living.bytes);
                let plain = self.allocations.get(&start).map(|allocation| allocation.bytes);
                let bytes = living.or(plain).unwrap_or(0);
                self.check_range(races, start, bytes, of(Act::Frees, "free"), clock);
            }
            ref work => {
                for touch in work.touches() {
                    let act = match touch.way {
                        Way::Reads => Act::Reads,
                        Way::Writes => Act::Writes,
                        Way::Stores | Way::Polls => continue,
                    };
                    // The driver does not know other host memory, which the program may free at any time.
                    if self.is_device_address(touch.at) || self.find(touch.at).is_some() {
                        self.check_range(races, touch.at, touch.bytes, of(act, work.name()), clock);
                    }
                }
            }
        }
    }

    fn check_range(&mut self, races: &mut Races, start: u64, bytes: u64, new: Use, clock: &Clock) {
        if bytes == 0 {
            return;
        }
        let Races { clocks, touched, .. } = races;
        let is_before = |point: Point| point.stream == new.at.stream || clocks.is_before(point, clock);
        for conflict in touched.touch(start, start.saturating_add(bytes), new, is_before) {
            let is_access = matches!(conflict.with.act, Act::Reads | Act::Writes);
            if is_access || new.by.stream.is_some() {
                self.report_race(new, conflict);
            }
        }
        let host = clocks.host();
        touched.trim(|point| clocks.is_before(point, &host));
    }

    fn report_race(&mut self, new: Use, conflict: Conflict) {
        let Conflict { start, end, with } = conflict;
        // Work that is held may run before what was called earlier.
        let is_older = new.by.call.zip(with.by.call).is_some_and(|((_, new), (_, with))| new < with);
        let (later, earlier) = if is_older { (with, new) } else { (new, with) };
        let memory = self.allocation_around(start);
        let text = format!(
            "race: {} bytes {start:#x} to {end:#x}{memory}, which {}; no event, synchronization or default stream \
             orders the two",
            words(&later),
            words(&earlier)
        );
        let aborts = self.options.get(Choice::Races) == RACES_ABORT;
        let count = self.record.race();
        if count <= MOST_PRINTED {
            let why = if aborts { "; SIMCUDA_RACES is 2" } else { "" };
            // As one write, so that lines of threads do not mix.
            let _ = std::io::stderr().write_all(format!("simcuda: {text}{why}\n").as_bytes());
        } else if count == MOST_PRINTED + 1 {
            let _ = std::io::stderr().write_all(b"simcuda: more races are counted, but not printed\n");
        }
        if aborts {
            std::process::abort();
        }
        self.record.misuse(text);
    }

    /// Names the allocation or the reserved range that contains an address.
    fn allocation_around(&self, at: u64) -> String {
        if let Some((start, there)) = self.find(at) {
            let kind = match there.origin {
                Origin::Host(_) | Origin::Registered(_) => "host memory",
                _ => "the allocation",
            };
            return format!(" of {kind} at {start:#x} ({} bytes)", there.bytes);
        }
        let reserved = self.reservations.range(..=at).next_back();
        match reserved.filter(|(start, range)| at - *start < range.bytes) {
            Some((start, range)) => format!(" of the reserved range at {start:#x} ({} bytes)", range.bytes),
            None => String::new(),
        }
    }

    // The host.

    /// Records that the host knows the work up to some points to be done.
    pub(crate) fn learn(&mut self, points: &[Point]) {
        if let Some(races) = &mut self.races {
            races.clocks.learn(points);
        }
    }

    /// Checks memory that the host is about to free or unmap without waiting for anything: "all accesses to these pointer
    /// have completed before invoking cuMemFree". An allocation in the order of a stream is no access.
    pub(crate) fn check_host_free(&mut self, start: u64, bytes: u64, work: &'static str) {
        self.with_races(|sim, races| {
            let by = By { stream: None, call: sim.record.current(system::thread()) };
            let new = Use { at: Point { stream: 0, item: 0 }, act: Act::Frees, work, by };
            let clock = races.clocks.host();
            sim.check_range(races, start, bytes, new, &clock);
        });
    }

    /// Forgets the uses of memory that is gone.
    pub(crate) fn forget_touched(&mut self, start: u64, bytes: u64) {
        if let Some(races) = &mut self.races {
            races.touched.forget(start, start + bytes);
        }
    }

    /// Returns whether a point still orders what comes after it: the host does not know it to be done.
    pub(crate) fn is_in_order(&self, point: Point) -> bool {
        let clocks = self.races.as_ref().map(|races| &races.clocks);
        clocks.is_some_and(|clocks| !clocks.is_before(point, &clocks.host()))
    }

    // Streams and graphs.

    /// Records that a stream is gone, with its work done.
    pub(crate) fn end_in_order(&mut self, number: u64, stream: &Stream) {
        let gone = Gone {
            context: stream.context(),
            device: stream.device(),
            is_blocking: stream.is_blocking(),
            end: Point { stream: number, item: stream.issued() },
        };
        if let Some(races) = &mut self.races {
            races.end(gone);
        }
    }

    /// Returns the ends of blocking streams that are gone, if the legacy default stream is used.
    pub(crate) fn gone_blocking(&self, user: &Stream) -> Vec<Point> {
        let races = self.races.as_ref().filter(|_| user.role() == Role::Legacy);
        let are = |gone: &Gone| gone.is_blocking && gone.context == user.context();
        races.map(|races| races.gone(are)).unwrap_or_default()
    }

    /// Orders the nodes of a launched graph by their dependencies alone. They are queued on one stream, one by one: its
    /// lane has one chain of nodes, and each branch is a lane of its own, until the end of the launch.
    pub(crate) fn order_branches(&mut self, executable: u64, launch: &[Queued], begin: &[Point], end: Point) {
        self.with_races(|sim, races| {
            let mut lanes: Vec<Option<usize>> = Vec::with_capacity(launch.len());
            // The last node of each lane, and where each node is in the order.
            let mut tails: Vec<usize> = Vec::new();
            let mut places: Vec<Vec<Point>> = Vec::with_capacity(launch.len());
            for (index, node) in launch.iter().enumerate() {
                let before = node.after.iter().flat_map(|other| places[*other].iter().copied());
                let mut after: Vec<Point> = before.collect();
                let Some(item) = node.item else {
                    after.extend(node.event);
                    places.push(after);
                    lanes.push(None);
                    continue;
                };
                let continued =
                    node.after.iter().find_map(|other| lanes[*other].filter(|lane| tails[*lane] == *other));
                let lane = continued.unwrap_or(tails.len());
                if lane == tails.len() {
                    tails.push(index);
                }
                tails[lane] = index;
                if node.after.is_empty() {
                    after.extend(begin);
                }
                let place = match lane {
                    0 => item,
                    _ => {
                        let stream = races.branch(executable, lane, || sim.number());
                        Point { stream, item: sim.number() }
                    }
                };
                if let Some(order) = races.orders.get_mut(&(item.stream, item.item)) {
                    order.at = place;
                    order.after.extend(after);
                    // An event stands for a place in the stream.
                    order.closes.extend(node.event.map(|_| place));
                }
                places.push(vec![place]);
                lanes.push(Some(lane));
            }
            let last = tails.into_iter().flat_map(|node| places[node].iter().copied());
            if let Some(order) = races.orders.get_mut(&(end.stream, end.item)) {
                order.closes.extend(last);
            }
        });
    }
}

/// A node of a graph that is launched.
pub(crate) struct Queued {
    /// The earlier nodes that it comes after.
    pub(crate) after: Vec<usize>,
    /// Its item, unless it is a wait for an event.
    pub(crate) item: Option<Point>,
    /// The event's place, for a node that records an event or waits for one.
    pub(crate) event: Option<Point>,
}

/// Describes a use: "the copy of cuMemcpyDtoDAsync_v2 (call 12) on stream 0x5000 reads".
fn words(of: &Use) -> String {
    let act = match of.act {
        Act::Reads => "reads",
        Act::Writes => "writes",
        Act::Allocates => "allocates",
        Act::Frees => "frees",
    };
    let call = of.by.call.map(|(symbol, sequence)| format!(" of {symbol} (call {sequence})"));
    let stream = match of.by.stream {
        Some(Role::Created(handle)) => format!("on stream {handle:#x}"),
        Some(Role::Legacy) => "on the legacy default stream".to_owned(),
        Some(Role::PerThread) => "on a per-thread default stream".to_owned(),
        None => "by the host".to_owned(),
    };
    format!("the {}{} {stream} {act}", of.work, call.unwrap_or_default())
}
