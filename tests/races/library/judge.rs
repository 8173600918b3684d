//! The end of a random program, and the conditions that must hold then and at all times.

use super::world::World;
use crate::common::*;
use crate::shadow;

impl World {
    /// Runs all work, in some order, as far as possible.
    pub fn drain(&mut self) {
        let mut stuck = 0;
        while stuck < 20 {
            let place = self.random.index(self.streams.len());
            let items = self.random.between(1, 50);
            let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
            stuck = if ran == 0 { stuck + 1 } else { 0 };
        }
        // The rest waits for streams that have ended.
        self.gpu.sim.release_all();
    }

    /// Ends the program, in one of several ways, and checks the conditions that must hold then.
    pub fn end(mut self) -> World {
        self.end_graphs();
        if self.random.one_in(2) {
            self.drain();
        }
        while !self.chunks.is_empty() {
            let place = self.random.index(self.chunks.len());
            self.free_at(place);
        }
        if self.random.one_in(2) {
            self.drain();
        }
        self.pool.check();
        // Possibly with work still queued.
        assert_eq!(self.pool.destroy(), BFC_OK, "{}", last_error());
        // The driver itself need not wait before it frees memory.
        let undone = self.shadow.undone(0, u64::MAX);
        if undone != 0 && !self.kind.lies {
            let log = self.log();
            panic!(
                "{log}\nall memory is given back while {undone} kernels that work on it are pending: races"
            );
        }
        self.drain();
        self.judge();
        for stream in std::mem::take(&mut self.streams) {
            if stream.created {
                self.gpu.destroy_stream(stream.handle);
            }
        }
        self.contexts.end(self.gpu);
        self
    }

    /// Checks that nothing went wrong so far, in this program and earlier ones.
    pub fn judge(&self) {
        let (races, words) = shadow::races();
        let (misuses, mismatches, deadlocks) = (self.misuses(), self.gpu.sim.mismatches(), self.deadlocks);
        if !self.kind.lies && (races, deadlocks, mismatches, misuses.len()) != (0, 0, 0, 0) {
            let log = self.log();
            if std::env::var("RACES_SEED").is_ok() {
                eprintln!("{}", self.gpu.sim.log_text());
            }
            panic!(
                "{log}\n{races} races, {words}; {deadlocks} deadlocks, {mismatches} mismatches; {misuses:#?}; run it \
                 alone with RACES_SEED"
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
