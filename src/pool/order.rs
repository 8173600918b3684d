//! The order of device work: what streams still do to free memory, and how a request gets it all the same.
//!
//! Events are recorded late: when a request finds nothing among what its stream may use, one event on each other
//! stream then stands for all frees there until now. Only the default stream of a thread, which no other thread can
//! name, has them recorded at the free. The driver is called with the lock open.

use super::Pool;
use super::slot::Guard;
use crate::backend::order::{self as driver, Event, Order};
use crate::core::arena::Want;
use crate::core::lanes::{Lane, Stream};
use crate::core::waits::Work;
use crate::error::Error;
use crate::sys::{HostMemoryExhausted, thread};

/// An event that is done when some work is.
#[derive(Clone, Copy)]
struct Recorded {
    work: Work,
    event: Event,
}

/// The events of an allocator.
#[derive(Default)]
pub(crate) struct Events {
    recorded: Vec<Recorded>,
    spare: Vec<Event>,
}

impl Events {
    /// How many of a lane's events are waited for at most: an old one, which comes true soon, and the newest,
    /// which is recorded anew.
    const PER_LANE: usize = 2;

    fn latest(&self, lane: Lane) -> Option<Recorded> {
        let of_lane = self.recorded.iter().filter(|recorded| recorded.work.lane == lane);
        of_lane.copied().max_by_key(|recorded| recorded.work.point)
    }

    fn covers(&self, work: Work) -> bool {
        self.latest(work.lane).is_some_and(|recorded| recorded.work.point >= work.point)
    }

    /// An event to record for a lane, with what it stands for so far; none if there is none to take.
    fn for_lane(&mut self, lane: Lane) -> (Option<Event>, Option<Work>) {
        let count = self.recorded.iter().filter(|recorded| recorded.work.lane == lane).count();
        match self.latest(lane).filter(|_| count >= Self::PER_LANE) {
            Some(latest) => {
                // Whoever asks for it meanwhile must not take its end for the end of what it will stand for.
                self.recorded.retain(|recorded| recorded.event != latest.event);
                (Some(latest.event), Some(latest.work))
            }
            None => (self.spare.pop(), None),
        }
    }

    fn note(&mut self, work: Work, event: Event) {
        keep(&mut self.recorded, Recorded { work, event });
    }

    /// An event came true for what it stood for when it was looked at.
    fn end(&mut self, work: Work, event: Event) {
        let is_it = |other: &Recorded| other.event == event && other.work == work;
        if let Some(place) = self.recorded.iter().position(is_it) {
            self.recorded.swap_remove(place);
            keep(&mut self.spare, event);
        }
    }

    /// Gives all of them up, for the end of the allocator.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Event> + use<> {
        let Events { recorded, spare } = std::mem::take(self);
        recorded.into_iter().map(|recorded| recorded.event).chain(spare)
    }
}

/// Without host memory an event is lost to the driver, and nothing else.
fn keep<T>(list: &mut Vec<T>, value: T) {
    if list.try_reserve(1).is_ok() {
        list.push(value);
    }
}

/// One thing to do with the lock open.
struct Task {
    work: Work,
    stream: driver::Stream,
    event: Option<Event>,
    /// What the event stood for so far.
    before: Option<Work>,
    step: Step,
    done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    ToRecord,
    Recorded,
    /// It was before.
    Known,
}

impl Task {
    /// Records an event on a stream, unless it is captured, and looks at once whether it is done: a stream may
    /// be idle.
    fn record(&mut self, order: &dyn Order) -> Result<(), Error> {
        if self.step != Step::ToRecord || order.is_capturing(self.stream)? {
            return Ok(());
        }
        let event = match self.event {
            Some(event) => event,
            None => order.create_event()?,
        };
        self.event = Some(event);
        order.record(event, self.stream)?;
        self.step = Step::Recorded;
        self.done = order.is_done(event)?;
        Ok(())
    }
}

/// By the name that the driver has for it.
pub(super) fn handle(stream: Stream) -> driver::Stream {
    driver::Stream(stream.handle())
}

/// Whether this thread may record events on a stream.
pub(super) fn is_reachable(stream: Stream) -> bool {
    stream.thread() == 0 || thread::number() == Some(stream.thread())
}

/// Requests of a stream that is captured leave all others alone.
fn is_captured(order: &dyn Order, stream: Stream) -> Result<bool, Error> {
    if stream.exists() { order.is_capturing(handle(stream)) } else { Ok(false) }
}

fn list<T>(length: usize) -> Result<Vec<T>, HostMemoryExhausted> {
    let mut list = Vec::new();
    list.try_reserve_exact(length)?;
    Ok(list)
}

