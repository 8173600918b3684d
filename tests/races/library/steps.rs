//! The steps of a random program that uses the library's C functions.
//!
//! A chunk is read on its own stream, on others that were recorded, and on the one that frees it.

use super::Library;
use crate::common::granules::enough;
use crate::common::ordered::*;
use crate::common::simcuda::steer::{EVENTS_LIE, RECYCLE_HANDLES};
use crate::common::*;
use crate::contexts::BUFFER;
use crate::shadow;
use crate::world::{Chunk, World};
use cuda_sys::CUDA_ERROR_UNKNOWN;

/// Calls of the driver that may fail: those about pending work, and growth.
const FAILING: [&str; 9] = [
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAlloc",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
];

impl World<Library> {
    /// Makes a call of the library, in which a call of the driver may be made to fail. Returns its result, and whether
    /// one failed. The number of calls of the driver is limited.
    fn call<T>(&mut self, call: impl FnOnce(&Self) -> T) -> (T, bool) {
        let sim = self.gpu.sim;
        if self.kind.fails && self.random.one_in(2) {
            let function = FAILING[self.random.index(FAILING.len())];
            sim.fail(Some(function), self.random.between(1, 2), CUDA_ERROR_UNKNOWN);
        }
        let (calls, struck) = (sim.all_calls(), sim.struck());
        let result = call(self);
        let (calls, has_failed) = (sim.all_calls() - calls, sim.struck() != struck);
        if self.kind.fails {
            sim.clear_faults();
        }
        self.seen.failed += u64::from(has_failed);
        // In each search, each queue has an event recorded, queried and waited for, and some older ones queried.
        assert!(calls <= 40 + 30 * self.streams_so_far(), "{}\n{calls} calls of the driver", self.log());
        (result, has_failed)
    }

    /// Returns the index of a chunk whose stream is not captured.
    fn chunk_at_rest(&mut self) -> Option<usize> {
        let index = self.any_chunk()?;
        self.streams[self.chunks[index].users[0]].capturing.is_none().then_some(index)
    }

    pub fn act(&mut self) {
        match self.random.below(100) {
            0..38 => self.allocate(),
            38..62 => self.free(),
            62..66 if self.kind.graphs => self.act_on_graphs(),
            62..80 => self.step(),
            80..86 if self.kind.records => self.lend(),
            86..88 if self.kind.ends => self.end_stream(),
            88..92 if self.kind.plain => self.allocate_plain(),
            80..92 if self.kind.graphs => self.act_on_graphs(),
            92..94 => self.synchronize_and_vouch(),
            94 if self.random.one_in(4) => self.trim(),
            95..97 if self.kind.foreign => self.copy(),
            97 if self.kind.defaults && self.kind.ends => self.end_context(),
            95..98 if self.kind.receives => self.receive(),
            _ => self.read(),
        }
    }

    fn allocate(&mut self) {
        let Some(place) = self.any_stream() else { return };
        self.allocate_on(place);
    }

    fn allocate_on(&mut self, place: usize) {
        // Memory allocated on another device's default stream is safe on that of the pool's own context.
        if !self.streams[place].created && self.contexts.device(self.streams[place].context) != 0 {
            return;
        }
        let bytes = self.some_bytes();
        self.gpu.sim.set(EVENTS_LIE, i64::from(self.kind.lies));
        let call = move |_, stream| alloc_async(0, bytes as usize, stream);
        let (got, has_failed) = self.call(|world| world.at(place, call));
        self.gpu.sim.set(EVENTS_LIE, 0);
        self.take(got, bytes, place, true, has_failed);
    }

    /// Without a stream: the caller keeps to one stream, the first.
    fn allocate_plain(&mut self) {
        if self.streams[0].capturing.is_some() {
            return;
        }
        let bytes = self.some_bytes();
        let (got, has_failed) = self.call(|world| world.pool.alloc(bytes));
        self.take(got, bytes, 0, false, has_failed);
    }

