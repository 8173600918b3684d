//! A random program under the interposer: cudaMalloc, work on several held streams, cudaFree while that work is queued.
//!
//! Memory of cudaMalloc may be used by any stream at once, and cudaFree comes after all work that was queued until
//! then, on any stream, and on any device that may touch the memory. So at each allocation the [shadow](super::shadow)
//! checks whether any such work is pending. Kernels fill and read the memory too, so that memory that is reused too
//! early is also detected by its contents.

use super::Kind;
use super::graphs::Graph;
use super::others::Other;
use crate::common::Random;
use crate::common::gpu::{Gpu, GreenContext, LEGACY, PER_THREAD};
use crate::common::hooked::Hooked;
use crate::shadow::{self, Shadow};
use crate::worker::Worker;
use cuda_sys::*;

pub struct Stream {
    pub handle: u64,
    pub device: usize,
    /// It belongs to the program's own context on the first device.
    pub is_foreign: bool,
    pub worker: Option<Worker>,
    /// It may be destroyed.
    pub created: bool,
    pub captured: bool,
}

#[derive(Clone)]
pub struct Chunk {
    pub address: u64,
    pub bytes: u64,
    pub pattern: u64,
    pub number: u64,
    pub device: usize,
    /// Streams with work on it. The first has filled it.
    pub users: Vec<usize>,
    /// It was allocated in the order of the first.
    pub ordered: bool,
    /// The number of graphs with kernels that read it.
    pub graphs: u32,
}

/// The coverage of the tests.
#[derive(Default)]
pub struct Seen {
    /// Memory was reused.
    pub again: u64,
    /// Memory was handed out while work was pending on freed memory that was large enough.
    pub tempted: u64,
    pub refused: u64,
    /// Allocations that are not pooled, and those that were refused for lack of memory.
    pub others: u64,
    pub without_room: u64,
    /// cudaFree during a capture that the interposer cannot serve then.
    pub put_off: u64,
    /// Receives whose sends were judged.
    pub receives: u64,
    /// Deadlocks: waits for a receive whose send is ordered after the wait.
    pub deadlocks: u64,
}

pub struct World {
    pub gpu: Hooked,
    pub kind: Kind,
    pub random: Random,
    pub contexts: Vec<u64>,
    /// The program's own context on the first device. 0 is none.
    pub foreign: u64,
    /// The green context of that one, if it is one.
    green: Option<GreenContext>,
    pub streams: Vec<Stream>,
    pub chunks: Vec<Chunk>,
    pub graphs: Vec<Graph>,
    pub others: Vec<Other>,
    pub shadow: Shadow,
    /// Memory freed recently: address, bytes.
    pub freed: Vec<(u64, u64)>,
    pub seen: Seen,
    log: Vec<String>,
}

