//! Captured graphs in the random programs: their memory comes from private pools and belongs to them until these are
//! released, however often they are launched and whatever else is allocated and freed.

use super::Library;
use crate::common::adapters::{ORT_ON_STREAM, TORCH, begin_to_pool};
use crate::common::*;
use crate::graphs::Graph;
use crate::shadow::{self, Entry};
use crate::world::{Chunk, World};
use cuda_sys::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// PyTorch's name for a pool.
const TORCH_ID: (u64, u64) = (0, 1);

impl World<Library> {
    /// Captures some work with allocations of its own, while others continue.
    pub fn capture(&mut self) {
        if self.is_capturing() {
            return;
        }
        let Some(place) = self.any_stream() else { return };
        if self.kind.modes && self.random.one_in(3) {
            return self.capture_unannounced(place);
        }
        // The rest of a private pool waits for the pool's own context, so a graph is launched there.
        if self.streams[place].context != 0 {
            return;
        }
        // A second graph may use the first one's pool, because both are launched in the order of one stream.
        let shared = self.graphs.iter().find(|graph| graph.stream == place).map(|graph| graph.name);
        let name = shared.filter(|_| self.random.one_in(2)).unwrap_or_else(|| {
            self.names += 1;
            self.names
        });
        let (handle, gpu) = (self.streams[place].handle, self.gpu);
        assert_eq!(self.pool.begin_private(name, handle), BFC_OK, "{}", last_error());
        let mode = self.some_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
        gpu.begin_capture_in(handle, mode);
        self.streams[place].capturing = Some(name);
        self.say(|| format!("stream {place} is captured, private pool {name}"));
        let mut live: Vec<(u64, u64, u64)> = Vec::new();
        let mut entries = Vec::new();
        for _ in 0..self.random.between(1, 8) {
            match self.random.below(4) {
                0 | 1 => live.extend(self.allocate_captured(handle, place, name, &mut entries)),
                2 if !live.is_empty() => {
                    let (address, bytes, pattern) = live.swap_remove(self.random.index(live.len()));
                    gpu.expect(handle, address, bytes, pattern);
                    self.pool.put_on(address, handle);
                }
                _ => self.act(),
            }
        }
        for &(address, bytes, pattern) in &live {
            gpu.expect(handle, address, bytes, pattern);
        }
        let executable = self.end_capture(place);
        assert_eq!(self.pool.end_private(name, handle), BFC_OK, "{}", last_error());
        let chunks = live.into_iter().map(|(address, ..)| address).collect();
        self.graphs.push(Graph { executable, name, stream: place, chunks });
        // Work queued on that memory before must have completed when the graph begins: on this stream, because in
        // a capture nothing can wait.
        entries.into_iter().for_each(|entry| entry.look(*gpu, handle));
        self.launch();
    }

    /// Captures a stream without `bfc_pool_begin`: the library learns of the capture in one of the other
    /// ways. The captured work uses no memory of the allocator.
    fn capture_unannounced(&mut self, place: usize) {
        let (gpu, handle, device) = (self.gpu, self.streams[place].handle, 0);
        let way = self.random.below(4);
        // Otherwise memory in use shows that the stream exists.
        let is_of = |chunk: &Chunk| way != 0 && chunk.users.contains(&place);
        while let Some(index) = self.chunks.iter().position(is_of) {
            self.free_at(index);
        }
        let in_use = if way == 0 { alloc_async(device, 1, handle) } else { Ok(0) };
        let Ok(in_use) = in_use else { return };
        if way == 1 {
            begin_to_pool(TORCH_ID, handle);
        }
        let mode = self.some_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
        gpu.begin_capture_in(handle, mode);
        self.streams[place].capturing = Some(0);
        self.say(|| format!("stream {place} is captured in mode {mode}, known in way {way}"));
        let mut of_ort = 0;
        match way {
            0 => {}
            // A temporary allocation that is already freed.
            1 => (TORCH.free)((TORCH.alloc)(1, handle), handle),
            2 => of_ort = (ORT_ON_STREAM.alloc)(1, handle),
            _ => assert_eq!(alloc_async(device, 1 << 40, handle), Err(BFC_ERROR_OUT_OF_MEMORY)),
        }
        if self.random.one_in(2) {
            (ORT_ON_STREAM.free)(std::mem::take(&mut of_ort), handle);
        }
        (0..self.random.between(1, 8)).for_each(|_| self.act());
        if self.random.one_in(2) {
            self.trim();
        }
        let executable = self.end_capture(place);
        gpu.destroy_graph(executable);
        assert_eq!(free_async(device, in_use, handle), BFC_OK);
        (ORT_ON_STREAM.free)(of_ort, handle);
        match way {
            1 => {
                bfc_torch_end_allocate_to_pool(device, TORCH_ID.0, TORCH_ID.1);
                bfc_torch_release_pool(device, TORCH_ID.0, TORCH_ID.1);
            }
            // There is none if the request was refused.
            2 => _ = bfc_pool_release(device, BFC_POOL_OF_CAPTURES),
            _ => {}
        }
        self.say(|| format!("stream {place} is captured no more"));
    }

    fn allocate_captured(
        &mut self,
        handle: u64,
        place: usize,
        name: u64,
        entries: &mut Vec<Entry>,
    ) -> Option<(u64, u64, u64)> {
        let bytes = self.random.between(1, if self.kind.granules { MIB } else { 3000 });
        let address = self.pool.alloc_on(bytes, handle).ok()?;
        let bytes = self.pool.allocated_size(address).expect("live");
        let pattern = self.random.bits();
        entries.push(self.shadow.allocated(address, bytes, place, name));
        self.shadow.reserve(address, bytes, name);
        self.gpu.fill(handle, address, bytes, pattern);
        Some((address, bytes, pattern))
    }

    pub fn launch(&mut self) {
        let place = self.random.index(self.graphs.len());
        let Graph { executable, name, stream, .. } = self.graphs[place];
        if self.streams[stream].capturing.is_some() {
            return;
        }
        let handle = self.streams[stream].handle;
        self.gpu.launch(executable, handle);
        for (start, bytes) in self.shadow.reserved(name) {
            let deed = self.shadow.queued(start, bytes, stream, 0);
            shadow::mark(*self.gpu, handle, deed);
        }
        self.say(|| format!("graph in private pool {name} is launched on {stream}"));
    }

    /// Destroys a graph, and with the last of its pool the pool.
    pub fn destroy_graph(&mut self, index: usize) {
        if self.streams[self.graphs[index].stream].capturing.is_some() {
            return;
        }
        let Graph { executable, name, stream, chunks } = self.graphs.swap_remove(index);
        let handle = self.streams[stream].handle;
        self.gpu.destroy_graph(executable);
        // After the launches, on their stream.
        chunks.into_iter().for_each(|address| self.pool.put_on(address, handle));
        if self.graphs.iter().any(|graph| graph.name == name) {
            return;
        }
        // While another stream is captured, a program may not wait for any.
        if !self.is_capturing() && self.random.one_in(2) {
            self.gpu.synchronize(handle);
        }
        assert_eq!(self.pool.release_private(name), BFC_OK, "{}", last_error());
        self.shadow.released(name);
        self.say(|| format!("private pool {name} is released"));
    }
}
