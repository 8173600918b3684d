//! Streams that are destroyed without `bfc_forget_stream`, as programs do whose memory was all freed.

use crate::common::simcuda::steer::RECYCLE_HANDLES;
use crate::world::{Chunk, World};

impl World {
    /// Whether a stream may end without bfc_forget_stream: nothing that is live was allocated there, or lent to it.
    pub fn may_abandon(&self, place: usize) -> bool {
        let stream = &self.streams[place];
        let uses = |chunk: &Chunk| chunk.home == Some(place) || chunk.lent.contains(&place);
        stream.created && !self.chunks.iter().any(uses)
    }

    /// Such a stream's work is waited for before its end, or still queued: then its handle is not another's at once.
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