/// How a look after the order of work ended: the pool as it is now, and whether the driver did as it should; or
/// why the allocator is of no use any more.
pub(super) type Ordered<'a> = Result<(Guard<'a>, Result<(), Error>), Error>;

/// Looks which work of other streams is done by now.
pub(super) fn poll<'a>(mut guard: Guard<'a>, want: &Want<'_>) -> Ordered<'a> {
    if guard.backend.get().order().is_none() || guard.arena.unfinished().next().is_none() {
        return Ok((guard, Ok(())));
    }
    let tasks = plan(&mut guard, |_| true)?;
    carry_out(guard, tasks, |order, tasks| {
        if is_captured(order, want.stream)? {
            return Ok(());
        }
        for task in tasks {
            match task.step {
                Step::Known => task.done = task.event.map_or(Ok(false), |event| order.is_done(event))?,
                _ => task.record(order)?,
            }
        }
        Ok(())
    })
}

/// What there is to record and to ask about the lanes whose work free memory waits for.
fn plan(guard: &mut Guard<'_>, concerns: impl Fn(Lane) -> bool) -> Result<Vec<Task>, Error> {
    let Pool { arena, events, .. } = &mut **guard;
    let mut tasks: Vec<Task> = list(arena.lane_count() + events.recorded.len())?;
    for unfinished in arena.unfinished().filter(|unfinished| concerns(unfinished.work.lane)) {
        let (work, name) = (unfinished.work, unfinished.stream);
        if !unfinished.forgotten && name.exists() && is_reachable(name) && !events.covers(work) {
            let (event, before) = events.for_lane(work.lane);
            let (stream, step) = (handle(name), Step::ToRecord);
            tasks.push(Task { work, stream, event, before, step, done: false });
        }
    }
    for &Recorded { work, event } in events.recorded.iter().filter(|recorded| concerns(recorded.work.lane)) {
        let (stream, step) = (driver::Stream(0), Step::Known);
        tasks.push(Task { work, stream, event: Some(event), before: None, step, done: false });
    }
    Ok(tasks)
}

/// Lets the driver work with the lock open, and writes down what came of it.
fn carry_out<'a>(
    guard: Guard<'a>,
    mut tasks: Vec<Task>,
    work: impl FnOnce(&dyn Order, &mut [Task]) -> Result<(), Error>,
) -> Ordered<'a> {
    let life = guard.arena.life();
    let (mut guard, result) = guard.ordering(|order| work(order, &mut tasks));
    if guard.arena.life() != life {
        // The events are gone, and nobody waits for that work any more.
        return Ok((guard.check_entry()?, Ok(())));
    }
    let Pool { arena, events, .. } = &mut *guard;
    let mut news = false;
    for Task { work, event, before, step, done, .. } in tasks {
        let Some(event) = event else { continue };
        match (step, done) {
            (Step::ToRecord, _) => match before {
                Some(before) => events.note(before, event),
                None => keep(&mut events.spare, event),
            },
            (Step::Recorded, true) => keep(&mut events.spare, event),
            (Step::Recorded, false) => events.note(work, event),
            (Step::Known, true) => events.end(work, event),
            (Step::Known, false) => {}
        }
        news |= done && arena.lane_done(work.lane, work.point);
    }
    if news {
        guard.notify();
    }
    Ok((guard.check_entry()?, result))
}

/// Puts the request's stream behind the work of others, so that what they freed becomes its own; whoever has no
/// stream waits himself.
pub(super) fn wait<'a>(mut guard: Guard<'a>, want: &Want<'_>) -> Ordered<'a> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(())));
    }
    let Some(works) = guard.arena.waits_for(want)? else { return Ok((guard, Ok(()))) };
    // First, for the plan has events in hand, which must not get lost.
    let mut behind: Vec<Work> = list(guard.arena.lane_count() + guard.events.recorded.len())?;
    let tasks = plan(&mut guard, |lane| works.iter().any(|work| work.lane == lane))?;
    let life = guard.arena.life();
    let (mut guard, result) = carry_out(guard, tasks, |order, tasks| {
        if is_captured(order, want.stream)? {
            return Ok(());
        }
        tasks.iter_mut().try_for_each(|task| task.record(order))?;
        for task in tasks.iter_mut().filter(|task| task.step != Step::ToRecord && !task.done) {
            let Some(event) = task.event else { continue };
            if want.stream == Stream::NONE {
                order.wait_for(event)?;
                task.done = true;
            } else if works.iter().any(|work| work.lane == task.work.lane && work.point <= task.work.point) {
                order.make_wait(handle(want.stream), event)?;
                behind.push(task.work);
            }
        }
        Ok(())
    })?;
    if want.stream != Stream::NONE && result.is_ok() && guard.arena.life() == life {
        guard.arena.adopt(want, &behind);
    }
    Ok((guard, result))
}

