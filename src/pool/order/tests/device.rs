//! A simulated device. Streams are queues that the test steps, and every driver call is counted and can be made to
//! fail. The device also knows which queued work may still use each unit of memory.
//!
//! It follows the CUDA documentation of streams and events ("Stream Management", "Event Management"). Work of a stream
//! runs in order. An event covers the work that its stream had queued when the event was last recorded. A wait queued
//! before that refers to the earlier recording. All streams are non-blocking: they do not synchronize with the legacy
//! default stream. Giving a region back waits for all work, as `cuMemFree` does.

use crate::backend::order::{Capture, Context, Event, Order, State as Known, Stream, Streams};
use crate::backend::{Backend, Granted};
use crate::error::{ErrorKind, fail};
use crate::pool::slot::Slot;
use crate::sys::thread;
use bfc_core::units::UNIT;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// For each queue, a number of its operations.
pub(super) type Clock = BTreeMap<usize, u64>;

fn join(clock: &mut Clock, other: &Clock) {
    for (&queue, &at) in other {
        let own = clock.entry(queue).or_default();
        *own = at.max(*own);
    }
}

#[derive(Clone, Copy)]
enum Operation {
    /// A kernel, or the mark of an event.
    Runs,
    /// Begins when another queue has done this many operations.
    Waits(usize, u64),
}

#[derive(Default)]
pub(super) struct Queue {
    operations: VecDeque<Operation>,
    pub(super) queued: u64,
    pub(super) done: u64,
    /// The work that is done before anything queued here from now on.
    knows: Clock,
    pub(super) capturing: bool,
}

/// The work that an event covers.
#[derive(Clone)]
struct Mark {
    queue: usize,
    at: u64,
    clock: Clock,
    /// Recorded during a free, or after a wait that the same call queued, so that it covers nothing later.
    exact: bool,
}

/// The kind of call that the program makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Other,
    /// A free, or the end of a stream. An event recorded now covers only earlier work.
    Free,
}

/// The driver's functions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DriverCall {
    Context,
    Create,
    Destroy,
    Record,
    IsDone,
    WaitFor,
    MakeWait,
    Synchronize,
    IsCapturing,
    Alloc,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queues: Vec<Queue>,
    /// The queues by handle, and by thread for a thread's default stream.
    names: BTreeMap<(u64, u32), usize>,
    /// The work that each event covers.
    events: BTreeMap<u64, Option<Mark>>,
    /// The kind of the program's present call. `None` if several threads make calls at once.
    call: Option<Call>,
    /// The queues that were made to wait since the call began.
    waiting: BTreeSet<usize>,
    last_event: u64,
    pub(super) counts: BTreeMap<DriverCall, u64>,
    pub(super) calls: u64,
    /// Violations of the contract by the library.
    pub(super) wrong: Vec<String>,
    pub(super) capacity: u64,
    pub(super) held: u64,
    next_base: u64,
    /// For each free unit that was allocated before, the work that may still use it.
    hazards: BTreeMap<u64, Clock>,
    /// A test's hook, run in the middle of the next driver call.
    pub(super) in_a_call: Option<fn(&'static Slot)>,
}

impl State {
    fn tick(&mut self, what: DriverCall) {
        self.calls += 1;
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn count(&self, what: DriverCall) -> u64 {
        self.counts.get(&what).copied().unwrap_or(0)
    }

    pub(super) fn events_alive(&self) -> usize {
        self.events.len()
    }

    /// Adds a queue that the library has no name for.
    pub(super) fn add_queue(&mut self) -> usize {
        self.queues.push(Queue::default());
        self.queues.len() - 1
    }

    /// Adds a stream with a handle, or the default stream of a thread.
    pub(super) fn add_stream(&mut self, handle: u64, thread: u32) -> usize {
        let queue = self.add_queue();
        self.names.insert((handle, thread), queue);
        queue
    }

    /// Begins a call of the library.
    pub(super) fn begin(&mut self, call: Call) {
        self.call = Some(call);
        self.waiting.clear();
    }

    /// Destroys a stream. Its handle may be given to another one, and its queued work still runs.
    pub(super) fn destroy_stream(&mut self, handle: u64, thread: u32) {
        self.names.remove(&(handle, thread));
    }

    /// Returns the queue that a handle stands for in this thread.
    fn queue(&mut self, Stream { handle, .. }: Stream) -> usize {
        let thread = if handle == 2 { thread::number().unwrap() } else { 0 };
        match self.names.get(&(handle, thread)) {
            Some(&queue) => queue,
            None => {
                // The default stream always exists.
                if handle != 1 {
                    self.wrong.push(format!("stream {handle:#x} of thread {thread} is none"));
                }
                self.add_stream(handle, thread)
            }
        }
    }

    /// Ends all captures. During a capture the allocator cannot be destroyed.
    pub(super) fn end_captures(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.capturing = false);
    }

