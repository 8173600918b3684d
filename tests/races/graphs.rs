//! Captures and their graphs, as far as both drivers have them in common.

use crate::driver::Driver;
use crate::world::World;
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode,
};

pub const MODES: [CUstreamCaptureMode; 3] =
    [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED];

/// A graph that may be launched.
pub struct Graph {
    pub executable: u64,
    /// The private pool. With the interposer there is none.
    pub name: u64,
    /// The stream on which it is launched. With the interposer it may be any.
    pub stream: usize,
    /// Addresses of chunks that were not freed in the capture. With the interposer, numbers of those that it reads.
    pub chunks: Vec<u64>,
}

impl<D: Driver> World<D> {
    pub fn act_on_graphs(&mut self) {
        match self.random.below(7) {
            0 | 1 if self.graphs.len() < 3 => D::capture(self),
            6 => self.end_graph(),
            _ if !self.graphs.is_empty() => D::launch(self),
            _ => {}
        }
    }

    pub fn some_mode(&mut self, usual: CUstreamCaptureMode) -> CUstreamCaptureMode {
        if self.kind.modes { MODES[self.random.index(3)] } else { usual }
    }

    /// Ends a capture, which must not be broken.
    pub fn end_capture(&mut self, place: usize) -> u64 {
        self.streams[place].capturing = None;
        let ended = self.at(place, |gpu, stream| gpu.try_end_capture(stream));
        ended.unwrap_or_else(|code| panic!("{}\nthe capture of {place} was broken: {code}", self.log()))
    }

    pub fn end_graph(&mut self) {
        if !self.graphs.is_empty() {
            let index = self.random.index(self.graphs.len());
            D::end_graph(self, index);
        }
    }

    pub fn end_graphs(&mut self) {
        while !self.graphs.is_empty() {
            self.end_graph();
        }
    }
}
