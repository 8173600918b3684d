//! Units of memory and the streams that freed them.

use crate::arena::Arena;
use crate::heap::State;
use crate::request::Request;
use crate::stream_id::Stream;
use crate::units::UNIT;
use std::collections::BTreeMap;

/// A stream's number in the model. A handle that is reused after its stream was forgotten gets a new number.
type QueueId = usize;
/// A queue's count of frees and of other events that mark work to wait for.
type Point = u64;

#[derive(Clone, PartialEq, Debug)]
enum Owner {
    Used,
    Anyone,
    /// Reusable by this queue at once.
    Of(QueueId, Point),
    /// Reusable by the queue once these works are done.
    Pending(QueueId, Point, Vec<(QueueId, Point)>),
}

#[derive(Clone)]
struct Unit {
    owner: Owner,
    /// All work that may still use the unit, as of its free. Never merged with that of neighbours.
    hazards: Vec<(QueueId, Point)>,
}

struct Region {
    base: u64,
    units: Vec<Unit>,
    /// Nothing was ever allocated from here on while there was a single queue.
    mark: usize,
}

struct Live {
    bytes: u64,
    queue: QueueId,
    records: Vec<QueueId>,
}

#[derive(Default)]
struct StreamQueue {
    point: Point,
    done: Point,
    forgotten: bool,
    /// The work of other queues that the stream waits for.
    knows: BTreeMap<QueueId, Point>,
}

pub(super) struct Model {
    regions: Vec<Region>,
    rows: Vec<StreamQueue>,
    streams: Vec<Stream>,
    names: BTreeMap<Stream, QueueId>,
    live: BTreeMap<u64, Live>,
    split_always: bool,
    /// Otherwise the default stream of a thread can be the only one.
    has_events: bool,
    /// The arena shares chunks later than the model does.
    lazily: bool,
    used: bool,
    mixed: bool,
    home: Stream,
    home_recorded: bool,
    home_synchronized: bool,
    /// Streams whose requests are routed to a private pool, with the pool's name.
    begun: BTreeMap<Stream, u64>,
    /// Names of private pools by their number in the arena.
    pools: Vec<Option<u64>>,
    /// The last point of any queue. Points tell which of two frees came first.
    newest: Point,
}

/// The work that a request waits for.
pub(super) struct Awaited {
    /// The queues, each with a point.
    pub(super) works: BTreeMap<QueueId, Point>,
    /// The place where the request is served after that: address and bytes.
    pub(super) place: (u64, u64),
}

/// Returns whether free neighbours of a stream's queue merge where there are events.
fn merges(stream: Stream) -> bool {
    !stream.exists() || stream.pool() != 0
}

/// Returns whether memory may be reusable by every stream although the model says that it waits. Neighbours that merge
/// take the later point, and which of them merge depends on what is shared first.
fn may_be_shared(streams: &[Stream], owner: &Owner) -> bool {
    match owner {
        Owner::Of(queue, _) => merges(streams[*queue]),
        owner => *owner == Owner::Anyone,
    }
}

impl Model {
    pub(super) fn new(split_always: bool, has_events: bool, lazily: bool) -> Self {
        Model {
            regions: Vec::new(),
            rows: Vec::new(),
            streams: Vec::new(),
            names: BTreeMap::new(),
            live: BTreeMap::new(),
            split_always,
            has_events,
            lazily,
            used: false,
            mixed: false,
            home: Stream::NONE,
            home_recorded: false,
            home_synchronized: true,
            begun: BTreeMap::new(),
            pools: Vec::new(),
            newest: 0,
        }
    }

    pub(super) fn next_base(&self) -> u64 {
        (1 << 40) + self.regions.len() as u64 * (1 << 32)
    }

    pub(super) fn add_region(&mut self, base: u64, bytes: u64) {
        let unit = Unit { owner: Owner::Anyone, hazards: Vec::new() };
        self.regions.push(Region { base, units: vec![unit; (bytes / UNIT) as usize], mark: 0 });
    }

    fn queue(&mut self, stream: Stream) -> QueueId {
        let Model { rows, streams, names, .. } = self;
        *names.entry(stream).or_insert_with(|| {
            rows.push(StreamQueue::default());
            streams.push(stream);
            rows.len() - 1
        })
    }

    pub(super) fn point(&mut self, stream: Stream) -> Point {
        let queue = self.queue(stream);
        self.rows[queue].point
    }