    fn uncaptured(&mut self, stream: Stream, what: DriverCall) -> usize {
        let queue = self.queue(stream);
        if self.queues[queue].capturing {
            self.wrong.push(format!("{what:?} on {stream:?}, which is captured"));
        }
        queue
    }

    fn mark(&mut self, event: Event) -> Option<Mark> {
        let mark = self.events.get(&event.handle).and_then(Clone::clone);
        if mark.is_none() {
            self.wrong.push(format!("{event:?} is none, or was never recorded"));
        }
        mark
    }

    /// Returns the mark of an event that something is to wait for. It must have been recorded at the free.
    fn mark_to_wait_for(&mut self, event: Event) -> Option<Mark> {
        let mark = self.mark(event);
        if mark.as_ref().is_some_and(|mark| !mark.exact) {
            self.wrong.push(format!("{event:?} was recorded long after the free, and is waited for"));
        }
        mark
    }

    /// Queues one operation. Returns the number of operations queued so far.
    fn push(&mut self, queue: usize, operation: Operation) -> u64 {
        let queue = &mut self.queues[queue];
        queue.operations.push_back(operation);
        queue.queued += 1;
        queue.queued
    }

    /// Queues a kernel.
    pub(super) fn launch(&mut self, queue: usize) -> u64 {
        self.push(queue, Operation::Runs)
    }

    fn now(&mut self, queue: usize) -> Mark {
        let at = self.push(queue, Operation::Runs);
        let mut clock = self.queues[queue].knows.clone();
        clock.insert(queue, at);
        let exact = self.call != Some(Call::Other) || self.waiting.contains(&queue);
        Mark { queue, at, clock, exact }
    }

    fn wait(&mut self, queue: usize, mark: &Mark) {
        self.push(queue, Operation::Waits(mark.queue, mark.at));
        join(&mut self.queues[queue].knows, &mark.clock);
    }

    /// Runs one operation, unless there is none or it has to wait. Returns whether it did.
    pub(super) fn step(&mut self, queue: usize) -> bool {
        let ready = match self.queues[queue].operations.front() {
            None => false,
            Some(Operation::Runs) => true,
            Some(&Operation::Waits(other, at)) => self.queues[other].done >= at,
        };
        if ready {
            self.queues[queue].operations.pop_front();
            self.queues[queue].done += 1;
        }
        ready
    }

    pub(super) fn run_until(&mut self, queue: usize, at: u64) {
        while self.queues[queue].done < at {
            if !self.step(queue)
                && let Some(&Operation::Waits(other, at)) = self.queues[queue].operations.front()
            {
                self.run_until(other, at);
            }
        }
    }

    pub(super) fn run(&mut self, queue: usize) {
        self.run_until(queue, self.queues[queue].queued);
    }

    /// Runs all work.
    pub(super) fn run_context(&mut self) {
        (0..self.queues.len()).for_each(|queue| self.run(queue));
    }

    /// Notes, before a free, the work that may still use the memory.
    pub(super) fn put(&mut self, addr: u64, bytes: u64, clock: &Clock) {
        for unit in 0..bytes / UNIT {
            self.hazards.insert(addr + unit * UNIT, clock.clone());
        }
    }

    /// Notes that memory was allocated for work queued from now on. Returns the unfinished work that used the memory
    /// before. The queue must already be ordered after that work.
    pub(super) fn take(&mut self, addr: u64, bytes: u64, queue: usize) -> Clock {
        let mut before = Clock::new();
        for unit in 0..bytes / UNIT {
            if let Some(clock) = self.hazards.remove(&(addr + unit * UNIT)) {
                join(&mut before, &clock);
            }
        }
        before.retain(|&other, at| *at > self.queues[other].done);
        for (&other, &at) in &before {
            let known = self.queues[queue].knows.get(&other).is_some_and(|&known| at <= known);
            if other != queue && !known {
                self.wrong.push(format!(
                    "{addr:#x} was handed out on queue {queue} while {other} has done {} of {at}",
                    self.queues[other].done
                ));
            }
        }
        before
    }
}

pub(super) struct Device {
    state: Mutex<State>,
    /// The slot of the allocator that calls this driver.
    slot: AtomicPtr<Slot>,
    /// Whether another thread may hold the slot's lock.
    pub(super) shared: bool,
}

