//! Captures in the random programs: kernels that read chunks, and anything else that the program does meanwhile.
//! Nothing breaks a capture that the driver alone would leave valid.

use crate::common::hooked::Hooked;
use crate::graphs::Graph;
use crate::shadow;
use crate::world::{Chunk, World};
use cuda_sys::*;

impl World<Hooked> {
    /// Captures kernels that read chunks, while other work continues.
    pub fn capture(&mut self) {
        let Some(place) = self.any_stream() else { return };
        if self.is_capturing() || !self.streams[place].created {
            return;
        }
        let mode = self.some_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        if self.kind.modes && self.random.one_in(2) {
            // No work is pending, so a request may cause idle regions to be released.
            (0..self.random.below(4)).for_each(|_| self.free());
            self.at(place, |gpu, _| gpu.synchronize_context());
        }
        self.at(place, move |gpu, stream| gpu.begin_capture_in(stream, mode));
        self.streams[place].capturing = Some(0);
        self.say(|| format!("stream {place} is captured in mode {mode}"));
        let mut chunks = Vec::new();
        for _ in 0..self.random.between(1, 8) {
            let index = self.any_chunk().filter(|_| self.random.one_in(2));
            let Some(index) = index else {
                match mode {
                    CU_STREAM_CAPTURE_MODE_RELAXED if self.kind.others && self.random.one_in(2) => {
                        self.act_on_others();
                    }
                    CU_STREAM_CAPTURE_MODE_RELAXED if self.kind.modes => self.allocate(),
                    CU_STREAM_CAPTURE_MODE_RELAXED => self.act(),
                    _ => self.act_on_another_thread(mode),
                }
                continue;
            };
            let device = self.chunks[index].device;
            if self.kind.peers || device == self.device(place) {
                let chunk = &mut self.chunks[index];
                chunk.graphs += 1;
                chunks.push(chunk.number);
                let Chunk { address, bytes, pattern, .. } = *chunk;
                self.at(place, move |gpu, stream| gpu.expect(stream, address, bytes, pattern));
                if self.random.one_in(3) {
                    // A copy by the driver, onto itself.
                    let context = self.contexts.handle(device as usize);
                    self.at(place, move |gpu, stream| {
                        gpu.copy(address, context, address, context, bytes, stream);
                    });
                }
            }
            if self.random.one_in(4) {
                self.capture_besides(mode);
            }
        }
        let executable = self.end_capture(place);
        self.say(|| format!("stream {place} is captured no more: {chunks:?}"));
        self.graphs.push(Graph { executable, name: 0, stream: place, chunks });
    }

    /// A second capture during the first, as for conditional nodes.
    fn capture_besides(&mut self, mode: CUstreamCaptureMode) {
        let Some(place) = self.any_stream().filter(|&place| self.streams[place].created) else { return };
        self.at(place, move |gpu, stream| gpu.begin_capture_in(stream, mode));
        let executable = self.end_capture(place);
        self.gpu.destroy_graph(executable);
    }

    /// The calls that a program may make while one of its threads captures: in a global capture none that the driver
    /// calls unsafe, in a thread-local one only on another thread.
    fn act_on_another_thread(&mut self, mode: CUstreamCaptureMode) {
        if mode == CU_STREAM_CAPTURE_MODE_GLOBAL {
            return self.step();
        }
        std::thread::scope(|scope| {
            let acts = scope.spawn(|| self.act());
            if let Err(panic) = acts.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }

    pub fn launch(&mut self) {
        let graph = self.random.index(self.graphs.len());
        let Some(place) = self.any_stream() else { return };
        let Graph { executable, ref chunks, .. } = self.graphs[graph];
        let chunks = chunks.clone();
        let indices: Vec<usize> =
            (0..self.chunks.len()).filter(|&index| chunks.contains(&self.chunks[index].number)).collect();
        let device = self.device(place);
        let reaches = |&index: &usize| {
            let chunk = &self.chunks[index];
            self.may_order(chunk.users[0], place) && (self.kind.peers || chunk.device == device)
        };
        if !indices.iter().all(reaches) {
            return;
        }
        for &index in &indices {
            self.order(self.chunks[index].users[0], place);
            self.chunks[index].users.push(place);
        }
        self.at(place, move |gpu, stream| gpu.launch(executable, stream));
        for index in indices {
            let Chunk { address, bytes, number, .. } = self.chunks[index];
            let deed = self.shadow.queued(address, bytes, place, number);
            self.at(place, move |gpu, stream| shadow::mark(*gpu, stream, deed));
        }
        self.say(|| format!("graph of {chunks:?} is launched on {place}"));
    }
}