    fn advance(&mut self, queue: QueueId) -> Point {
        let row = &mut self.rows[queue];
        if !row.forgotten {
            self.newest += 1;
            row.point = self.newest;
        }
        row.point
    }

    fn admit(&mut self, stream: Stream) {
        if self.mixed || self.home == stream {
            return;
        }
        let may_be_home = stream.is_an_order() && (stream.thread() == 0 || !self.has_events);
        if !self.used && may_be_home {
            self.home = stream;
            return;
        }
        self.tell_apart();
    }

    /// Regions that are wholly free may be given back at once.
    pub(super) fn hold_unfinished(&mut self) {
        let is_free = |region: &Region| region.units.iter().all(|unit| unit.owner == Owner::Anyone);
        let is_at_risk = !self.home_synchronized && self.home != Stream::NONE;
        if is_at_risk && self.regions.iter().any(is_free) {
            self.tell_apart();
        }
    }

    fn tell_apart(&mut self) {
        if std::mem::replace(&mut self.mixed, true) {
            return;
        }
        let home = self.queue(self.home);
        if self.home_recorded {
            self.live.values_mut().for_each(|live| live.records.push(home));
        }
        if self.home_synchronized {
            return;
        }
        let point = self.advance(home);
        for region in &mut self.regions {
            let touched = region.units[..region.mark].iter_mut();
            touched
                .filter(|unit| unit.owner == Owner::Anyone)
                .for_each(|unit| unit.owner = Owner::Of(home, point));
        }
    }

    /// Returns the shortest stretch of units accepted by `possible` in which the request fits, with the place in it.
    fn best(
        &self,
        request: &Request<'_>,
        possible: impl Fn(&Owner) -> bool,
    ) -> Option<(usize, usize, u64, u64)> {
        let mut best: Option<((usize, u64), usize, u64)> = None;
        for (number, region) in self.regions.iter().enumerate() {
            let mut at = 0;
            while at < region.units.len() {
                let length = region.units[at..].iter().take_while(|unit| possible(&unit.owner)).count();
                let addr = region.base + at as u64 * UNIT;
                let start = addr.next_multiple_of(request.alignment);
                let end = addr + length as u64 * UNIT;
                let fits = length != 0 && start + request.size <= end;
                if fits && best.is_none_or(|(key, ..)| (length, addr) < key) {
                    best = Some(((length, addr), number, start));
                }
                at += length.max(1);
            }
        }
        best.map(|((length, addr), number, start)| {
            let first = ((addr - self.regions[number].base) / UNIT) as usize;
            (number, first, start, addr + length as u64 * UNIT - start)
        })
    }

    /// Returns where the request is served, if it is.
    pub(super) fn take(&mut self, request: &Request<'_>) -> Option<u64> {
        self.admit(request.stream);
        let queue = self.own_queue(request);
        let (_, _, start, whole) = self.best(request, |owner| Self::is_for(owner, queue))?;
        let bytes = self.bytes_of(request, whole);
        self.take_at(request, start, bytes);
        Some(start)
    }

    fn is_for(owner: &Owner, queue: QueueId) -> bool {
        match owner {
            Owner::Anyone => true,
            Owner::Of(other, _) => *other == queue,
            _ => false,
        }
    }

    /// Serves the request at this place.
    pub(super) fn take_at(&mut self, request: &Request<'_>, start: u64, bytes: u64) {
        self.admit(request.stream);
        let queue = self.own_queue(request);
        let around =
            |region: &&mut Region| start.wrapping_sub(region.base) < region.units.len() as u64 * UNIT;
        let region = self.regions.iter_mut().find(around).unwrap();
        let first = ((start - region.base) / UNIT) as usize;
        let units = first..first + (bytes / UNIT) as usize;
        region.mark = region.mark.max(units.end);
        let (lazily, streams) = (self.lazily, &self.streams);
        for unit in &mut region.units[units] {
            let owner = &unit.owner;
            assert!(
                lazily && may_be_shared(streams, owner) || Self::is_for(owner, queue),
                "{start:#x}: {owner:?} is not for queue {queue}"
            );
            let row = &self.rows[queue];
            for &(other, point) in &unit.hazards {
                let ordered = other == queue || row.knows.get(&other).is_some_and(|&known| point <= known);
                assert!(
                    ordered || point <= self.rows[other].done,
                    "work of queue {other} up to {point} may touch it"
                );
            }
            *unit = Unit { owner: Owner::Used, hazards: Vec::new() };
        }
        self.used = true;
        // Requests for any stream have no order that their memory could be freed in.
        let queue = if request.stream == Stream::ANY { self.queue(Stream::UNKNOWN) } else { queue };
        self.live.insert(start, Live { bytes, queue, records: Vec::new() });
    }

