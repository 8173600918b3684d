//! Streams: queues of work in order. An item is run when everything before it in its stream is done, and everything
//! that it waits for elsewhere. The items of a held stream are stepped by a test instead. There is no device thread:
//! work is run by whichever driver call finds it ready.
//!
//! Time is simulated, and only a delay takes any (`Work::Delay`): the stream continues when it is over. Time passes
//! while the program waits, from the end of one delay to the next, and by a microsecond at each query answered with
//! NOT_READY. So concurrent work of two streams is done in the order of simulated time, identically in each run. A held
//! stream is stepped through its delays at once.

use std::collections::BTreeMap;

use cuda_sys::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    CUDA_ERROR_STREAM_DETACHED, CUdevice, CUstream,
};

use crate::abi::Answer;
use crate::calling_thread;
use crate::handles::Kind;
use crate::options::Choice;
use crate::sim::{self, Guard, Sim};
use crate::state::stream::{Event, Item, Point, Role, Stream};
use crate::state::work::Work;
use crate::system;

impl Sim {
    /// Adds a stream and returns its number.
    pub(crate) fn add_stream(&mut self, mut stream: Stream) -> u64 {
        let number = self.number();
        stream.set_unique(number);
        stream.hold(self.options.is_on(Choice::HoldNew));
        if let Role::Created(handle) = stream.role() {
            self.stream_names.insert(handle, number);
        }
        self.streams.insert(number, stream);
        number
    }

    /// Returns the number of the stream that a handle means in this call. Default streams belong to the current
    /// context.
    pub(crate) fn stream(&mut self, handle: CUstream) -> Answer<u64> {
        let number = self.any_stream(handle)?;
        let is_detached = self.streams.get(&number).is_some_and(Stream::is_detached);
        if is_detached { Err(CUDA_ERROR_STREAM_DETACHED) } else { Ok(number) }
    }

    /// Returns the same also for a stream whose green context is destroyed.
    pub(crate) fn any_stream(&mut self, handle: CUstream) -> Answer<u64> {
        match handle.addr() as u64 {
            0 if !calling_thread::is_per_thread() => self.legacy(),
            1 => self.legacy(),
            0 | 2 => self.per_thread(),
            name => match self.stream_names.get(&name) {
                Some(number) => {
                    let number = *number;
                    let context = self.streams.get(&number).map(Stream::context);
                    let sticky = context.and_then(|context| self.sticky(context));
                    sticky.map_or(Ok(number), Err)
                }
                None => {
                    self.stale(Kind::Stream, name);
                    Err(CUDA_ERROR_INVALID_HANDLE)
                }
            },
        }
    }

    fn legacy(&mut self) -> Answer<u64> {
        let context = self.current()?;
        Ok(self.contexts[&context].legacy())
    }

    fn per_thread(&mut self) -> Answer<u64> {
        let handle = self.current()?;
        let thread = system::thread();
        if let Some(number) = self.contexts[&handle].per_thread(thread) {
            return Ok(number);
        }
        let device = self.contexts[&handle].device();
        let number = self.add_stream(Stream::new(handle, device, Role::PerThread, 0, 0));
        let context = self.contexts.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.add_per_thread(thread, number);
        Ok(number)
    }

    /// Returns the event with a handle.
    pub(crate) fn event(&mut self, handle: u64) -> Answer<&mut Event> {
        if !self.events.contains_key(&handle) {
            self.stale(Kind::Event, handle);
        }
        let event = self.events.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(code) = self.sticky(event.context()) {
            return Err(code);
        }
        self.events.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Destroys a stream's handle. The stream exists until its work is done (cuStreamDestroy in cuda.h).
    pub(crate) fn destroy_stream(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        // The handle of a stream that was destroyed before may belong to another stream by now.
        let was_destroyed = stream.destroy();
        if let Role::Created(handle) = stream.role()
            && !was_destroyed
        {
            self.stream_names.remove(&handle);
            self.retire(Kind::Stream, handle);
        }
        self.leave_capture(number);
        self.remove_if_over(number);
    }

    /// Ends a stream at once, with its queued work.
    pub(crate) fn drop_stream(&mut self, number: u64) {
        self.carry_out_memory_work(number);
        self.destroy_stream(number);
        self.streams.remove(&number);
        if let Some(races) = &mut self.races {
            races.forget_stream(number);
        }
    }

    /// Allocations and frees of memory that belongs to no context are done nevertheless.
    fn carry_out_memory_work(&mut self, number: u64) {
        let Some(stream) = self.streams.get(&number) else { return };
        let (context, device) = (stream.context(), stream.device());
        let works = stream.items().map(|item| item.work.clone());
        let memory = works.filter(|work| matches!(work, Work::Alloc { .. } | Work::Free { .. }));
        for work in memory.collect::<Vec<_>>() {
            self.perform(context, device, &work);
        }
    }

    fn remove_if_over(&mut self, number: u64) {
        if self.streams.get(&number).is_some_and(Stream::is_over)
            && let Some(stream) = self.streams.remove(&number)
        {
            self.end_in_order(number, &stream);
        }
    }

    /// Returns whether everything up to a point is done. Always true for a stream that no longer exists.
    pub(crate) fn is_done(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| stream.is_done(point.item))
    }

