//! The order of device work: what streams still do to free memory, and how a request gets it all the same.
//!
//! Events are recorded late: when a request finds nothing among what its stream may use, one event on each other
//! stream then stands for all frees there until now. Only the default stream of a thread, which no other thread can
//! name, has them recorded at the free. The driver is called with the lock open.
//!
//! Nothing is queued on a stream whose capture is announced by `bfc_pool_begin`, nor is anybody's work waited for but
//! by events of before: it may begin at any time. Of a stream that is captured without a word the driver is asked, which
//! helps unless the capture begins between the answer and the next call. Where that is seen the event counts for nothing.

use super::Pool;
use super::slot::Guard;
use crate::backend::order::{self as driver, Event, Order, State};
use crate::core::arena::Want;
use crate::core::lanes::{Lane, Stream};
use crate::core::waits::Work;
use crate::error::{Error, Unsaid, keeping_last_error};
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
    /// Those that threads wait for, once for each: they stand for nothing else until then.
    waited: Vec<Event>,
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
        let latest =
            self.latest(lane).filter(|latest| count >= Self::PER_LANE && !self.is_waited(latest.event));
        match latest {
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

    /// An event came true for what it stood for when it was looked at, or stands for nothing.
    fn end(&mut self, work: Work, event: Event) {
        let is_it = |other: &Recorded| other.event == event && other.work == work;
        if let Some(place) = self.recorded.iter().position(is_it) {
            self.recorded.swap_remove(place);
            self.spare(event);
        }
    }

    fn is_waited(&self, event: Event) -> bool {
        self.waited.contains(&event)
    }

    /// An event may be recorded for any other work, unless somebody waits for it: then once he has.
    fn spare(&mut self, event: Event) {
        if !self.is_waited(event) {
            keep(&mut self.spare, event);
        }
    }

    /// A thread waits for these events with the lock open, and only for what they stand for now.
    fn begin_wait(&mut self, left: &[(Recorded, bool)]) -> Result<(), HostMemoryExhausted> {
        self.waited.try_reserve(left.len())?;
        self.waited.extend(left.iter().map(|(recorded, _)| recorded.event));
        Ok(())
    }

    fn end_wait(&mut self, event: Event) {
        if let Some(place) = self.waited.iter().position(|&waited| waited == event) {
            self.waited.swap_remove(place);
        }
        // It came true for others meanwhile.
        if self.recorded.iter().all(|recorded| recorded.event != event) {
            self.spare(event);
        }
    }

    /// Gives all of them up, for the end of the allocator.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Event> + use<> {
        let Events { recorded, spare, .. } = std::mem::take(self);
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
    /// It was recorded now, or before, but in a capture, and stands for nothing. Recorded anew it is an event again.
    Spoilt,
    KnownSpoilt,
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
        // Another thread may have begun to capture it, but for what is this thread's own. Nothing is lost yet, but
        // asking after the event would break the capture.
        self.step = Step::Spoilt;
        if self.stream.0 != Stream::OF_THIS_THREAD && order.is_capturing(self.stream)? {
            return Ok(());
        }
        self.step = Step::Recorded;
        self.look(order)
    }

    fn look(&mut self, order: &dyn Order) -> Result<(), Error> {
        let Some(event) = self.event else { return Ok(()) };
        match order.state(event)? {
            State::Done => self.done = true,
            State::Pending => {}
            State::Captured if self.step == Step::Known => self.step = Step::KnownSpoilt,
            State::Captured => self.step = Step::Spoilt,
        }
        Ok(())
    }

    /// Whether the event stands for the work.
    fn stands(&self) -> bool {
        matches!(self.step, Step::Recorded | Step::Known)
    }

    fn record_or_look(&mut self, order: &dyn Order) -> Result<(), Error> {
        if self.step == Step::Known { self.look(order) } else { self.record(order) }
    }
}