    fn take(&mut self, got: Result<u64, Status>, bytes: u64, place: usize, ordered: bool, has_failed: bool) {
        let status = match got {
            Ok(address) => return self.enter(address, bytes, place, ordered),
            Err(status) => status,
        };
        let may_fail = has_failed && status == BFC_ERROR_BACKEND_FAILED;
        assert!(status == BFC_ERROR_OUT_OF_MEMORY || may_fail, "{status}: {}", last_error());
        self.seen.refused += 1;
        // Whichever stream the memory belongs to, because the request waited for the device. During a capture it may not
        // wait, graphs keep some granules, and memory without an event may be that of any context.
        let kind = self.kind;
        let is_kept = kind.fails || kind.granules && kind.graphs || kind.foreign && kind.graphs;
        let fits = || if kind.granules { enough(&self.pool, bytes) } else { self.fits(bytes) };
        if !self.is_capturing() && !is_kept && fits() {
            panic!("{}\n{bytes} bytes are refused: {}", self.log(), self.pool.memory_map());
        }
        self.say(|| format!("{bytes} bytes: refused"));
    }

    /// Returns whether there is room for a request: between what is in use, or belongs to a graph, or below the limit.
    fn fits(&self, bytes: u64) -> bool {
        let map: serde_json::Value = serde_json::from_str(&self.pool.memory_map()).expect("JSON");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();
        let is_kept = |chunk: &serde_json::Value| chunk["state"] == "in_use" || chunk.get("pool").is_some();
        let mut regions = list(&map["regions"]).into_iter();
        let room = number(&map["stats"]["bytes_limit"]) - number(&map["stats"]["pool_bytes"]);
        room >= rounded(bytes)
            || regions.any(|region| {
                let chunks = list(&region["chunks"]);
                let free =
                    chunks.split(is_kept).map(|run| run.iter().map(|chunk| number(&chunk["size"])).sum());
                free.max() >= Some(rounded(bytes))
            })
    }

    fn read(&mut self) {
        let Some(index) = self.chunk_at_rest() else { return };
        let chunk = self.chunks[index].clone();
        // Work unknown to the library, once the stream that it knows no longer exists.
        if !chunk.moved {
            self.read_on(&chunk, chunk.users[0]);
        }
    }

    /// Reads a chunk on another stream too.
    fn lend(&mut self) {
        let (Some(index), Some(to)) = (self.chunk_at_rest(), self.any_stream()) else { return };
        self.chunks[index].users.push(to);
        let chunk = self.chunks[index].clone();
        self.order(chunk.users[0], to);
        // Before or after the work, because the work queued by the time of the free counts.
        let early = self.random.one_in(2);
        if !early {
            self.read_on(&chunk, to);
        }
        let status = self.at(to, move |_, stream| record_stream(0, chunk.address, stream));
        assert_eq!(status, BFC_OK, "{}", last_error());
        if early {
            self.read_on(&chunk, to);
        }
        self.say(|| format!("{} also used on {to}", chunk.number));
    }

    /// Copies a chunk to another context's memory or device, on a stream of that context, which is recorded.
    fn copy(&mut self) {
        let foreign = |place: &usize| self.streams[*place].context != 0;
        let places: Vec<usize> = (0..self.streams.len()).filter(foreign).collect();
        let (false, Some(index)) = (places.is_empty(), self.chunk_at_rest()) else { return };
        let to = places[self.random.index(places.len())];
        if self.streams[to].capturing.is_some() {
            return;
        }
        self.chunks[index].users.push(to);
        let chunk = self.chunks[index].clone();
        self.order(chunk.users[0], to);
        let context = self.streams[to].context;
        let (own, other) = (self.contexts.handle(0), self.contexts.handle(context));
        let buffer = self.contexts.buffer(context, self.streams[to].number);
        let (address, pattern, bytes) = (chunk.address, chunk.pattern, chunk.bytes.min(BUFFER));
        let deed = self.shadow.queued(address, chunk.bytes, to, chunk.number);
        let status = self.at(to, move |gpu, stream| {
            gpu.copy(buffer, other, address, own, bytes, stream);
            gpu.expect(stream, buffer, bytes, pattern);
            shadow::mark(*gpu, stream, deed);
            record_stream(0, address, stream)
        });
        assert_eq!(status, BFC_OK, "{}", last_error());
        self.say(|| format!("{} is copied on {to} to context {context}", chunk.number));
    }

