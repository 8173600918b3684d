//! The end of a random program, and what must hold then and at all times.

use crate::common::*;
use crate::shadow;
use crate::world::World;

impl World {
    /// Lets everything be done, in some order, as far as it can.
    pub fn drain(&mut self) {
        let mut stuck = 0;
        while stuck < 20 {
            let place = self.random.index(self.streams.len());
            let items = self.random.between(1, 50);
            let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
            stuck = if ran == 0 { stuck + 1 } else { 0 };
        }
        // What is left waits for streams that have ended.
        self.gpu.sim.release_all();
    }

    /// The end of the program, in one of several ways, and what must hold then.
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
        // With work still queued, perhaps.
        assert_eq!(self.pool.destroy(), BFC_OK, "{}", last_error());
        // The driver itself need not wait before it takes memory back.
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

    /// Nothing went wrong so far, in this program and those before.
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

    /// Misuses of the driver, but those that the library cannot know of: a stream was destroyed without bfc_forget_stream whose
    /// work was queued still, and what the driver says of it is borne.
    fn misuses(&self) -> Vec<String> {
        let stale = |handle: &u64| format!("Stream {handle:#x} is one that was destroyed");
        let stale: Vec<String> = self.abandoned.iter().map(stale).collect();
        self.gpu.sim.misuse_texts().into_iter().filter(|text| !stale.contains(text)).collect()
    }
}