    /// Returns the point after everything queued on a stream now.
    pub(crate) fn end_of(&self, number: u64) -> Point {
        Point { stream: number, item: self.streams.get(&number).map_or(0, Stream::issued) }
    }

    /// Returns the points after everything queued on the streams of some contexts and devices.
    pub(crate) fn all_of(&self, are: impl Fn(u64, CUdevice) -> bool) -> Vec<Point> {
        let streams = self.streams.iter().filter(|(_, stream)| are(stream.context(), stream.device()));
        let ends = streams.map(|(number, stream)| Point { stream: *number, item: stream.issued() });
        let races = self.races.iter();
        let gone = races.flat_map(|races| races.gone(|gone| are(gone.context, gone.device)));
        ends.chain(gone).collect()
    }

    /// Returns whether work that is queued on a stream now comes after a point elsewhere, because of waits for events
    /// or the rules of the legacy default stream.
    pub(crate) fn is_behind(&self, stream: u64, point: Point) -> bool {
        let mut left = self.implicit(stream);
        left.extend(self.gates(stream));
        left.push(self.end_of(stream));
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        while let Some(next) = left.pop() {
            if next.stream == point.stream && next.item >= point.item {
                return true;
            }
            let before = seen.insert(next.stream, next.item);
            if before.is_some_and(|before| before >= next.item) {
                seen.extend(before.map(|before| (next.stream, before)));
                continue;
            }
            let Some(there) = self.streams.get(&next.stream) else { continue };
            let items = there.items().take_while(|item| item.number <= next.item);
            left.extend(items.flat_map(|item| item.after.iter().copied()));
        }
        false
    }

    /// Returns the blocking streams of a context. Their work and that of the legacy default stream wait for each other.
    pub(crate) fn blocking(&self, context: u64) -> impl Iterator<Item = u64> {
        let blocking = move |stream: &Stream| stream.context() == context && stream.is_blocking();
        self.streams.iter().filter(move |(_, stream)| blocking(stream)).map(|(number, _)| *number)
    }

    /// Returns what a use of a stream waits for by the rules of the legacy default stream: for that stream, the work of
    /// all blocking streams; for a blocking stream, the work of the legacy default stream (CUDA Runtime API manual,
    /// Stream synchronization behavior).
    pub(crate) fn implicit(&self, number: u64) -> Vec<Point> {
        let Some(stream) = self.streams.get(&number) else { return Vec::new() };
        let points: Vec<Point> = match stream.role() {
            Role::Legacy => self.blocking(stream.context()).map(|other| self.end_of(other)).collect(),
            _ if stream.is_blocking() => {
                let legacy =
                    self.contexts.get(&stream.context()).map(|context| self.end_of(context.legacy()));
                legacy.into_iter().collect()
            }
            _ => return Vec::new(),
        };
        points.into_iter().chain(self.gone_blocking(stream)).collect()
    }

    /// Returns what work of a stream's context waits for by cuCtxWaitEvent. "If the context passed to hCtx is the primary
    /// context, the primary context and its green contexts will wait for hEvent."
    fn gates(&self, number: u64) -> Vec<Point> {
        let Some(own) = self.streams.get(&number).map(Stream::context) else { return Vec::new() };
        let are_own = |&&(context, _): &&(u64, Point)| self.covers(context, own);
        self.gates.iter().filter(are_own).map(|(_, point)| *point).collect()
    }