    fn free(&mut self) {
        let Some(index) = self.chunk_at_rest() else { return };
        self.free_at(index);
    }

    pub fn free_at(&mut self, index: usize) {
        let chunk = self.chunks.swap_remove(index);
        let (address, home) = (chunk.address, chunk.users[0]);
        if !chunk.ordered {
            self.read_on(&chunk, home);
            self.say(|| format!("free {}", chunk.number));
            // On the first stream, which comes after all its work, or without a stream.
            return match self.random.one_in(3) {
                true => self.put_on(address, home),
                false => self.put(address),
            };
        }
        if chunk.moved && self.random.one_in(2) {
            self.say(|| format!("free {} of a stream that has ended", chunk.number));
            return self.put(address);
        }
        let elsewhere = self.any_stream().filter(|_| self.random.one_in(4));
        let on = elsewhere.unwrap_or(home);
        self.order(home, on);
        self.read_on(&chunk, on);
        let plain = on == home && !chunk.moved && self.random.one_in(3);
        self.say(|| format!("free {} on {on}, plain: {plain}", chunk.number));
        match plain {
            // From any thread: it is a free on the stream of the allocation. But only a thread itself can record its own
            // stream's events, so there it waits for a synchronization.
            true => self.put(address),
            false => self.put_on(address, on),
        }
    }

    /// A free never fails, whatever the driver does.
    fn put(&mut self, address: u64) {
        self.call(|world| world.pool.put(address));
    }

    fn put_on(&mut self, address: u64, place: usize) {
        let (status, _) = self.call(|world| world.at(place, move |_, stream| free_async(0, address, stream)));
        assert_eq!(status, BFC_OK, "{}", last_error());
    }

    fn synchronize_and_vouch(&mut self) {
        let Some(place) = self.synchronize().filter(|_| self.random.one_in(2)) else { return };
        let status = self.at(place, |gpu, stream| {
            gpu.synchronize(stream);
            stream_synchronized(0, stream)
        });
        assert_eq!(status, BFC_OK, "{}", last_error());
    }

    pub fn trim(&mut self) {
        let keep = self.random.below(if self.kind.granules { 24 << 20 } else { 64 << 10 });
        let (trimmed, has_failed) = self.call(|world| world.pool.try_trim(keep));
        let may_fail = (self.is_capturing() || has_failed) && trimmed == Err(BFC_ERROR_BACKEND_FAILED);
        assert!(trimmed.is_ok() || may_fail, "{}", last_error());
        self.say(|| format!("trim to {keep}: {trimmed:?}"));
    }

    /// Destroys a stream with its work still queued, and replaces it by another, possibly with its handle.
    fn end_stream(&mut self) {
        let Some(place) = self.any_stream() else { return };
        let (forgets, created) = (!self.kind.unforgotten, self.streams[place].created);
        // Without bfc_forget_stream, no live memory was allocated there or recorded for it.
        let is_used = self.chunks.iter().any(|chunk| chunk.users.contains(&place));
        if !created && self.streams[place].worker.is_none() || !forgets && (!created || is_used) {
            return;
        }
        // The first belongs to the plain calls, which rely on its order. Live memory there is used elsewhere.
        let (heir, of_plain) = ((place + 1) % self.streams.len(), place == 0 && self.kind.plain);
        let of_graph = self.graphs.iter().any(|graph| graph.stream == place);
        if of_plain || of_graph || self.streams[heir].capturing.is_some() {
            return;
        }
        if self.kind.receives {
            // The replacement may be a sender. No work is left on the ended stream, where it would never run.
            self.at(place, |gpu, stream| {
                gpu.synchronize(stream);
                assert_eq!(gpu.sim.release(pointer(stream)), 0);
            });
        }
        self.order(place, heir);
        self.move_chunks(place, heir);
        // The program waits for such a stream's work before its end, or the work is still queued. Then its handle is not
        // reused at once.
        let recycles = self.gpu.sim.get(RECYCLE_HANDLES) != 0;
        if forgets {
            self.forget(place);
        } else if recycles || self.random.one_in(2) {
            self.at(place, |gpu, stream| gpu.synchronize(stream));
        } else {
            self.abandoned.push(self.streams[place].handle);
        }
        if created {
            self.at(place, |gpu, stream| gpu.destroy_stream(stream));
        }
        self.say(|| format!("stream {place} ends, {heir} goes on"));
        self.replace_stream(place);
    }

