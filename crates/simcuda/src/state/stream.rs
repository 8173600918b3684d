//! Streams with their queues, and events.

use std::collections::VecDeque;

use cuda_sys::{CU_STREAM_NON_BLOCKING, CUdevice};

use super::work::Work;

/// The role of a stream in its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Legacy,
    PerThread,
    /// Created by the program, with its handle.
    Created(u64),
}

/// A position in a stream's order: everything up to that item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) item: u64,
}

/// Work, and the work in other streams that it waits for.
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) after: Vec<Point>,
    pub(crate) work: Work,
}

/// A stream with its queue.
pub(crate) struct Stream {
    context: u64,
    device: CUdevice,
    role: Role,
    flags: u32,
    priority: i32,
    unique: u64,
    queue: VecDeque<Item>,
    issued: u64,
    done: u64,
    /// The thread that runs an item of the stream, with the lock open.
    runner: Option<u64>,
    is_held: bool,
    /// When the delay at the front is over.
    wakes: Option<u64>,
    /// Set once it is destroyed. The stream ends when its work is done.
    is_destroyed: bool,
    /// Set once its green context is destroyed.
    is_detached: bool,
    /// The capture that it takes part in.
    capture: Option<u64>,
    /// What the next captured item comes after, as indices into the capture's nodes.
    frontier: Vec<usize>,
    /// The handles of these nodes, as returned by the last query of the capture.
    dependencies: Vec<u64>,
}

impl Stream {
    pub(crate) fn new(context: u64, device: CUdevice, role: Role, flags: u32, priority: i32) -> Self {
        Self {
            context,
            device,
            role,
            flags,
            priority,
            unique: 0,
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            runner: None,
            is_held: false,
            wakes: None,
            is_destroyed: false,
            is_detached: false,
            capture: None,
            frontier: Vec::new(),
            dependencies: Vec::new(),
        }
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// Sets the stream's number in this process.
    pub(crate) fn set_unique(&mut self, number: u64) {
        self.unique = number;
    }

    /// Returns whether the legacy default stream and this one wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.role != Role::Legacy && self.flags & CU_STREAM_NON_BLOCKING == 0
    }

    /// Returns whether a test steps the stream.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Destroys the handle. The stream ends when its work is done. Returns whether it was destroyed before.
    pub(crate) fn destroy(&mut self) -> bool {
        std::mem::replace(&mut self.is_destroyed, true)
    }

    /// Leaves its green context, which is destroyed. Its work goes on in the primary one.
    pub(crate) fn detach(&mut self, primary: u64) {
        self.context = primary;
        self.flags |= CU_STREAM_NON_BLOCKING;
        self.is_detached = true;
    }

    /// Returns whether its green context is destroyed, so that it can only be destroyed, too.
    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// Returns whether it is destroyed and its work is done.
    pub(crate) fn is_over(&self) -> bool {
        self.is_destroyed && self.done == self.issued && self.runner.is_none()
    }

    // The queue.

    /// Queues work and returns its number.
    pub(crate) fn push(&mut self, work: Work, after: Vec<Point>) -> u64 {
        self.issued += 1;
        self.queue.push_back(Item { number: self.issued, after, work });
        self.issued
    }

