//! The queued work that may still touch free memory, on a backend without a device.

use crate::common::pointer;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// A stream, with the number of times that its name was forgotten before. No stream counts as one too.
type Queue = (u64, u32);

/// Work of a queue up to one of its frees.
type Work = (Queue, u64);
/// Start and end, with the work that may touch it.
type Hazard = (u64, (u64, Vec<Work>));

const NO_STREAM: u64 = u64::MAX;

#[derive(Default)]
struct QueueState {
    frees: u64,
    done: u64,
    forgotten: bool,
}

#[derive(Default)]
pub(crate) struct Order {
    queues: BTreeMap<Queue, QueueState>,
    names: BTreeMap<u64, u32>,
    /// Live allocations: their ranges, and the streams on which they were recorded.
    live: BTreeMap<u64, (Queue, Vec<Queue>)>,
    /// Start and end of freed memory, with the work that may touch it.
    hazards: BTreeMap<u64, (u64, Vec<Work>)>,
}

impl Order {
    /// Returns the library's name for a stream. `None` is no stream.
    pub(crate) fn name(stream: Option<*mut c_void>) -> u64 {
        stream.map_or(NO_STREAM, |stream| (stream as u64).max(pointer(1) as u64))
    }

    fn queue(&mut self, name: u64) -> Queue {
        let queue = (name, self.names.get(&name).copied().unwrap_or(0));
        self.queues.entry(queue).or_default();
        queue
    }

    /// Records that a stream requests memory, whatever the result.
    pub(crate) fn asks(&mut self, name: u64) {
        self.queue(name);
    }

    /// Returns whether more than one stream has allocated or freed, so that free memory is not common to all.
    pub(crate) fn tells_apart(&self) -> bool {
        self.queues.len() > 1
    }

    /// Checks memory that was handed out. It may have belonged to any stream whose work has completed.
    pub(crate) fn served(&mut self, name: u64, address: u64, bytes: u64) {
        let queue = self.queue(name);
        for (start, (end, works)) in self.cut(address, address + bytes) {
            for (other, point) in works {
                let done = self.queues[&other].done;
                assert!(
                    other == queue || point <= done,
                    "{start:#x} to {end:#x} for {queue:x?}: work of {other:x?} is done up to {done}, not {point}"
                );
            }
        }
        self.live.insert(address, (queue, Vec::new()));
    }

    /// Removes the hazards of a range.
    fn cut(&mut self, start: u64, end: u64) -> Vec<Hazard> {
        let mut taken = Vec::new();
        while let Some((&at, _)) = self.hazards.range(..end).next_back().filter(|(_, held)| held.0 > start) {
            let Some((until, works)) = self.hazards.remove(&at) else { break };
            if at < start {
                self.hazards.insert(at, (start, works.clone()));
            }
            if until > end {
                self.hazards.insert(end, (until, works.clone()));
            }
            taken.push((at.max(start), (until.min(end), works)));
        }
        taken
    }

    fn advance(&mut self, queue: Queue) -> Work {
        let state = self.queues.entry(queue).or_default();
        state.frees += u64::from(!state.forgotten);
        (queue, state.frees)
    }

    /// Records that memory was freed in the order of a stream: the stream of its allocation, if none is named.
    pub(crate) fn released(&mut self, address: u64, bytes: u64, name: Option<u64>) {
        let Some((allocated_on, recorded)) = self.live.remove(&address) else { return };
        let queue = name.map_or(allocated_on, |name| self.queue(name));
        let works = std::iter::once(queue).chain(recorded).map(|queue| self.advance(queue)).collect();
        self.hazards.insert(address, (address + bytes, works));
    }

    pub(crate) fn record(&mut self, address: u64, name: u64) {
        let queue = self.queue(name);
        if let Some((_, recorded)) = self.live.get_mut(&address) {
            recorded.push(queue);
        }
    }

    /// Records that the name may now denote another stream.
    pub(crate) fn forget(&mut self, name: u64) {
        let queue = self.queue(name);
        self.advance(queue);
        self.queues.entry(queue).or_default().forgotten = true;
        *self.names.entry(name).or_default() += 1;
    }

    /// Records that all work of the name has completed. The default stream includes work without one.
    pub(crate) fn synchronized(&mut self, name: u64) {
        let default = Self::name(Some(std::ptr::null_mut()));
        for ((other, _), state) in &mut self.queues {
            if *other == name || name == default && *other == NO_STREAM {
                state.done = state.frees;
            }
        }
    }

    /// Records that regions were released: memory obtained at their addresses is different memory.
    pub(crate) fn regions_went(&mut self) {
        self.hazards.clear();
    }
}
