//! Whose queued work may still touch free memory, on a backend without a device.

use crate::common::pointer;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// A stream with how often its name was forgotten before; no stream is one too.
type Queue = (u64, u32);

/// Work of a queue up to one of its frees.
type Work = (Queue, u64);
/// Start and end, with what may touch it.
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
    /// Live allocations: where, and on which streams they were recorded.
    live: BTreeMap<u64, (Queue, Vec<Queue>)>,
    /// Start and end of what was freed, with the work that may touch it.
    hazards: BTreeMap<u64, (u64, Vec<Work>)>,
}

impl Order {
    /// The name that the library has for a stream; `None` is no stream.
    pub(crate) fn name(stream: Option<*mut c_void>) -> u64 {
        stream.map_or(NO_STREAM, |stream| (stream as u64).max(pointer(1) as u64))
    }

    fn queue(&mut self, name: u64) -> Queue {
        let queue = (name, self.names.get(&name).copied().unwrap_or(0));
        self.queues.entry(queue).or_default();
        queue
    }

    /// A stream asks for memory, whatever comes of it.
    pub(crate) fn asks(&mut self, name: u64) {
        self.queue(name);
    }

    /// Whether more than one had or frees anything, so that free memory is not everybody's.
    pub(crate) fn tells_apart(&self) -> bool {
        self.queues.len() > 1
    }

    /// Memory was handed out. It may have been anybody's whose work is done.
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

    /// Takes the hazards of a range out.
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

    /// Memory was freed in the order of a stream; of the one that it was allocated on, if none is named.
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

    /// The name may be another stream's from now on.
    pub(crate) fn forget(&mut self, name: u64) {
        let queue = self.queue(name);
        self.advance(queue);
        self.queues.entry(queue).or_default().forgotten = true;
        *self.names.entry(name).or_default() += 1;
    }

    /// All that goes by the name is done; the default stream includes who has none.
    pub(crate) fn synchronized(&mut self, name: u64) {
        let default = Self::name(Some(std::ptr::null_mut()));
        for ((other, _), state) in &mut self.queues {
            if *other == name || name == default && *other == NO_STREAM {
                state.done = state.frees;
            }
        }
    }

    /// Regions went back: what comes at their addresses is other memory.
    pub(crate) fn regions_went(&mut self) {
        self.hazards.clear();
    }
}