/// Waits until the whole device is idle: then nobody's work touches anything that was free before. False where it
/// may not wait, for a stream that the pool knows is captured: what waits for the device would spoil the capture,
/// giving memory back too. True without a device.
pub(super) fn synchronize<'a>(
    mut guard: Guard<'a>,
    stream: Stream,
) -> Result<(Guard<'a>, Result<bool, Error>), Error> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(true)));
    }
    let asked = || guard.arena.streams().chain([stream]).filter(|&stream| is_reachable(stream));
    let mut streams: Vec<Stream> = list(asked().count() + 1)?;
    // The default stream waits for all that block, whether the pool knows them or not.
    streams.extend(asked().chain([Stream::DEFAULT]));
    let mut works: Vec<Work> = list(guard.arena.lane_count())?;
    works.extend(guard.arena.unfinished().map(|unfinished| unfinished.work));
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| {
        for stream in streams {
            if is_captured(order, stream)? {
                return Ok(false);
            }
        }
        if !works.is_empty() {
            order.synchronize()?;
        }
        Ok(true)
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(true)));
    }
    if result == Ok(true) {
        for work in works {
            guard.arena.lane_done(work.lane, work.point);
        }
        guard.notify();
    }
    Ok((guard.check_entry()?, result))
}

/// Behind a free in the order of this thread's default stream: nobody else can record its events.
pub(super) fn record_own<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(())));
    }
    let Some(lane) = guard.arena.lane_of(stream) else { return Ok((guard, Ok(()))) };
    let tasks = plan(&mut guard, |other| other == lane)?;
    carry_out(guard, tasks, |order, tasks| {
        let mut own = tasks.iter_mut().filter(|task| task.step == Step::ToRecord);
        own.try_for_each(|task| task.record(order))
    })
}

/// The stream is about to end: the last event on it, which stands for all that was freed there and that will be.
pub(crate) fn forget<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a> {
    let work = guard.arena.forget_stream(stream)?;
    let life = guard.arena.life();
    // Whoever is in the middle of recording on it, or of asking about it, knows it from before; nobody else does.
    let last_call = guard.last_call();
    while guard.is_ordering(last_call) {
        guard = guard.wait_for_call().check_entry()?;
    }
    // Meanwhile everything may have gone, the lane with it.
    let is_of_use = guard.backend.get().order().is_some() && guard.arena.life() == life;
    let Some(work) = work.filter(|_| is_of_use) else { return Ok((guard, Ok(()))) };
    let mut tasks: Vec<Task> = list(1)?;
    let (event, before) = guard.events.for_lane(work.lane);
    tasks.push(Task { work, stream: handle(stream), event, before, step: Step::ToRecord, done: false });
    carry_out(guard, tasks, |order, tasks| tasks.iter_mut().try_for_each(|task| task.record(order)))
}

/// The caller vouches that all work queued on a stream so far is done. Where there is no device to ask, work without
/// a stream goes with the default stream's, and that of forgotten streams of the name with the name: on a device
/// another stream may have it by now, while the first still works.
pub(crate) fn vouch(mut guard: Guard<'_>, stream: Stream) {
    let has_device = guard.backend.get().order().is_some();
    guard.arena.stream_done(stream, !has_device);
    if stream == Stream::DEFAULT && !has_device {
        guard.arena.stream_done(Stream::NONE, true);
        guard.arena.stream_done(Stream::UNKNOWN, true);
    }
    guard.notify();
}

/// A stream of the caller's, by its handle.
pub(crate) fn stream_of(handle: u64) -> Result<Stream, Error> {
    if handle != Stream::OF_THIS_THREAD {
        return Ok(Stream::of_handle(handle));
    }
    match thread::number() {
        Some(number) => Ok(Stream::of_thread(number)),
        None => Err(HostMemoryExhausted.into()),
    }
}

/// The end of the allocator; at the end of the process the driver may be down already, which is no matter.
pub(super) fn end(mut guard: Guard<'_>) -> Guard<'_> {
    let events = guard.events.take_all();
    let destroy = |order: &dyn Order| {
        events.for_each(|event| order.destroy_event(event));
        Ok(())
    };
    guard.ordering(destroy).0
}

#[cfg(test)]
mod tests;
