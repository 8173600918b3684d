//! Captures in the random programs: kernels that read chunks, and anything else that the program does meanwhile.
//! Nothing breaks a capture that the driver alone would leave valid.

use super::world::{Chunk, World};
use crate::shadow;
use cuda_sys::*;

/// A graph that reads chunks at each launch.
pub struct Graph {
    executable: u64,
    /// Numbers of chunks.
    chunks: Vec<u64>,
}

impl World {
    pub fn act_on_graphs(&mut self) {
        match self.random.below(6) {
            0 | 1 if self.graphs.len() < 3 => self.capture(),
            5 => self.end_graph(),
            _ => self.launch(),
        }
    }

    /// Captures kernels that read chunks, while other work continues.
    fn capture(&mut self) {
        let Some(place) = self.any_stream() else { return };
        if self.is_capturing() || !self.streams[place].created {
            return;
        }
        let mode = self.some_mode();
        if self.kind.modes && self.random.one_in(2) {
            // No work is pending, so a request may cause idle regions to be released.
            (0..self.random.below(4)).for_each(|_| self.free());
            self.at(place, |gpu, _| gpu.synchronize_context());
        }
        self.at(place, move |gpu, stream| gpu.begin_capture(stream, mode));
        self.streams[place].captured = true;
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
            if self.kind.peers || device == self.streams[place].device {
                let chunk = &mut self.chunks[index];
                chunk.graphs += 1;
                chunks.push(chunk.number);
                let Chunk { address, bytes, pattern, .. } = *chunk;
                self.at(place, move |gpu, stream| gpu.expect(stream, address, bytes, pattern));
                if self.random.one_in(3) {
                    // A copy by the driver, onto itself.
                    let context = self.contexts[device];
                    self.at(place, move |gpu, stream| {
                        gpu.copy(address, context, address, context, bytes, stream);
                    });
                }
            }
            if self.random.one_in(4) {
                self.capture_besides(mode);
            }
        }
        let ended = self.at(place, |gpu, stream| gpu.end_capture(stream));
        self.streams[place].captured = false;
        let executable =
            ended.unwrap_or_else(|code| panic!("{}\nthe capture was broken: {code}", self.log()));
        self.say(|| format!("stream {place} is captured no more: {chunks:?}"));
        self.graphs.push(Graph { executable, chunks });
    }

    /// A second capture during the first, as for conditional nodes.
    fn capture_besides(&mut self, mode: CUstreamCaptureMode) {
        let Some(place) = self.any_stream().filter(|&place| self.streams[place].created) else { return };
        self.at(place, move |gpu, stream| gpu.begin_capture(stream, mode));
        match self.at(place, |gpu, stream| gpu.end_capture(stream)) {
            Ok(executable) => self.gpu.destroy_graph(executable),
            Err(code) => panic!("{}\nthe second capture was broken: {code}", self.log()),
        }
    }

    /// A mode of capture.
    fn some_mode(&mut self) -> CUstreamCaptureMode {
        const MODES: [CUstreamCaptureMode; 3] = [
            CU_STREAM_CAPTURE_MODE_GLOBAL,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        if self.kind.modes { MODES[self.random.index(3)] } else { CU_STREAM_CAPTURE_MODE_RELAXED }
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

    fn launch(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let graph = self.random.index(self.graphs.len());
        let Some(place) = self.any_stream() else { return };
        let Graph { executable, ref chunks } = self.graphs[graph];
        let chunks = chunks.clone();
        let indices: Vec<usize> =
            (0..self.chunks.len()).filter(|&index| chunks.contains(&self.chunks[index].number)).collect();
        let device = self.streams[place].device;
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

    /// A graph is destroyed, possibly before its last launch has completed. The chunks that it reads may be freed
    /// afterwards.
    pub fn end_graph(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let graph = self.graphs.swap_remove(self.random.index(self.graphs.len()));
        self.gpu.destroy_graph(graph.executable);
        for number in &graph.chunks {
            if let Some(chunk) = self.chunks.iter_mut().find(|chunk| chunk.number == *number) {
                chunk.graphs -= 1;
            }
        }
        self.say(|| format!("graph of {:?} ends", graph.chunks));
    }
}