    fn move_chunks(&mut self, place: usize, heir: usize) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.ordered && chunk.users[0] == place) {
            (chunk.users[0], chunk.moved) = (heir, true);
        }
    }

    fn forget(&mut self, place: usize) {
        let (status, has_failed) = self.call(|world| world.at(place, |_, stream| forget_stream(0, stream)));
        assert!(status == BFC_OK || has_failed && status == BFC_ERROR_BACKEND_FAILED, "{}", last_error());
    }

    /// Destroys the program's own context and its streams, after waiting for them. Memory allocated there stays live.
    fn end_context(&mut self) {
        if self.is_capturing() {
            return;
        }
        let foreign = self.kind.devices;
        let of_it = |place: &usize| self.streams[*place].context == foreign;
        let places: Vec<usize> = (0..self.streams.len()).filter(of_it).collect();
        // Work of streams that were destroyed may be queued too.
        self.contexts.set_current(self.gpu, foreign);
        self.gpu.synchronize_context();
        for &place in &places {
            let created = self.streams[place].created;
            let uses =
                |chunk: &Chunk| chunk.users.iter().skip(usize::from(chunk.moved)).any(|&user| user == place);
            if created || self.chunks.iter().any(uses) || self.random.one_in(2) {
                self.forget(place);
            }
            if created {
                self.at(place, |gpu, stream| gpu.destroy_stream(stream));
            }
            for chunk in &mut self.chunks {
                let lent = chunk.users.split_off(1);
                chunk.users.extend(lent.into_iter().filter(|&user| user != place));
            }
            self.move_chunks(place, 0);
        }
        self.contexts.renew(self.gpu, &mut self.random);
        for place in places {
            self.streams[place].handle = 0;
            self.replace_stream(place);
        }
        self.say(|| "the program's own context ends".to_owned());
    }

    /// Between a receive and its send: requests, reads, frees and steps.
    pub fn between(&mut self, comm: usize, sender: usize) -> Vec<(u64, u64)> {
        for _ in 0..self.random.below(6) {
            let place = self.random.index(self.streams.len());
            match self.random.below(6) {
                0 | 1 if place != sender => self.allocate_on(place),
                2 => self.read(),
                3 => self.free_of_others(comm),
                _ => self.step(),
            }
        }
        let mut freed = Vec::new();
        for _ in 0..if self.kind.frees_behind { self.random.below(4) } else { 0 } {
            let is_its_own = |chunk: &Chunk| chunk.ordered && !chunk.moved && chunk.users == [comm];
            let Some(index) = self.chunks.iter().rposition(is_its_own) else { break };
            let Chunk { address, bytes, number, .. } = self.chunks.remove(index);
            self.put_on(address, comm);
            self.say(|| format!("free {number} on {comm}, after the receive"));
            freed.push((address, bytes));
        }
        freed
    }

    /// Frees on a stream that is not ordered after the receive, in its own order.
    fn free_of_others(&mut self, comm: usize) {
        let Some(index) = self.chunk_at_rest() else { return };
        let chunk = self.chunks[index].clone();
        // A use recorded there may end after the receive.
        if !chunk.ordered || chunk.moved || chunk.users.contains(&comm) {
            return;
        }
        self.chunks.swap_remove(index);
        self.read_on(&chunk, chunk.users[0]);
        self.put_on(chunk.address, chunk.users[0]);
        self.say(|| format!("free {} on {}", chunk.number, chunk.users[0]));
    }
}