impl Device {
    pub(super) fn new(shared: bool) -> &'static Self {
        let slot = AtomicPtr::new(std::ptr::null_mut());
        Box::leak(Box::new(Device { state: Mutex::new(State::default()), slot, shared }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the device for a new allocator in a slot.
    pub(super) fn reset(&self, slot: &'static Slot, capacity: u64) {
        self.slot.store(std::ptr::from_ref(slot).cast_mut(), SeqCst);
        *self.state() = State { capacity, next_base: 1 << 40, ..State::default() };
    }

    /// Begins a driver call. Checks that the lock is open and that this thread cannot enter the allocator.
    fn called(&self) -> MutexGuard<'_, State> {
        // SAFETY: NULL or a leaked slot.
        if let Some(slot) = unsafe { self.slot.load(SeqCst).cast_const().as_ref() } {
            assert!(self.shared || !slot.is_locked(), "the driver was called with the lock held");
            let entered = slot.enter().err();
            if !matches!(entered, Some(ErrorKind::Busy)) {
                self.state().wrong.push(format!("whoever enters from a driver call gets {entered:?}"));
            }
            let hook = self.state().in_a_call.take();
            if let Some(hook) = hook {
                hook(slot);
            }
        }
        self.state()
    }
}

impl Streams for Device {
    fn enter(
        &self,
        _: bool,
        work: &mut dyn FnMut(&dyn Order) -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        work(self)
    }
}

impl Order for Device {
    fn context_of(&self, stream: Stream) -> Result<Context, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::Context);
        state.queue(stream);
        Ok(Context::OWN)
    }

    fn create_event(&self, context: Context) -> Result<Event, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::Create);
        state.last_event += 1;
        let event = state.last_event;
        state.events.insert(event, None);
        Ok(Event { handle: event, context })
    }

    fn destroy_event(&self, event: Event) {
        let mut state = self.called();
        *state.counts.entry(DriverCall::Destroy).or_default() += 1;
        if state.events.remove(&event.handle).is_none() {
            state.wrong.push(format!("{event:?} is destroyed twice"));
        }
    }

    fn record(&self, event: Event, on: Stream) -> Result<(), ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::Record);
        let queue = state.uncaptured(on, DriverCall::Record);
        let idle = state.queues[queue].operations.is_empty();
        let mark = state.now(queue);
        if idle {
            state.step(queue);
        }
        state.events.insert(event.handle, Some(mark));
        Ok(())
    }

    fn record_across(&self, _: Event, _: Stream) -> Result<(), ErrorKind> {
        unreachable!("all streams are of one context")
    }

    fn state(&self, event: Event) -> Result<Known, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::IsDone);
        let mark = state.mark(event);
        let is_done = mark.is_none_or(|mark| state.queues[mark.queue].done >= mark.at);
        Ok(if is_done { Known::Done } else { Known::Pending })
    }

    fn wait_for(&self, event: Event) -> Result<(), ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::WaitFor);
        if let Some(Mark { queue, at, .. }) = state.mark_to_wait_for(event) {
            state.run_until(queue, at);
        }
        Ok(())
    }

    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::MakeWait);
        let queue = state.uncaptured(stream, DriverCall::MakeWait);
        if let Some(mark) = state.mark_to_wait_for(event) {
            state.wait(queue, &mark);
            state.waiting.insert(queue);
        }
        Ok(())
    }

    fn is_idle(&self, _: Event) -> Result<bool, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::IsDone);
        Ok(state.queues.iter().all(|queue| queue.operations.is_empty()))
    }

    fn synchronize(&self) -> Result<(), ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::Synchronize);
        if state.queues.iter().any(|queue| queue.capturing) {
            return Err(fail!(ErrorKind::BackendFailed, "not while a stream is captured"));
        }
        state.run_context();
        Ok(())
    }

    fn capture_of(&self, stream: Stream) -> Result<Capture, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::IsCapturing);
        let queue = state.queue(stream);
        Ok(if state.queues[queue].capturing { Capture::Active } else { Capture::None })
    }
}

impl Backend for Device {
    fn alloc(&self, _alignment: u64, bytes: u64) -> Result<Option<Granted>, ErrorKind> {
        let mut state = self.called();
        state.tick(DriverCall::Alloc);
        if bytes > state.capacity - state.held {
            return Ok(None);
        }
        state.held += bytes;
        let base = state.next_base;
        state.next_base += bytes.next_multiple_of(1 << 20) + (1 << 20);
        Ok(Some(Granted { base, bytes }))
    }

    fn free(&self, granted: Granted) -> Result<(), ErrorKind> {
        let mut state = self.called();
        state.run_context();
        let range = granted.base..granted.base + granted.bytes;
        let at_work = |(&queue, &at): (&usize, &u64)| state.queues[queue].done < at;
        if state.hazards.range(range).any(|(_, clock)| clock.iter().any(at_work)) {
            state.wrong.push(format!("the region at {:#x} goes back, and work may touch it", granted.base));
        }
        state.held -= granted.bytes;
        Ok(())
    }

    fn total_memory(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> &'static str {
        "a simulation of a device"
    }

    fn order(&self) -> Option<&dyn Streams> {
        Some(self)
    }
}