    pub(super) fn free(&mut self, addr: u64, stream: Option<Stream>) {
        if let Some(stream) = stream {
            self.admit(stream);
        }
        let Live { bytes, queue, records } = self.live.remove(&addr).unwrap();
        let pool = self.streams[queue].pool();
        let queue = stream.map_or(queue, |stream| self.queue(stream.in_pool(pool)));
        let point = self.advance(queue);
        let mut hazards = vec![(queue, point)];
        let others = records.into_iter().filter(|&other| other != queue);
        let others: Vec<_> = others.map(|other| (other, self.advance(other))).collect();
        hazards.extend(&others);
        self.home_synchronized = false;
        let owner = match self.mixed {
            true => Owner::Pending(queue, point, others),
            false => Owner::Anyone,
        };
        let region =
            self.regions.iter_mut().find(|region| addr - region.base < region.units.len() as u64 * UNIT);
        let region = region.unwrap();
        let first = ((addr - region.base) / UNIT) as usize;
        let unit = Unit { owner, hazards };
        region.units[first..first + (bytes / UNIT) as usize].fill(unit);
        self.settle();
    }

    /// Updates the owners: memory that waits for nothing belongs to its queue, or is reusable by every stream. In
    /// queues without events, neighbours share the latest point.
    fn settle(&mut self) {
        let (rows, streams) = (&self.rows, &self.streams);
        let merges = |queue: QueueId| merges(streams[queue]);
        let is_done = |&(queue, point): &(QueueId, Point)| point <= rows[queue].done;
        for region in &mut self.regions {
            for unit in &mut region.units {
                if let Owner::Pending(queue, point, others) = &mut unit.owner {
                    others.retain(|other| !is_done(other));
                    if others.is_empty() {
                        unit.owner = Owner::Of(*queue, *point);
                    }
                }
                if let Owner::Of(queue, point) = unit.owner
                    && is_done(&(queue, point))
                {
                    unit.owner = Owner::Anyone;
                }
            }
            for at in (1..region.units.len()).chain((1..region.units.len()).rev()) {
                let (low, high) = region.units.split_at_mut(at);
                if let (Some(Unit { owner: Owner::Of(a, p), .. }), Some(Unit { owner: Owner::Of(b, q), .. })) =
                    (low.last_mut(), high.first_mut())
                    && a == b
                    && merges(*a)
                {
                    (*p, *q) = (*p.max(q), *p.max(q));
                }
            }
        }
    }

    pub(super) fn record(&mut self, addr: u64, stream: Stream) {
        self.admit(stream);
        self.home_recorded = true;
        if self.mixed {
            let queue = self.queue(stream);
            let records = &mut self.live.get_mut(&addr).unwrap().records;
            if !records.contains(&queue) {
                records.push(queue);
            }
        }
    }

    pub(super) fn done(&mut self, stream: Stream, point: Point) {
        let queue = self.queue(stream);
        let row = &mut self.rows[queue];
        row.done = row.done.max(point);
        self.settle();
    }

    pub(super) fn synchronize(&mut self, stream: Stream) {
        if !self.mixed {
            self.home_synchronized |= self.home == stream;
        }
        let point = self.point(stream);
        self.done(stream, point);
    }

    /// Forgets a stream. All work that it may touch counts as done, and its handle can be reused.
    pub(super) fn forget(&mut self, stream: Stream) {
        if !self.mixed {
            if self.home != stream || !self.used {
                return;
            }
            // The handle may be reused by another stream.
            self.home = Stream::of_handle(u64::MAX);
            let queue = self.queue(stream);
            self.names.insert(self.home, queue);
            self.admit(stream);
        }
        self.begun.remove(&stream);
        let private = self.names.iter().filter(|(other, _)| **other != stream && other.in_pool(0) == stream);
        for queue in private.map(|(_, &queue)| queue).collect::<Vec<_>>() {
            self.names.retain(|_, other| *other != queue);
            self.advance(queue);
            self.rows[queue].forgotten = true;
        }
        if let Some(queue) = self.names.remove(&stream) {
            self.names.retain(|_, other| *other != queue);
            let point = self.advance(queue);
            (self.rows[queue].done, self.rows[queue].forgotten) = (point, true);
            self.settle();
        }
    }