impl World {
    pub fn new(gpu: Hooked, kind: Kind, seed: u64) -> World {
        let mut world = World {
            gpu,
            kind,
            random: Random::new(seed),
            contexts: Vec::new(),
            foreign: 0,
            green: None,
            streams: Vec::new(),
            chunks: Vec::new(),
            graphs: Vec::new(),
            others: Vec::new(),
            shadow: Shadow::default(),
            freed: Vec::new(),
            seen: Seen::default(),
            log: vec![format!("seed {seed:#x}")],
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let (gpu, own) = (self.gpu, self.kind.own_context);
        let enter = |device: usize| match device {
            1 if own => gpu.create_context(1),
            device => gpu.enter(device as i32),
        };
        self.contexts = (0..self.kind.devices).map(enter).collect();
        if self.kind.foreign {
            self.green = self.random.one_in(2).then(|| gpu.green_context(0));
            self.foreign = self.green.map_or_else(|| gpu.create_context(0), |green| green.context);
        }
        if self.kind.peers {
            for (&own, &other) in self.contexts.iter().zip(self.contexts.iter().rev()) {
                self.gpu.set_current(own);
                self.gpu.enable_peer(other);
            }
        }
        for place in 0..self.random.between(2, 4) as usize + self.kind.devices - 1 {
            let stream = self.some_stream(place, place % self.kind.devices);
            self.streams.push(stream);
            self.at(place, |gpu, stream| gpu.hold(stream));
        }
        if self.kind.receives {
            // Memory freed while the pool knows only one stream has no event of that time.
            let count = self.streams.len();
            let allocate =
                |place| self.at(place, |gpu, stream| gpu.alloc_async(1, stream).expect("the pool is empty"));
            let chunks: Vec<u64> = (0..count).map(allocate).collect();
            for (place, address) in chunks.into_iter().enumerate() {
                self.at(place, move |gpu, stream| assert_eq!(gpu.free_async(address, stream), Ok(())));
            }
        }
    }

    fn some_stream(&mut self, place: usize, device: usize) -> Stream {
        let is_foreign = self.kind.foreign && place != 0 && self.random.one_in(2);
        let (gpu, context) = (*self.gpu, if is_foreign { self.foreign } else { self.contexts[device] });
        gpu.set_current(context);
        // The default streams wait for each other, and for the blocking ones: after a receive this is the program's.
        let may_block = !self.kind.receives;
        let (handle, worker, created) = if self.kind.legacy {
            if place == 0 { (LEGACY, None, false) } else { (gpu.stream(true), None, true) }
        } else if self.kind.threads && place != 0 {
            (PER_THREAD, Some(Worker::start(gpu, context)), false)
        } else if !self.kind.graphs && may_block && !is_foreign && place == 1 && self.random.one_in(4) {
            (LEGACY, None, false)
        } else {
            (gpu.stream(may_block && self.random.one_in(3)), None, true)
        };
        Stream { handle, device, is_foreign, worker, created, captured: false }
    }

    /// Runs work with a stream, on its thread and in its context.
    pub fn at<T: Send + 'static>(
        &self,
        place: usize,
        work: impl FnOnce(Hooked, u64) -> T + Send + 'static,
    ) -> T {
        let (gpu, Stream { handle, worker, device, is_foreign, .. }) = (self.gpu, &self.streams[place]);
        let handle = *handle;
        match worker {
            Some(worker) => worker.run(move || work(gpu, handle)),
            None => {
                gpu.set_current(if *is_foreign { self.foreign } else { self.contexts[*device] });
                work(gpu, handle)
            }
        }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        self.log.push(words());
    }

    /// Returns the log, to explain a failure.
    pub fn log(&self) -> String {
        self.log.join("\n")
    }

    pub fn is_capturing(&self) -> bool {
        self.streams.iter().any(|stream| stream.captured)
    }

    /// Orders a stream's later work after another stream's work so far, with events, as in a program.
    pub fn order(&self, before: usize, after: usize) {
        if before != after {
            let event = self.at(before, |gpu, stream| gpu.recorded(stream));
            self.at(after, move |gpu, stream| gpu.wait(stream, event));
            self.gpu.destroy_event(event);
        }
    }

    /// Returns a stream that is not captured.
    pub fn any_stream(&mut self) -> Option<usize> {
        let place = self.random.index(self.streams.len());
        (!self.streams[place].captured).then_some(place)
    }

