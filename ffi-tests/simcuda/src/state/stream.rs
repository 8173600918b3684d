//! Streams with their queues, and events.

use std::collections::VecDeque;

use cuda_sys::{CU_STREAM_NON_BLOCKING, CUdevice};

use super::work::Work;

/// What a stream is in its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Legacy,
    PerThread,
    /// With its handle.
    Created(u64),
}

/// A place in a stream's order: everything up to that item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) item: u64,
}

/// Work with what it waits for in other streams.
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
    /// The thread that runs an item of it, with the lock open.
    runner: Option<u64>,
    is_held: bool,
    /// When the delay that stands first is over.
    wakes: Option<u64>,
    /// It goes when its work is done.
    is_destroyed: bool,
    /// The capture it takes part in.
    capture: Option<u64>,
    /// What the next captured item comes after, as indices into the capture's nodes.
    frontier: Vec<usize>,
    /// The handles of these, as the last query of the capture gave them out.
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

    /// Gives it the number that it has in this process.
    pub(crate) fn set_unique(&mut self, number: u64) {
        self.unique = number;
    }

    /// Whether the legacy default stream and this one wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.role != Role::Legacy && self.flags & CU_STREAM_NON_BLOCKING == 0
    }

    /// Whether a test steps it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Its handle goes, and it goes when its work is done; whether that was so before.
    pub(crate) fn destroy(&mut self) -> bool {
        std::mem::replace(&mut self.is_destroyed, true)
    }

    /// Whether it is destroyed and its work is done.
    pub(crate) fn is_over(&self) -> bool {
        self.is_destroyed && self.done == self.issued && self.runner.is_none()
    }

    // The queue.

    /// Queues work and gives its number.
    pub(crate) fn push(&mut self, work: Work, after: Vec<Point>) -> u64 {
        self.issued += 1;
        self.queue.push_back(Item { number: self.issued, after, work });
        self.issued
    }

    /// What is queued and not begun, in order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.queue.iter()
    }

    pub(crate) fn first(&self) -> Option<&Item> {
        self.queue.front()
    }

    /// Takes the first item, which a thread runs from now on.
    pub(crate) fn begin(&mut self, thread: u64) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.runner = Some(thread);
        self.wakes = None;
        Some(item)
    }

    /// The item with that number was run.
    pub(crate) fn finish(&mut self, item: u64) {
        self.done = item;
        self.runner = None;
    }

    /// The thread that runs an item of it.
    pub(crate) fn runner(&self) -> Option<u64> {
        self.runner
    }

    /// The number of the last item that was queued.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Whether everything up to that item is done.
    pub(crate) fn is_done(&self, item: u64) -> bool {
        self.done >= item
    }

    /// Items that are not done.
    pub(crate) fn pending(&self) -> u64 {
        self.issued - self.done
    }

    // Delays.

    /// How long the first item takes, if it is a delay.
    fn delay(&self) -> Option<u64> {
        match self.queue.front()?.work {
            Work::Delay { nanoseconds } => Some(nanoseconds),
            _ => None,
        }
    }

    /// Whether a delay stands first that has not begun, and would not be stepped by a test.
    pub(crate) fn awaits_delay(&self) -> bool {
        self.delay().is_some() && self.wakes.is_none() && !self.is_held
    }

    /// Begins the delay that stands first; whether it is over at once.
    pub(crate) fn begin_delay(&mut self, now: u64) -> bool {
        self.wakes = self.delay().map(|nanoseconds| now.saturating_add(nanoseconds));
        self.wakes == Some(now)
    }

    /// When the delay that stands first is over.
    pub(crate) fn wakes(&self) -> Option<u64> {
        self.wakes
    }

    /// Whether the first item is no delay that goes on.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.delay().is_none() || self.wakes.is_some_and(|at| at <= now)
    }

    // Capture.

    /// The number of the capture that it takes part in.
    pub(crate) fn capture(&self) -> Option<u64> {
        self.capture
    }

    /// What the next captured item comes after, as indices into the capture's nodes.
    pub(crate) fn frontier(&self) -> &[usize] {
        &self.frontier
    }

    /// Takes part in a capture; its next item comes after these nodes as well.
    pub(crate) fn join(&mut self, capture: u64, frontier: &[usize]) {
        self.capture = Some(capture);
        for node in frontier {
            if !self.frontier.contains(node) {
                self.frontier.push(*node);
            }
        }
    }

    /// What an item that is captured now comes after, and nothing later does.
    pub(crate) fn take_frontier(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.frontier)
    }

    /// The capture has ended.
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

/// An event: the place in a stream where it was last recorded.
pub(crate) struct Event {
    context: u64,
    flags: u32,
    unique: u64,
    recorded: Option<Point>,
    /// When the recorded place was reached, in nanoseconds.
    reached: Option<u64>,
    /// If it was last recorded in a capture: which, and after which of its nodes.
    captured: Option<(u64, Vec<usize>)>,
}

impl Event {
    /// One that was never recorded.
    pub(crate) fn new(context: u64, flags: u32, unique: u64) -> Self {
        Self { context, flags, unique, recorded: None, reached: None, captured: None }
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// The place that it stands for, if it was recorded.
    pub(crate) fn recorded(&self) -> Option<Point> {
        self.recorded
    }

    /// When that place was reached, in nanoseconds.
    pub(crate) fn reached(&self) -> Option<u64> {
        self.reached
    }

    /// If it was last recorded in a capture: which, and after which of its nodes.
    pub(crate) fn captured(&self) -> Option<&(u64, Vec<usize>)> {
        self.captured.as_ref()
    }

    /// It stands for a place in a stream from now on; the number tells this record from others.
    pub(crate) fn record(&mut self, place: Point, unique: u64) {
        (self.recorded, self.reached, self.captured, self.unique) = (Some(place), None, None, unique);
    }

    /// It stands for nodes of a capture from now on.
    pub(crate) fn record_captured(&mut self, capture: u64, frontier: Vec<usize>) {
        self.captured = Some((capture, frontier));
    }

    /// The place of the record with that number was reached.
    pub(crate) fn reach(&mut self, unique: u64, now: u64) {
        if self.unique == unique {
            self.reached = Some(now);
        }
    }
}