    fn works_of(owner: &Owner) -> impl Iterator<Item = (QueueId, Point)> {
        let (first, others) = match owner {
            Owner::Used | Owner::Anyone => (None, None),
            Owner::Of(queue, point) => (Some((*queue, *point)), None),
            Owner::Pending(queue, point, others) => (Some((*queue, *point)), Some(others.clone())),
        };
        first.into_iter().chain(others.into_iter().flatten())
    }

    /// Returns the work behind which the request could be served, the oldest that it can wait for.
    pub(super) fn works_to_wait_for(&mut self, request: &Request<'_>) -> Option<Awaited> {
        let own = self.own_queue(request);
        let is_over = |&(queue, point): &(QueueId, Point)| queue == own || point <= self.rows[queue].done;
        let age = |owner: &Owner| {
            let works = Self::works_of(owner).filter(|work| !is_over(work));
            works.map(|(_, point)| point).max().unwrap_or(0)
        };
        let can_wait = |owner: &Owner| {
            let reachable = |queue: QueueId| {
                let stream = self.streams[queue];
                stream.exists() && stream.pool() == 0 && !self.is_at_risk(stream)
            };
            *owner != Owner::Used && Self::works_of(owner).all(|work| is_over(&work) || reachable(work.0))
        };
        let units = || self.regions.iter().flat_map(|region| &region.units);
        let mut ages: Vec<Point> = units().map(|unit| age(&unit.owner)).collect();
        ages.sort_unstable();
        let with = |most: Point| self.best(request, |owner| can_wait(owner) && age(owner) <= most);
        let found = ages.into_iter().filter(|_| self.mixed).find_map(with);
        let (number, _, start, whole) = found?;
        let first = ((start - self.regions[number].base) / UNIT) as usize;
        let bytes = self.bytes_of(request, whole);
        let length = (bytes / UNIT) as usize;
        let mut works = BTreeMap::new();
        for unit in &self.regions[number].units[first..first + length] {
            for (queue, point) in Self::works_of(&unit.owner).filter(|work| !is_over(work)) {
                let last = works.entry(queue).or_insert(point);
                *last = point.max(*last);
            }
        }
        Some(Awaited { works, place: (start, bytes) })
    }

    /// Returns how many bytes of a free piece the request takes.
    fn bytes_of(&self, request: &Request<'_>, whole: u64) -> u64 {
        let least = if self.split_always { UNIT } else { request.size.min(128 << 20) };
        if whole - request.size >= least { request.size } else { whole }
    }

    pub(super) fn stream_of(&self, queue: QueueId) -> Stream {
        self.streams[queue]
    }

    /// Makes the stream wait for work of others.
    pub(super) fn wait(&mut self, request: &Request<'_>, awaited: &Awaited) {
        let queue = self.own_queue(request);
        let knows = &mut self.rows[queue].knows;
        for (&other, &point) in &awaited.works {
            let known = knows.entry(other).or_insert(point);
            *known = point.max(*known);
        }
    }

    /// Gives the memory that is to serve the request to the stream.
    pub(super) fn adopt(&mut self, request: &Request<'_>, awaited: &Awaited) {
        let own = self.own_queue(request);
        let (start, bytes) = awaited.place;
        let around = |region: &Region| start.wrapping_sub(region.base) < region.units.len() as u64 * UNIT;
        let number = self.regions.iter().position(around).unwrap();
        let first = ((start - self.regions[number].base) / UNIT) as usize;
        let length = (bytes / UNIT) as usize;
        let point = self.advance(own);
        for unit in &mut self.regions[number].units[first..first + length] {
            let foreign = match unit.owner {
                Owner::Of(queue, _) => queue != own,
                Owner::Pending(..) => true,
                _ => false,
            };
            if foreign {
                for &(other, hazard) in &unit.hazards {
                    let row = &self.rows[own];
                    let known = row.knows.get(&other).is_some_and(|&known| hazard <= known);
                    assert!(
                        known || other == own || hazard <= self.rows[other].done,
                        "adopted without a wait"
                    );
                }
                unit.owner = Owner::Of(own, point);
                unit.hazards.clear();
                unit.hazards.push((own, point));
            }
        }
        self.settle();
    }

    /// Returns the queue of a request: its stream's, or that of a private pool on it.
    fn own_queue(&mut self, request: &Request<'_>) -> QueueId {
        let name = self.begun.get(&request.stream).copied();
        let pool = name.map_or(0, |name| self.pool(name).unwrap());
        self.queue(request.stream.in_pool(pool))
    }

