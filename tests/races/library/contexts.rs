//! Streams of several contexts: the primary one of the pool's device, one that the program has created there (of some
//! programs a green one), and that of another device, whose kernels and copies reach the pool's memory.

use super::world::{Chunk, Kind, World};
use crate::common::gpu::{Gpu, GreenContext};
use crate::common::ordered::{forget_stream, record_stream};
use crate::common::*;
use crate::shadow;

/// The contexts of a program.
pub struct Contexts {
    /// The pool's own context is first.
    all: Vec<u64>,
    /// For each except the first, a buffer of the program that copies write to.
    buffers: Vec<u64>,
    /// The green context of the one that the program has created, if it is one.
    green: Option<GreenContext>,
}

/// The indexes of the context that the program has created, and of another device's.
const CREATED: usize = 1;
const PEER: usize = 2;

/// The maximum part of a chunk that is copied.
const BUFFER: u64 = 64 << 10;

/// Each stream copies to a part of its own, because copies on two streams are unordered, even if one replaces the
/// other, which has ended with its work still queued. A program has fewer streams than this.
const STREAMS: u64 = 128;

impl Contexts {
    pub fn new(gpu: Gpu, primary: u64, kind: Kind, random: &mut Random) -> Contexts {
        let mut contexts = Contexts { all: vec![primary], buffers: vec![0], green: None };
        if !kind.contexts {
            return contexts;
        }
        let created = contexts.create(gpu, random);
        contexts.add(gpu, created);
        let peer = gpu.enter(1);
        gpu.enable_peer(primary);
        contexts.add(gpu, peer);
        gpu.set_current(primary);
        contexts
    }

    /// Creates the program's own context and makes it current.
    fn create(&mut self, gpu: Gpu, random: &mut Random) -> u64 {
        self.green = random.one_in(2).then(|| gpu.green_context(0));
        self.green.map_or_else(|| gpu.own_context(0), |green| green.context)
    }

    /// Destroys it while it is current.
    fn destroy(&self, gpu: Gpu) {
        match self.green {
            Some(green) => gpu.destroy_green_context(green),
            None => gpu.destroy_context(self.all[CREATED]),
        }
    }

    /// Makes the context current.
    fn add(&mut self, gpu: Gpu, context: u64) {
        self.all.push(context);
        self.buffers.push(gpu.alloc(BUFFER * STREAMS));
    }

    pub fn primary(&self) -> u64 {
        self.all[0]
    }

    /// Returns whether it belongs to a device other than the pool's.
    pub fn is_of_peer(&self, context: usize) -> bool {
        context == PEER
    }

    /// Destroys the context that the program has created, and creates another, possibly with its handle.
    fn renew(&mut self, gpu: Gpu, random: &mut Random) {
        gpu.set_current(self.all[CREATED]);
        // A green context shares the primary one's.
        gpu.free(self.buffers[CREATED]);
        self.destroy(gpu);
        self.all[CREATED] = self.create(gpu, random);
        self.buffers[CREATED] = gpu.alloc(BUFFER * STREAMS);
    }

    /// Returns one of them.
    pub fn any(&self, random: &mut Random) -> usize {
        if self.all.len() > 1 { random.index(self.all.len()) } else { 0 }
    }

    /// Makes one current, unless there is only one, which already is.
    pub fn set_current(&self, gpu: Gpu, context: usize) {
        if self.all.len() > 1 {
            gpu.set_current(self.all[context]);
        }
    }

    /// Destroys all except the first, which is then current.
    pub fn end(&self, gpu: Gpu) {
        for (&context, &buffer) in self.all.iter().zip(&self.buffers).skip(1) {
            gpu.set_current(context);
            gpu.free(buffer);
        }
        if self.all.len() > 1 {
            gpu.set_current(self.all[CREATED]);
            self.destroy(gpu);
            gpu.leave(1);
        }
        gpu.set_current(self.all[0]);
    }
}

impl World {
    /// Destroys the program's own context and its streams, after waiting for them. Memory allocated there stays live.
    pub fn end_context(&mut self) {
        if self.streams.iter().any(|stream| stream.capturing.is_some()) || !self.kind.defaults {
            return;
        }
        let of_it = |place: &usize| self.streams[*place].context == CREATED;
        let places: Vec<usize> = (0..self.streams.len()).filter(of_it).collect();
        let device = self.pool.device();
        // Work of streams that were destroyed may be queued too.
        self.contexts.set_current(self.gpu, CREATED);
        self.gpu.synchronize_context();
        for &place in &places {
            let is_used =
                |chunk: &Chunk| chunk.home == Some(place) && !chunk.moved || chunk.lent.contains(&place);
            let created = self.streams[place].created;
            let forgets = created || self.chunks.iter().any(is_used) || self.random.one_in(2);
            self.at(place, move |gpu, stream| {
                if forgets {
                    assert_eq!(forget_stream(device, stream), BFC_OK, "{}", last_error());
                }
                if created {
                    gpu.destroy_stream(stream);
                }
            });
            for chunk in &mut self.chunks {
                chunk.lent.retain(|&to| to != place);
                if chunk.home == Some(place) {
                    (chunk.home, chunk.moved) = (Some(0), true);
                }
            }
        }
        self.contexts.renew(self.gpu, &mut self.random);
        for place in places {
            self.streams[place].handle = 0;
            self.streams[place] = self.some_stream(place);
            self.at(place, |gpu, stream| gpu.hold(stream));
        }
        self.say(|| "the program's own context ends".to_owned());
    }

    /// Copies a chunk to another context's memory or device, on a stream of that context, which is recorded.
    pub fn copy(&mut self) {
        let foreign = |place: &usize| self.streams[*place].context != 0;
        let places: Vec<usize> = (0..self.streams.len()).filter(foreign).collect();
        let (false, Some(place)) = (places.is_empty(), self.any_chunk()) else { return };
        let to = places[self.random.index(places.len())];
        if self.streams[to].capturing.is_some() {
            return;
        }
        self.chunks[place].lent.push(to);
        let chunk = self.chunks[place].clone();
        self.order(chunk.home.unwrap_or(0), to);
        let context = self.streams[to].context;
        let (own, other) = (self.contexts.all[0], self.contexts.all[context]);
        let buffer = self.contexts.buffers[context] + self.streams[to].number % STREAMS * BUFFER;
        let (address, pattern) = (chunk.address, chunk.pattern);
        let bytes = chunk.bytes.min(BUFFER);
        let deed = self.shadow.queued(address, chunk.bytes, to, chunk.number);
        let device = self.pool.device();
        let status = self.at(to, move |gpu, stream| {
            gpu.copy(buffer, other, address, own, bytes, stream);
            gpu.expect(stream, buffer, bytes, pattern);
            shadow::mark(gpu, stream, deed);
            record_stream(device, address, stream)
        });
        assert_eq!(status, BFC_OK, "{}", last_error());
        self.say(|| format!("{} is copied on {to} to context {context}", chunk.number));
    }
}