    pub fn any_chunk(&mut self) -> Option<usize> {
        (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))
    }

    /// Runs a random step.
    pub fn act(&mut self) {
        match self.random.below(100) {
            0..34 => self.allocate(),
            34..60 => self.free(),
            60..72 => self.step(),
            72..82 => self.read(),
            82..84 if !self.kind.receives => self.end_stream(),
            84..88 if self.kind.copies => self.copy(),
            82..90 if self.kind.receives => self.receive(),
            84..94 if self.kind.graphs => self.act_on_graphs(),
            94..96 => self.synchronize(),
            96..98 if self.kind.others => self.act_on_others(),
            _ => self.read(),
        }
    }

    pub fn some_bytes(&mut self) -> u64 {
        let most = self.kind.sizes[self.random.index(3)];
        self.random.between(1, most)
    }

    pub fn allocate(&mut self) {
        let (Some(place), bytes) = (self.any_stream(), self.some_bytes()) else { return };
        let place = if self.kind.legacy { 0 } else { place };
        // The pinned pool belongs to one device, and a context of the program's own has none.
        if self.kind.pinned && self.streams[place].device != 0 || self.streams[place].is_foreign {
            return;
        }
        let ordered = self.kind.is_async && (self.kind.legacy || self.random.one_in(2));
        let pinned = self.kind.pinned;
        let got = self.at(place, move |gpu, stream| match ordered {
            true => gpu.alloc_async(bytes, stream),
            false if pinned => gpu.alloc_host(bytes),
            false => gpu.alloc(bytes),
        });
        match got {
            Ok(address) => self.enter(address, bytes, place, ordered),
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                self.seen.refused += 1;
                self.say(|| format!("{bytes} bytes: refused"));
            }
            Err(code) => {
                panic!("{}\n{bytes} bytes: {code}; {:#?}", self.log(), self.gpu.sim.misuse_texts())
            }
        }
    }

    /// Checks new memory, and fills it.
    pub fn enter(&mut self, address: u64, bytes: u64, place: usize, ordered: bool) {
        let touches = |&(at, size): &(u64, u64)| at < address + bytes && address < at + size;
        self.seen.again += u64::from(self.freed.iter().any(touches));
        let tempts = |&(at, size): &(u64, u64)| size >= bytes && self.shadow.undone(at, size) != 0;
        self.seen.tempted += u64::from(self.freed.iter().any(tempts));
        self.freed.retain(|range| !touches(range));
        let entry = self.shadow.allocated(address, bytes, place, 0);
        let (number, pattern) = (entry.number, self.random.bits());
        // Work of blocking streams comes after that of the legacy stream, and so may use memory allocated there.
        let place = if self.kind.legacy { self.random.index(self.streams.len()) } else { place };
        if ordered {
            self.at(place, move |gpu, stream| entry.look(*gpu, stream));
        } else {
            entry.look_now();
        }
        let device = self.streams[place].device;
        // Plain memory may be used on a stream other than that of its request.
        let place = if ordered { place } else { self.reaching(device).unwrap_or(place) };
        self.say(|| format!("{number}: {bytes} at {address:#x}, filled on {place}, ordered: {ordered}"));
        let chunk = Chunk { address, bytes, pattern, number, device, users: vec![place], ordered, graphs: 0 };
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            gpu.fill(stream, address, bytes, pattern);
            shadow::mark(*gpu, stream, deed);
        });
        self.chunks.push(chunk);
    }

    /// Returns a stream whose work may touch memory of a device.
    fn reaching(&mut self, device: usize) -> Option<usize> {
        let place = self.any_stream()?;
        (self.kind.peers || self.kind.pinned || self.streams[place].device == device).then_some(place)
    }

    /// Queues a kernel that reads a chunk, after its filling.
    pub fn read(&mut self) {
        let Some(index) = self.any_chunk() else { return };
        let device = self.chunks[index].device;
        if let Some(place) = self.reaching(device) {
            self.read_on(index, place);
        }
    }

    /// Returns whether the program can wait for streams.
    pub fn may_order(&self, before: usize, after: usize) -> bool {
        before == after || !(self.streams[before].captured || self.streams[after].captured)
    }

    fn read_on(&mut self, index: usize, place: usize) {
        let filler = self.chunks[index].users[0];
        if !self.may_order(filler, place) {
            return;
        }
        self.order(filler, place);
        if !self.chunks[index].users.contains(&place) {
            self.chunks[index].users.push(place);
        }
        let Chunk { address, bytes, pattern, number, .. } = self.chunks[index];
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            gpu.expect(stream, address, bytes, pattern);
            shadow::mark(*gpu, stream, deed);
        });
        self.say(|| format!("{number} is read on {place}"));
    }

    /// Copies between memory of different devices, which need not be peers, on a stream of either.
    fn copy(&mut self) {
        let (Some(from), Some(to), Some(place)) = (self.any_chunk(), self.any_chunk(), self.any_stream())
        else {
            return;
        };
        let (source, target) = (self.chunks[from].clone(), self.chunks[to].clone());
        let is_used = target.graphs != 0 || target.users.iter().any(|&user| !self.may_order(user, place));
        if from == to || is_used || !self.may_order(source.users[0], place) || source.device == target.device
        {
            return;
        }
        self.order(source.users[0], place);
        // Earlier reads have completed, and later ones find the copy.
        target.users.iter().for_each(|&user| self.order(user, place));
        let bytes = source.bytes.min(target.bytes);
        let deeds = [(from, &source), (to, &target)].map(|(index, chunk)| {
            self.chunks[index].users.push(place);
            self.shadow.queued(chunk.address, chunk.bytes, place, chunk.number)
        });
        // The rest of it is filled again.
        self.chunks[to].pattern = source.pattern;
        self.chunks[to].users = vec![place];
        self.chunks[to].bytes = bytes;
        let contexts = [target.device, source.device].map(|device| self.contexts[device]);
        self.at(place, move |gpu, stream| {
            gpu.copy(target.address, contexts[0], source.address, contexts[1], bytes, stream);
            deeds.into_iter().for_each(|deed| shadow::mark(*gpu, stream, deed));
        });
        self.say(|| format!("{} is copied to {} on {place}", source.number, target.number));
    }

    pub fn free(&mut self) {
        if let Some(index) = self.any_chunk().filter(|&index| self.chunks[index].graphs == 0) {
            self.free_at(index);
        }
    }

    fn free_at(&mut self, index: usize) {
        let chunk = self.chunks[index].clone();
        let foreign = self.streams.iter().position(|stream| stream.is_foreign && !stream.captured);
        let foreign = foreign.filter(|_| self.kind.foreign && self.random.one_in(2));
        let on = foreign.or_else(|| self.any_stream()).filter(|_| !self.kind.legacy).unwrap_or(0);
        let ordered = self.kind.is_async && (self.kind.legacy || !self.random.one_in(3))
            // Its stream cannot belong to another device.
            && self.streams[on].device == chunk.device
            && chunk.users.iter().all(|&user| self.may_order(user, on))
            && !self.streams[on].captured;
        if ordered && !self.kind.legacy {
            chunk.users.iter().for_each(|&user| self.order(user, on));
        } else if !ordered && (chunk.ordered || self.is_own(chunk.device)) && !self.finish(&chunk) {
            return;
        }
        let (address, pinned) = (chunk.address, self.kind.pinned);
        let code = self.at(on, move |gpu, stream| match ordered {
            true => gpu.free_async(address, stream),
            false if pinned => gpu.free_host(address),
            false => gpu.free(address),
        });
        self.say(|| format!("free {} on {on}, ordered: {ordered}: {code:?}", chunk.number));
        match code {
            Ok(()) => {}
            // A capture does not permit waiting for the work.
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) if self.kind.is_async && self.is_capturing() => {
                self.seen.put_off += 1;
                return;
            }
            Err(code) => panic!("{}\nfree {}: {code}", self.log(), chunk.number),
        }
        self.chunks.swap_remove(index);
        self.freed.push((address, chunk.bytes));
        if self.kind.is_sync && !self.is_capturing() && !ordered {
            let undone = self.shadow.undone(0, u64::MAX);
            assert_eq!(undone, 0, "{}\ncudaFree has not waited for all work", self.log());
        }
    }

    /// Returns whether a device's memory is not pooled.
    fn is_own(&self, device: usize) -> bool {
        self.kind.own_context && device == 1
    }

    /// cudaFree of memory that was allocated in the order of a stream does not wait, and that of the driver's own
    /// memory not for other devices, so the program waits. Returns whether it may.
    fn finish(&mut self, chunk: &Chunk) -> bool {
        if self.is_capturing() {
            return false;
        }
        for &user in &chunk.users {
            self.at(user, |gpu, stream| gpu.synchronize(stream));
        }
        true
    }

    pub fn step(&mut self) {
        let place = self.random.index(self.streams.len());
        let items = self.random.between(1, 6);
        let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
        self.say(|| format!("stream {place} does {ran}"));
    }

    /// Waits for a stream, or for a device.
    fn synchronize(&mut self) {
        if self.is_capturing() {
            return;
        }
        let (place, all) = (self.random.index(self.streams.len()), self.random.one_in(3));
        self.at(
            place,
            move |gpu, stream| if all { gpu.synchronize_context() } else { gpu.synchronize(stream) },
        );
        self.say(|| format!("stream {place} is synchronised, with its device: {all}"));
    }

    /// Destroys a stream with its work still queued, and replaces it by another, possibly with its handle.
    fn end_stream(&mut self) {
        let place = self.random.index(self.streams.len());
        let Stream { created, device, ref worker, .. } = self.streams[place];
        // Later reads must come after the fills there.
        let is_filler = |chunk: &Chunk| chunk.users.contains(&place);
        if self.is_capturing() || !(created || worker.is_some()) {
            return;
        }
        let heir = (0..self.streams.len()).find(|&heir| heir != place && self.streams[heir].device == device);
        let Some(heir) = heir else { return };
        self.order(place, heir);
        for chunk in self.chunks.iter_mut().filter(|chunk| is_filler(chunk)) {
            chunk.users.iter_mut().filter(|user| **user == place).for_each(|user| *user = heir);
        }
        if created {
            self.at(place, |gpu, stream| gpu.destroy_stream(stream));
        }
        self.say(|| format!("stream {place} ends, {heir} goes on"));
        self.streams[place] = self.some_stream(place, device);
        self.at(place, |gpu, stream| gpu.hold(stream));
    }

    /// Runs all work, in some order, as far as possible.
    fn drain(&mut self) {
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

    /// Runs all work, and makes the driver's own pools release their memory.
    fn finish_all(&mut self) {
        self.drain();
        for &context in self.contexts.iter().chain(Some(&self.foreign).filter(|foreign| **foreign != 0)) {
            self.gpu.set_current(context);
            self.gpu.synchronize_context();
        }
    }

    /// Resets all devices: everything is gone, and the program begins again.
    pub fn reset(&mut self) {
        while !self.graphs.is_empty() {
            self.end_graph();
        }
        // Memory of cudaMallocAsync may belong to the driver, which no reset frees.
        while let Some(index) = self.chunks.iter().position(|chunk| chunk.ordered) {
            self.free_at(index);
        }
        self.end_others();
        self.finish_all();
        self.streams.clear();
        for device in 0..self.contexts.len() {
            self.gpu.reset(device as i32);
        }
        // Its references to the contexts are as they were.
        for device in 0..self.contexts.len() {
            self.gpu.leave(device as i32);
        }
        self.chunks.clear();
        self.graphs.clear();
        self.freed.clear();
        self.shadow.forget();
        self.say(|| "the devices are reset".to_owned());
        self.begin();
    }

    /// Ends the program, in one of several ways.
    pub fn end(&mut self) {
        while !self.graphs.is_empty() {
            self.end_graph();
        }
        if self.random.one_in(2) {
            self.drain();
        }
        while let Some(index) = self.any_chunk() {
            self.free_at(index);
        }
        self.finish_all();
        if self.kind.others {
            self.has_room();
        }
        for place in 0..self.streams.len() {
            if self.streams[place].created {
                self.at(place, |gpu, stream| gpu.destroy_stream(stream));
            }
        }
        self.streams.clear();
        match self.green {
            Some(green) => self.gpu.destroy_green_context(green),
            None if self.kind.foreign => self.gpu.destroy_context(self.foreign),
            None => {}
        }
        for device in 0..self.contexts.len() {
            match self.is_own(device) {
                true => self.gpu.destroy_context(self.contexts[device]),
                false => self.gpu.leave(device as i32),
            }
        }
    }
}

/// Returns the races, mismatches and misuses so far.
pub fn troubles(gpu: &Gpu) -> (u64, u64, u64) {
    (shadow::races().0, gpu.sim.mismatches(), gpu.sim.misuses())
}