/// Does something with each, whatever comes of the others; the last failure, whose words are said.
fn each<T>(tasks: &mut [T], work: impl FnMut(&mut T) -> Result<(), Error>) -> Result<(), Error> {
    tasks.iter_mut().map(work).filter(Result::is_err).last().unwrap_or(Ok(()))
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

/// Whether one of these streams is captured.
pub(super) fn is_one_captured(order: &dyn Order, streams: &[driver::Stream]) -> Result<bool, Error> {
    for &stream in streams {
        if order.is_capturing(stream)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Pool {
    /// The streams that may be captured, by the driver's names for them; none without a device.
    pub(super) fn streams_to_ask(&self, also: Stream) -> Result<Vec<driver::Stream>, HostMemoryExhausted> {
        if self.backend.get().order().is_none() {
            return Ok(Vec::new());
        }
        let all = || self.arena.streams().chain([also]).filter(|stream| stream.exists());
        let reachable = || all().filter(|&stream| is_reachable(stream));
        let mut streams = list(reachable().count() + 1)?;
        // The default stream waits for all that block, whether the pool knows them or not.
        streams.push(handle(Stream::DEFAULT));
        streams.extend(reachable().map(handle));
        Ok(streams)
    }

    /// The same for who waits for the device: nothing, where the capture of another stream is announced, for it may
    /// begin at any time.
    pub(super) fn streams_to_wait_beside(
        &self,
        also: Stream,
    ) -> Result<Option<Vec<driver::Stream>>, HostMemoryExhausted> {
        match self.backend.get().order().is_some() && self.is_capture_announced(also) {
            true => Ok(None),
            false => self.streams_to_ask(also).map(Some),
        }
    }
}

fn list<T>(length: usize) -> Result<Vec<T>, HostMemoryExhausted> {
    let mut list = Vec::new();
    list.try_reserve_exact(length)?;
    Ok(list)
}

/// How a look after the order of work ended: the pool as it is now, and whether the driver did as it should; or
/// why the allocator is of no use any more. What the driver failed to do may not matter in the end.
pub(super) type Ordered<'a, T = ()> = Result<(Guard<'a>, Result<T, Unsaid>), Error>;

/// Looks which work of other streams is done by now.
pub(super) fn poll<'a>(mut guard: Guard<'a>, want: &Want<'_>) -> Ordered<'a> {
    if guard.backend.get().order().is_none() || guard.arena.unfinished(|_| true).next().is_none() {
        return Ok((guard, Ok(())));
    }
    let tasks = match plan(&mut guard, |_| true, 0) {
        Ok((tasks, _)) => tasks,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    carry_out(guard, tasks, |order, tasks| {
        if is_captured(order, want.stream)? {
            return Ok(());
        }
        each(tasks, |task| task.record_or_look(order))
    })
}

/// What there is to record and to ask about the lanes whose work free memory waits for; and room for so many works
/// more, for once there is a plan it has events in hand, which must not get lost.
fn plan(
    guard: &mut Guard<'_>,
    concerns: impl Fn(Lane) -> bool,
    works: usize,
) -> Result<(Vec<Task>, Vec<Work>), HostMemoryExhausted> {
    let room = list(works)?;
    let Pool { arena, events, .. } = &mut **guard;
    let mut tasks: Vec<Task> = list(arena.lane_count() + events.recorded.len())?;
    for unfinished in arena.unfinished(&concerns) {
        let (work, name) = (unfinished.work, unfinished.stream);
        let may_record =
            !unfinished.forgotten && name.exists() && is_reachable(name) && !arena.is_at_risk(name);
        if may_record && !events.covers(work) {
            let (event, before) = events.for_lane(work.lane);
            let (stream, step) = (handle(name), Step::ToRecord);
            tasks.push(Task { work, stream, event, before, step, done: false });
        }
    }
    for &Recorded { work, event } in events.recorded.iter().filter(|recorded| concerns(recorded.work.lane)) {
        let (stream, step) = (driver::Stream(0), Step::Known);
        tasks.push(Task { work, stream, event: Some(event), before: None, step, done: false });
    }
    Ok((tasks, room))
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
            (Step::Recorded, true) | (Step::Spoilt, _) => keep(&mut events.spare, event),
            (Step::Recorded, false) => events.note(work, event),
            (Step::Known, true) | (Step::KnownSpoilt, _) => events.end(work, event),
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
    let works = match guard.arena.waits_for(want) {
        Ok(Some(works)) => works,
        Ok(None) => return Ok((guard, Ok(()))),
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let waits_for = |lane| works.iter().any(|work| work.lane == lane);
    let room = guard.arena.lane_count() + guard.events.recorded.len();
    let (tasks, mut behind) = match plan(&mut guard, waits_for, room) {
        Ok(planned) => planned,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    if !want.stream.exists() {
        let recorded;
        (guard, recorded) = carry_out(guard, tasks, |order, tasks| each(tasks, |task| task.record(order)))?;
        let (guard, waited) = wait_here(guard, waits_for)?;
        return Ok((guard, recorded.and(waited)));
    }
    let (life, at_risk) = (guard.arena.life(), guard.arena.is_at_risk_of_others(want.stream));
    let (mut guard, result) = carry_out(guard, tasks, |order, tasks| {
        if at_risk || is_captured(order, want.stream)? {
            return Ok(());
        }
        each(tasks, |task| {
            task.record(order)?;
            let Some(event) = task.event.filter(|_| task.stands() && !task.done) else { return Ok(()) };
            if works.iter().any(|work| work.lane == task.work.lane && work.point <= task.work.point) {
                order.make_wait(handle(want.stream), event)?;
                behind.push(task.work);
            }
            Ok(())
        })
    })?;
    if guard.arena.life() == life {
        guard.arena.adopt(want, &behind);
    }
    Ok((guard, result))
}

/// Waits in this thread for all events of some lanes.
fn wait_here<'a>(mut guard: Guard<'a>, concerns: impl Fn(Lane) -> bool) -> Ordered<'a> {
    let mut left: Vec<(Recorded, bool)> = match list(guard.events.recorded.len()) {
        Ok(left) => left,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let recorded = guard.events.recorded.iter().filter(|recorded| concerns(recorded.work.lane));
    left.extend(recorded.map(|recorded| (*recorded, false)));
    if left.is_empty() {
        return Ok((guard, Ok(())));
    }
    if let Err(exhausted) = guard.events.begin_wait(&left) {
        return Ok((guard, Err(exhausted.into())));
    }
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.waiting(|order| {
        each(&mut left, |(recorded, done)| {
            order.wait_for(recorded.event)?;
            *done = true;
            Ok(())
        })
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    for (Recorded { work, event }, done) in left {
        guard.events.end_wait(event);
        if done {
            guard.events.end(work, event);
            guard.arena.lane_done(work.lane, work.point);
        }
    }
    guard.notify();
    Ok((guard.check_entry()?, result))
}

/// Whether some stream is captured that the pool knows, the calling thread's own default stream and that of all
/// included, for which those wait that block. What waits for the device would break that capture, giving memory back
/// too. False without a device.
pub(super) fn is_any_captured<'a>(guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    let streams = match guard.streams_to_ask(stream) {
        Ok(streams) => streams,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let (guard, result) = guard.ordering(|order| is_one_captured(order, &streams));
    Ok((guard.check_entry()?, result))
}

/// Waits until the whole device is idle: then nobody's work touches anything that was free before. False where it
/// may not wait: a stream is captured, or any but `stream` may be at any time. True without a device.
pub(super) fn synchronize<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(true)));
    }
    if guard.is_capture_announced(stream) {
        return Ok((guard, Ok(false)));
    }
    let life = guard.arena.life();
    let asked;
    (guard, asked) = is_any_captured(guard, stream)?;
    // Meanwhile another thread may have announced one.
    if guard.arena.life() == life && (!matches!(asked, Ok(false)) || guard.is_capture_announced(stream)) {
        return Ok((guard, asked.map(|_| false)));
    }
    let mut works: Vec<Work> = match list(guard.arena.lane_count()) {
        Ok(works) => works,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    works.extend(guard.arena.unfinished(|_| true).map(|unfinished| unfinished.work));
    if works.is_empty() {
        return Ok((guard, Ok(true)));
    }
    let result;
    (guard, result) = guard.synchronizing();
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(true)));
    }
    if result.is_ok() {
        for work in works {
            guard.arena.lane_done(work.lane, work.point);
        }
        guard.notify();
    }
    Ok((guard.check_entry()?, result.map(|()| true)))
}

