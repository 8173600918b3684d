//! Streams that are destroyed without `bfc_forget_stream`, as programs do after all of their memory was freed.

use super::world::{Chunk, World};
use crate::common::simcuda::steer::RECYCLE_HANDLES;

impl World {
    /// Returns whether a stream may end without bfc_forget_stream: no live memory was allocated there or recorded for
    /// it.
    pub fn may_abandon(&self, place: usize) -> bool {
        let stream = &self.streams[place];
        let uses = |chunk: &Chunk| chunk.home == Some(place) || chunk.lent.contains(&place);
        stream.created && !self.chunks.iter().any(uses)
    }

    /// The program waits for such a stream's work before its end, or the work is still queued. Then its handle is not
    /// reused at once.
    pub fn abandon(&mut self, place: usize) {
        let recycles = self.gpu.sim.get(RECYCLE_HANDLES) != 0;
        if recycles || self.random.one_in(2) {
            self.at(place, |gpu, stream| gpu.synchronize(stream));
        } else {
            let handle = self.streams[place].handle;
            self.abandoned.push(handle);
        }
    }
}
