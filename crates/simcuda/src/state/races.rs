//! What the check for races knows: the order of the work, and the uses of memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_sys::CUdevice;

use super::clock::{Clock, Clocks};
use super::stream::Point;
use super::touched::{By, Touched};

/// The place of queued work in the order.
pub(crate) struct Order {
    /// Its lane and its place there: those of its stream, or of a branch of a graph.
    pub(crate) at: Point,
    /// The work elsewhere that comes before, done or not.
    pub(crate) after: Vec<Point>,
    /// The work that the host knew to be done when it queued this.
    pub(crate) host: Arc<Clock>,
    /// The ends of branches which the stream's later work comes after.
    pub(crate) closes: Vec<Point>,
    pub(crate) by: By,
}

/// The end of a stream that is gone. What waits for its context or device still comes after it.
#[derive(Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) context: u64,
    pub(crate) device: CUdevice,
    pub(crate) is_blocking: bool,
    pub(crate) end: Point,
}

#[derive(Default)]
pub(crate) struct Races {
    pub(crate) clocks: Clocks,
    pub(crate) touched: Touched,
    /// By stream and item, while it is queued.
    pub(crate) orders: BTreeMap<(u64, u64), Order>,
    gone: Vec<Gone>,
    /// The lanes of an executable graph's branches.
    branches: BTreeMap<u64, Vec<u64>>,
}

impl Races {
    /// Records that a stream is gone, with its work done.
    pub(crate) fn end(&mut self, gone: Gone) {
        self.clocks.end(gone.end.stream);
        self.gone.push(gone);
        let Self { gone, clocks, .. } = self;
        gone.retain(|gone| clocks.knows(gone.end.stream));
    }

    /// Forgets a stream whose queued work never happens.
    pub(crate) fn forget_stream(&mut self, stream: u64) {
        self.clocks.forget(stream);
        self.orders.retain(|(of, _), _| *of != stream);
    }

    /// Returns the ends of streams that are gone.
    pub(crate) fn gone(&self, are: impl Fn(&Gone) -> bool) -> Vec<Point> {
        self.gone.iter().filter(|gone| are(gone)).map(|gone| gone.end).collect()
    }

    /// Returns the lane of an executable graph's branch. It is the same at each launch.
    pub(crate) fn branch(&mut self, executable: u64, index: usize, mut new: impl FnMut() -> u64) -> u64 {
        let lanes = self.branches.entry(executable).or_default();
        while lanes.len() <= index {
            lanes.push(new());
        }
        lanes[index]
    }

    /// Records that an executable graph is destroyed.
    pub(crate) fn end_executable(&mut self, executable: u64) {
        for lane in self.branches.remove(&executable).unwrap_or_default() {
            self.clocks.end(lane);
        }
    }
}