/// A capture is announced: waits until nothing is under way any more that might break it. What begins from now on knows
/// of it.
pub(super) fn leave_alone(mut guard: Guard<'_>) -> Result<(), Error> {
    let last_call = guard.last_call();
    while guard.backend.get().order().is_some() && guard.is_disturbing(last_call) {
        guard = guard.wait_for_call().check_entry()?;
    }
    Ok(())
}

/// Behind a free in the order of this thread's default stream: nobody else can record its events. The chunk is free,
/// whatever the driver says and also without host memory for what is to be said to it: without an event it waits for a
/// later one, or for a synchronisation.
pub(super) fn record_own(mut guard: Guard<'_>, stream: Stream) {
    if guard.backend.get().order().is_none() {
        return;
    }
    let Some(lane) = guard.arena.lane_of(stream) else { return };
    let Ok((tasks, _)) = plan(&mut guard, |other| other == lane, 0) else { return };
    // The allocator may have come to its end meanwhile.
    let _ =
        keeping_last_error(|| carry_out(guard, tasks, |order, tasks| each(tasks, |task| task.record(order))));
}

/// The stream is about to end: the last event on it, which stands for all that was freed there and that will be.
pub(crate) fn forget<'a>(
    mut guard: Guard<'a>,
    stream: Stream,
) -> Result<(Guard<'a>, Result<(), Error>), Error> {
    let work = guard.arena.forget_stream(stream)?;
    let life = guard.arena.life();
    // Whoever is in the middle of recording on it, or of asking about it, knows it from before; nobody else does.
    let last_call = guard.last_call();
    while guard.is_ordering(last_call) {
        guard = guard.wait_for_call().check_entry()?;
    }
    // Meanwhile everything may have gone, the lane with it; or all of that work is done, and the lane is another's.
    let is_of_use = guard.backend.get().order().is_some() && guard.arena.life() == life;
    let Some(work) = work.filter(|&work| is_of_use && !guard.arena.is_done(work)) else {
        return Ok((guard, Ok(())));
    };
    let mut tasks: Vec<Task> = list(1)?;
    let (event, before) = guard.events.for_lane(work.lane);
    tasks.push(Task { work, stream: handle(stream), event, before, step: Step::ToRecord, done: false });
    let (guard, recorded) = carry_out(guard, tasks, |order, tasks| each(tasks, |task| task.record(order)))?;
    Ok((guard, recorded.map_err(Unsaid::say)))
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
    const TRIES: u32 = 2;
    let mut events = guard.events.take_all().peekable();
    for _ in 0..TRIES {
        // What fails on the way to the device may have passed.
        if events.peek().is_some() {
            (guard, _) = guard.ordering(|order| {
                events.by_ref().for_each(|event| order.destroy_event(event));
                Ok(())
            });
        }
    }
    guard
}

#[cfg(test)]
mod tests;
