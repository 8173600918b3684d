//! The steps of a random program under the interposer: cudaMalloc, work on several held streams, cudaFree while that
//! work is queued.
//!
//! Memory of cudaMalloc may be used by any stream at once, and cudaFree comes after all work that was queued until
//! then, on any stream, and on any device that may touch the memory. So at each allocation the shadow checks whether any
//! such work is pending.

use crate::common::hooked::Hooked;
use crate::shadow;
use crate::world::{Chunk, World};
use cuda_sys::*;

impl World<Hooked> {
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
            94..96 => _ = self.synchronize(),
            96..98 if self.kind.others => self.act_on_others(),
            _ => self.read(),
        }
    }

    /// Returns the device of a stream.
    pub fn device(&self, place: usize) -> i32 {
        self.contexts.device(self.streams[place].context)
    }

    fn is_foreign(&self, place: usize) -> bool {
        self.streams[place].context == self.kind.devices
    }

    pub fn allocate(&mut self) {
        let (Some(place), bytes) = (self.any_stream(), self.some_bytes()) else { return };
        let place = if self.kind.legacy { 0 } else { place };
        // The pinned pool belongs to one device, and a context of the program's own has none.
        if self.kind.pinned && self.device(place) != 0 || self.is_foreign(place) {
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

    /// Reads a chunk on another stream, after its filling.
    fn read(&mut self) {
        let Some(index) = self.any_chunk() else { return };
        let Some(place) = self.reaching(self.chunks[index].device) else { return };
        let filler = self.chunks[index].users[0];
        if !self.may_order(filler, place) {
            return;
        }
        self.order(filler, place);
        if !self.chunks[index].users.contains(&place) {
            self.chunks[index].users.push(place);
        }
        let chunk = self.chunks[index].clone();
        self.read_on(&chunk, place);
    }

    /// Returns whether the program can wait for streams.
    pub fn may_order(&self, before: usize, after: usize) -> bool {
        let is_captured = |place: usize| self.streams[place].capturing.is_some();
        before == after || !is_captured(before) && !is_captured(after)
    }

    /// Copies between memory of different devices, which need not be peers, on a stream of either.
    fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.any_chunk(), self.any_chunk()) else { return };
        let Some(place) = self.any_stream() else { return };
        let (source, target) = (self.chunks[from].clone(), self.chunks[to].clone());
        let is_used = target.graphs != 0 || target.users.iter().any(|&user| !self.may_order(user, place));
        if is_used || !self.may_order(source.users[0], place) || source.device == target.device {
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
        let copied = &mut self.chunks[to];
        (copied.pattern, copied.users, copied.bytes) = (source.pattern, vec![place], bytes);
        let contexts = [target.device, source.device].map(|device| self.contexts.handle(device as usize));
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

    pub fn free_at(&mut self, index: usize) {
        let chunk = self.chunks[index].clone();
        let may_free = |place: &usize| self.is_foreign(*place) && self.streams[*place].capturing.is_none();
        let foreign = (0..self.streams.len()).find(may_free);
        let foreign = foreign.filter(|_| self.kind.foreign && self.random.one_in(2));
        let on = foreign.or_else(|| self.any_stream()).filter(|_| !self.kind.legacy).unwrap_or(0);
        let ordered = self.kind.is_async && (self.kind.legacy || !self.random.one_in(3))
            // Its stream cannot belong to another device.
            && self.device(on) == chunk.device
            && chunk.users.iter().all(|&user| self.may_order(user, on))
            && self.streams[on].capturing.is_none();
        // The driver's own memory.
        let is_own = self.kind.own_context && chunk.device == 1;
        if ordered && !self.kind.legacy {
            chunk.users.iter().for_each(|&user| self.order(user, on));
        } else if !ordered && (chunk.ordered || is_own) && !self.finish(&chunk) {
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

    /// cudaFree of memory that was allocated in the order of a stream does not wait, and that of the driver's own
    /// memory not for other devices, so the program waits. Returns whether it may.
    fn finish(&self, chunk: &Chunk) -> bool {
        let may = !self.is_capturing();
        let users = chunk.users.iter().filter(|_| may);
        users.for_each(|&user| self.at(user, |gpu, stream| gpu.synchronize(stream)));
        may
    }

    /// Destroys a stream with its work still queued, and replaces it by another, possibly with its handle.
    fn end_stream(&mut self) {
        let place = self.random.index(self.streams.len());
        let (created, device) = (self.streams[place].created, self.device(place));
        if self.is_capturing() || !created && self.streams[place].worker.is_none() {
            return;
        }
        let is_heir = |&heir: &usize| heir != place && self.device(heir) == device;
        let Some(heir) = (0..self.streams.len()).find(is_heir) else { return };
        // Later reads must come after the fills there.
        self.order(place, heir);
        let users = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.users);
        users.filter(|user| **user == place).for_each(|user| *user = heir);
        if created {
            self.at(place, |gpu, stream| gpu.destroy_stream(stream));
        }
        self.say(|| format!("stream {place} ends, {heir} goes on"));
        self.replace_stream(place);
    }
}
