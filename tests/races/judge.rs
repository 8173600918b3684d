//! The end of a random program, and the conditions that must hold then.

use crate::common::simcuda::steer::{ALLOCATIONS, EVENTS, RETAINS};
use crate::driver::Driver;
use crate::shadow;
use crate::world::World;

impl<D: Driver> World<D> {
    /// Ends the program, in one of several ways.
    pub fn end(&mut self) {
        self.end_graphs();
        if self.random.one_in(2) {
            self.drain();
        }
        while let Some(index) = self.any_chunk() {
            D::free_at(self, index);
        }
        // A pool that the program has created ends possibly with work still queued. It cannot wait for that of another
        // context if the driver failed to tell of which one.
        if D::HOOKED || self.kind.fails && self.kind.foreign || self.random.one_in(2) {
            self.drain();
        }
        self.gpu.end_pool(&self.pool);
        // The driver itself need not wait before it frees memory.
        let undone = self.shadow.undone(0, u64::MAX);
        if undone != 0 && !self.kind.lies {
            let log = self.log();
            panic!(
                "{log}\nall memory is given back while {undone} kernels that work on it are pending: races"
            );
        }
        self.drain();
        self.contexts.synchronize(self.gpu);
        D::end_others(self, true);
        for place in 0..self.streams.len() {
            if self.streams[place].created {
                self.at(place, |gpu, stream| gpu.destroy_stream(stream));
            }
        }
        self.streams.clear();
        self.contexts.end(self.gpu);
    }

    /// Checks that nothing went wrong so far, in this program and earlier ones, and that nothing is left.
    pub fn judge(&self) {
        if self.kind.lies || self.kind.is_mutated() {
            return;
        }
        let (races, words) = shadow::races();
        let (misuses, mismatches, deadlocks) =
            (self.misuses(), self.gpu.sim.mismatches(), self.seen.deadlocks);
        let left = [ALLOCATIONS, EVENTS, RETAINS].map(|of| self.gpu.sim.live(of));
        if (races, deadlocks, mismatches, misuses.len(), left) != (0, 0, 0, 0, [0; 3]) {
            if std::env::var("RACES_SEED").is_ok() {
                eprintln!("{}", self.gpu.sim.log_text());
            }
            panic!(
                "{}\n{races} races, {words}; {deadlocks} deadlocks, {mismatches} mismatches; {left:?} allocations, \
                 events, retains left; {misuses:#?}; run it alone with RACES_SEED",
                self.log()
            );
        }
    }

    /// Returns the misuses of the driver, except those that the library cannot know about: a stream was destroyed
    /// without bfc_forget_stream while its work was still queued, and the library handles the driver's error.
    fn misuses(&self) -> Vec<String> {
        let stale = |handle: &u64| format!("Stream {handle:#x} is one that was destroyed");
        let stale: Vec<String> = self.abandoned.iter().map(stale).collect();
        self.gpu.sim.misuse_texts().into_iter().filter(|text| !stale.contains(text)).collect()
    }
}