    /// Checks that no blocking stream of the context is captured when the legacy default stream is used
    /// (cuStreamIsCapturing in cuda.h). With `spoils`, the attempt invalidates those captures.
    pub(crate) fn forbid_implicit(&mut self, number: u64, spoils: bool) -> Answer {
        let Some(stream) = self.streams.get(&number) else { return Ok(()) };
        if stream.role() != Role::Legacy {
            return Ok(());
        }
        let captured: Vec<u64> =
            self.blocking(stream.context()).filter_map(|other| self.streams[&other].capture()).collect();
        if captured.is_empty() {
            return Ok(());
        }
        if spoils {
            for capture in captured {
                self.invalidate(capture);
            }
        }
        Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// Queues work, or records it if the stream is captured, without running anything. Returns its position.
    pub(crate) fn queue(&mut self, stream: u64, work: Work, after: Vec<Point>) -> Answer<Point> {
        if let Some(capture) = self.streams.get(&stream).and_then(Stream::capture) {
            self.note(capture, stream, work)?;
            return Ok(self.end_of(stream));
        }
        self.forbid_implicit(stream, true)?;
        Ok(self.enqueue(stream, work, after))
    }

    /// Queues work at the end of a stream that is not captured.
    fn enqueue(&mut self, number: u64, work: Work, mut after: Vec<Point>) -> Point {
        self.check_launched(&work);
        after.extend(self.implicit(number));
        after.extend(self.gates(number));
        let pending = after.iter().copied().filter(|point| !self.is_done(*point)).collect();
        let Some(stream) = self.streams.get_mut(&number) else { return Point { stream: number, item: 0 } };
        let item = stream.push(work, pending);
        self.put_in_order(Point { stream: number, item }, after);
        sim::wake();
        Point { stream: number, item }
    }

    /// Records an event at the end of a stream that is not captured, after other points as well.
    pub(crate) fn record_event(&mut self, event: u64, stream: u64, after: Vec<Point>) -> Answer {
        self.event(event)?;
        let unique = self.number();
        let point = self.queue(stream, Work::Record { event, unique }, after)?;
        self.event(event)?.record(point, unique);
        Ok(())
    }

    /// Begins the delays that are ready. Returns whether one of them was over at once.
    fn begin_delays(&mut self) -> bool {
        let waiting = |(_, stream): &(&u64, &Stream)| stream.awaits_delay() && self.is_ready(stream);
        let begin: Vec<u64> = self.streams.iter().filter(waiting).map(|(number, _)| *number).collect();
        let now = self.clock;
        let mut is_over = false;
        for number in begin {
            if let Some(stream) = self.streams.get_mut(&number) {
                is_over |= stream.begin_delay(now);
            }
        }
        is_over
    }

    /// Advances time to the end of the next delay. Returns false if there is none.
    pub(crate) fn pass_time(&mut self) -> bool {
        let wakes = self.streams.values().filter(|stream| !stream.is_held()).filter_map(Stream::wakes);
        let next = wakes.min();
        self.clock = self.clock.max(next.unwrap_or(0));
        next.is_some()
    }

    /// Advances time because a query found pending work.
    pub(crate) fn pass_a_moment(&mut self) {
        self.clock += 1000;
    }

    /// Returns whether the first item of a stream could be run, regardless of whether the stream is held.
    fn is_ready(&self, stream: &Stream) -> bool {
        let clear = |item: &Item| {
            self.is_met(stream, &item.work) && item.after.iter().all(|point| self.is_done(*point))
        };
        stream.runner().is_none() && stream.first().is_some_and(clear)
    }
}

/// Queues work, or records it if the stream is captured, and runs what can be run. Returns its position.
pub(crate) fn submit(mut sim: Guard, stream: u64, work: Work, after: Vec<Point>) -> Answer<(Guard, Point)> {
    let point = sim.queue(stream, work, after)?;
    Ok((run_ready(sim), point))
}

/// Runs everything that is ready, streams in the order of their creation, until nothing is left.
pub(crate) fn run_ready(mut sim: Guard) -> Guard {
    loop {
        let ready = |stream: &Stream| !stream.is_held() && sim.is_ready(stream) && stream.is_due(sim.clock);
        let next = sim.streams.iter().find(|(_, stream)| stream.first().is_some() && ready(stream));
        match next.map(|(number, _)| *number) {
            Some(number) => sim = run_next(sim, number),
            None if sim.begin_delays() => (),
            None => return sim,
        }
    }
}

/// Runs the first item of a stream. Functions of the program are called with the lock open.
pub(crate) fn run_next(mut sim: Guard, number: u64) -> Guard {
    let Some(stream) = sim.streams.get_mut(&number) else { return sim };
    let (context, device) = (stream.context(), stream.device());
    let Some(item) = stream.begin(system::thread()) else { return sim };
    let health = sim.sticky(context);
    let context = sim.root(context);
    sim.run_in_order(Point { stream: number, item: item.number }, &item.work, health.is_none());
    if let Some(call) = item.work.call(health) {
        drop(sim);
        calling_thread::run_work(call);
        sim = sim::lock();
    } else {
        sim.perform(context, device, &item.work);
    }
    // The context may have ended meanwhile.
    if let Some(stream) = sim.streams.get_mut(&number) {
        stream.finish(item.number);
        sim.remove_if_over(number);
    }
    if matches!(item.work, Work::Free { .. }) {
        sim.settle_graph_memory();
        sim.end_destroyed_pools();
    }
    sim::wake();
    sim
}

/// Runs up to `most` items of a held stream as far as they are not blocked, and work elsewhere that becomes ready.
/// Returns how many were run.
pub(crate) fn step(mut sim: Guard, number: u64, most: u64) -> (Guard, u64) {
    let mut count = 0;
    while count < most {
        sim = run_ready(sim);
        let ready = sim.streams.get(&number).is_some_and(|stream| sim.is_ready(stream));
        if !ready {
            break;
        }
        sim = run_next(sim, number);
        count += 1;
    }
    (run_ready(sim), count)
}