    /// Returns whether the stream may be captured at any time, or waits for one that may be.
    fn is_at_risk(&self, stream: Stream) -> bool {
        self.begun.contains_key(&stream) || stream == Stream::DEFAULT && !self.begun.is_empty()
    }

    fn pool(&self, name: u64) -> Option<u32> {
        self.pools.iter().position(|&other| other == Some(name)).map(|place| place as u32 + 1)
    }

    pub(super) fn begin(&mut self, stream: Stream, name: u64) -> bool {
        if self.begun.contains_key(&stream) {
            return false;
        }
        self.tell_apart();
        if self.pool(name).is_none() {
            match self.pools.iter_mut().find(|pool| pool.is_none()) {
                Some(pool) => *pool = Some(name),
                None => self.pools.push(Some(name)),
            }
        }
        self.begun.insert(stream, name);
        true
    }

    pub(super) fn end(&mut self, stream: Stream, name: u64) -> bool {
        self.begun.get(&stream) == Some(&name) && self.begun.remove(&stream).is_some()
    }

    pub(super) fn release(&mut self, name: u64) -> bool {
        let Some(pool) = self.pool(name).filter(|_| self.begun.values().all(|&other| other != name)) else {
            return false;
        };
        self.pools[pool as usize - 1] = None;
        let unknown = self.queue(Stream::UNKNOWN);
        for queue in
            (0..self.rows.len()).filter(|&queue| self.streams[queue].pool() == pool).collect::<Vec<_>>()
        {
            let common = self.streams[queue].in_pool(0);
            let common = if self.rows[queue].forgotten { unknown } else { self.queue(common) };
            for live in self.live.values_mut().filter(|live| live.queue == queue) {
                live.queue = common;
                live.records.push(unknown);
            }
            let point = self.advance(unknown);
            for unit in self.regions.iter_mut().flat_map(|region| &mut region.units) {
                match &mut unit.owner {
                    Owner::Of(owner, at) | Owner::Pending(owner, at, _) if *owner == queue => {
                        (*owner, *at) = (unknown, point);
                        let own = unit.hazards.iter_mut().filter(|hazard| hazard.0 == queue);
                        own.for_each(|hazard| *hazard = (unknown, point));
                    }
                    _ => {}
                }
            }
            self.names.retain(|_, other| *other != queue);
        }
        self.settle();
        true
    }

    pub(super) fn synchronize_all(&mut self) {
        for queue in 0..self.rows.len() {
            if self.streams[queue].pool() == 0 {
                self.rows[queue].done = self.rows[queue].point;
            }
        }
        self.settle();
    }

    /// Asserts that the arena's chunks match the units.
    pub(super) fn compare(&self, arena: &Arena) {
        let mut count = 0;
        for id in arena.chunks().ids() {
            let addr = arena.chunks().addr(id);
            let region = self
                .regions
                .iter()
                .find(|region| addr.wrapping_sub(region.base) < region.units.len() as u64 * UNIT);
            let region = region.unwrap();
            let first = ((addr - region.base) / UNIT) as usize;
            for unit in &region.units[first..][..(arena.chunks().size(id) / UNIT) as usize] {
                let stream = |queue: QueueId| self.streams[queue];
                let state = arena.chunks().state(id);
                let mark = arena.streams().mark(id);
                let order = || arena.streams().orders().nth(mark.queue as usize);
                let actual = || order().map_or(Stream::NONE, |order| order.stream);
                let same = match &unit.owner {
                    Owner::Used => state == State::InUse,
                    Owner::Anyone => state == State::Free,
                    owner if self.lazily && state == State::Free => may_be_shared(&self.streams, owner),
                    Owner::Of(queue, _) => arena.streams().owner(id).is_some() && actual() == stream(*queue),
                    Owner::Pending(queue, ..) => {
                        let waits = state == State::Held && arena.streams().owner(id).is_none();
                        waits && order().is_some() && actual() == stream(*queue)
                    }
                };
                let whose = || (actual(), mark.waits);
                assert!(
                    same,
                    "unit at {addr:#x}: {:?}, and the chunk is {state:?} of {:?}",
                    unit.owner,
                    whose()
                );
                count += 1;
            }
        }
        assert_eq!(count, self.regions.iter().map(|region| region.units.len()).sum::<usize>());
    }
}