    /// Returns the queued items that have not begun, in order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.queue.iter()
    }

    pub(crate) fn first(&self) -> Option<&Item> {
        self.queue.front()
    }

    /// Takes the first item, which a thread then runs.
    pub(crate) fn begin(&mut self, thread: u64) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.runner = Some(thread);
        self.wakes = None;
        Some(item)
    }

    /// Records that the item with that number was run.
    pub(crate) fn finish(&mut self, item: u64) {
        self.done = item;
        self.runner = None;
    }

    /// Returns the thread that runs an item of the stream.
    pub(crate) fn runner(&self) -> Option<u64> {
        self.runner
    }

    /// Returns the number of the last item queued.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Returns whether everything up to that item is done.
    pub(crate) fn is_done(&self, item: u64) -> bool {
        self.done >= item
    }

    /// Returns the number of items that are not done.
    pub(crate) fn pending(&self) -> u64 {
        self.issued - self.done
    }

    // Delays.

    /// Returns the duration of the first item, if it is a delay.
    fn delay(&self) -> Option<u64> {
        match self.queue.front()?.work {
            Work::Delay { nanoseconds } => Some(nanoseconds),
            _ => None,
        }
    }

    /// Returns whether there is a delay at the front that has not begun, and that no test steps.
    pub(crate) fn awaits_delay(&self) -> bool {
        self.delay().is_some() && self.wakes.is_none() && !self.is_held
    }

    /// Begins the delay at the front. Returns whether it is over at once.
    pub(crate) fn begin_delay(&mut self, now: u64) -> bool {
        self.wakes = self.delay().map(|nanoseconds| now.saturating_add(nanoseconds));
        self.wakes == Some(now)
    }

    /// Returns when the delay at the front is over.
    pub(crate) fn wakes(&self) -> Option<u64> {
        self.wakes
    }

    /// Returns whether the first item is not a delay in progress.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.delay().is_none() || self.wakes.is_some_and(|at| at <= now)
    }

    // Capture.

    /// Returns the number of the capture that the stream takes part in.
    pub(crate) fn capture(&self) -> Option<u64> {
        self.capture
    }

    /// Returns what the next captured item comes after, as indices into the capture's nodes.
    pub(crate) fn frontier(&self) -> &[usize] {
        &self.frontier
    }

    /// Takes part in a capture. The next item comes after these nodes as well.
    pub(crate) fn join(&mut self, capture: u64, frontier: &[usize]) {
        self.capture = Some(capture);
        for node in frontier {
            if !self.frontier.contains(node) {
                self.frontier.push(*node);
            }
        }
    }

    /// Takes what an item captured now comes after. Later items do not come after it directly.
    pub(crate) fn take_frontier(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.frontier)
    }

    /// Records that the capture has ended.
    pub(crate) fn leave_capture(&mut self) {
        self.capture = None;
        self.frontier.clear();
    }

    /// Keeps the handles of the frontier's nodes for the program to read.
    pub(crate) fn keep_dependencies(&mut self, handle: impl Fn(usize) -> Option<u64>) -> &[u64] {
        self.dependencies = self.frontier.iter().filter_map(|node| handle(*node)).collect();
        &self.dependencies
    }
}

/// An event: the position in a stream where it was last recorded.
pub(crate) struct Event {
    context: u64,
    flags: u32,
    unique: u64,
    recorded: Option<Point>,
    /// When the recorded position was reached, in nanoseconds.
    reached: Option<u64>,
    /// If it was last recorded in a capture: the capture, and the nodes that it comes after.
    captured: Option<(u64, Vec<usize>)>,
}

impl Event {
    /// Creates an event that was never recorded.
    pub(crate) fn new(context: u64, flags: u32, unique: u64) -> Self {
        Self { context, flags, unique, recorded: None, reached: None, captured: None }
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns the position that it stands for, if it was recorded.
    pub(crate) fn recorded(&self) -> Option<Point> {
        self.recorded
    }

    /// Returns when that position was reached, in nanoseconds.
    pub(crate) fn reached(&self) -> Option<u64> {
        self.reached
    }

    /// Returns the capture and the nodes that it comes after, if it was last recorded in a capture.
    pub(crate) fn captured(&self) -> Option<&(u64, Vec<usize>)> {
        self.captured.as_ref()
    }

    /// Records the event at a position in a stream. The number distinguishes this record from others.
    pub(crate) fn record(&mut self, place: Point, unique: u64) {
        (self.recorded, self.reached, self.captured, self.unique) = (Some(place), None, None, unique);
    }

    /// Records the event after nodes of a capture.
    pub(crate) fn record_captured(&mut self, capture: u64, frontier: Vec<usize>) {
        self.captured = Some((capture, frontier));
    }

    /// Records that the position of the record with that number was reached.
    pub(crate) fn reach(&mut self, unique: u64, now: u64) {
        if self.unique == unique {
            self.reached = Some(now);
        }
    }
}
