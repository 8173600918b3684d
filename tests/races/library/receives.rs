//! Posted receives: work on one stream that ends only after another stream sends later.
//!
//! Between the receive and its send the program continues, but orders nothing after the receive itself. So anything
//! that keeps the send from being executed is a wait by the library for more than was queued before a free, unless the
//! memory itself was freed after the receive. It is detected by running everything that can run, so nothing hangs.

use super::world::{Chunk, World};
use crate::common::receive::Receive;
use crate::common::*;

impl World {
    /// A stream posts a receive, others continue, and one of them requests memory and sends from it.
    pub fn receive(&mut self) {
        if self.streams.len() < 2 {
            return;
        }
        let comm = self.random.index(self.streams.len());
        let sender = (comm + 1 + self.random.index(self.streams.len() - 1)) % self.streams.len();
        let receive = self.at(comm, Receive::post);
        self.say(|| format!("stream {comm} posts a receive, which {sender} is to send"));
        let gpu = self.gpu;
        let reserved = || ["cuMemFree", "cuMemUnmap"].map(|function| gpu.sim.calls(function));
        let before = reserved();
        // A failing request has waited for everything, so nothing is left to check.
        let refused = self.refused;
        for _ in 0..self.random.below(6) {
            let place = self.random.index(self.streams.len());
            match self.random.below(6) {
                0 | 1 if place != sender => self.allocate_on(place),
                2 => self.read(),
                3 => self.free_of_others(comm),
                _ => self.step(),
            }
        }
        let behind = if self.kind.frees_behind { self.free_behind(comm) } else { Vec::new() };
        let (device, bytes, plain) = (self.pool.device(), self.some_bytes(), self.random.one_in(4));
        let got = match plain {
            true => self.pool.alloc(bytes),
            false => self.at(sender, move |_, stream| alloc_async(device, bytes as usize, stream)),
        };
        // If regions were released, for any request, the driver itself may have waited for the device.
        let returned = reserved() != before;
        let is_forced = receive.is_forced();
        // There was nothing else to wait for, if there was no better place, which is not known here.
        let is_behind = got.is_ok_and(|address| {
            behind.iter().any(|&(other, size)| address < other + size && other < address + bytes)
        });
        if let Ok(address) = got {
            self.enter(address, sender, if plain { None } else { Some(sender) });
        }
        let state = self.at(sender, move |gpu, stream| {
            receive.send(gpu, stream);
            receive
        });
        let is_sent = self.run_until(|| state.is_sent());
        self.receives += 1;
        self.say(|| {
            let kind = if plain { "without a stream" } else { "on its stream" };
            format!("{bytes} bytes {kind} on {sender}: {got:x?}; waited: {is_forced}, sent: {is_sent}")
        });
        let is_judged = got.is_ok() && self.refused == refused && !returned && !is_behind;
        self.judged += u64::from(is_judged);
        if is_judged && (is_forced || !is_sent) {
            self.deadlocks += 1;
            self.say(|| "deadlock".to_owned());
        }
        state.deliver(self.gpu);
        // A chunk without a stream is freed on the stream of its use, because without a stream there is no event to
        // wait for.
        if let Some(chunk) = self.chunks.pop_if(|chunk| got.is_ok() && plain && chunk.home.is_none()) {
            self.at(sender, move |_, stream| assert_eq!(free_async(device, chunk.address, stream), BFC_OK));
        }
    }

    /// Frees on the stream of the receive, in its order. Returns the freed chunk.
    fn free_behind(&mut self, comm: usize) -> Vec<(u64, u64)> {
        let mut freed = Vec::new();
        for _ in 0..self.random.below(4) {
            let is_its_own =
                |chunk: &Chunk| chunk.home == Some(comm) && !chunk.moved && chunk.lent.is_empty();
            let Some(index) = self.chunks.iter().rposition(is_its_own) else { break };
            let Chunk { address, bytes, number, .. } = self.chunks.remove(index);
            let device = self.pool.device();
            self.at(comm, move |_, stream| assert_eq!(free_async(device, address, stream), BFC_OK));
            self.say(|| format!("free {number} on {comm}, after the receive"));
            freed.push((address, bytes));
        }
        freed
    }

    /// Frees on a stream that is not ordered after the receive, in its own order.
    fn free_of_others(&mut self, comm: usize) {
        let Some(index) = self.any_chunk() else { return };
        let chunk = self.chunks[index].clone();
        let Some(home) = chunk.home.filter(|&home| home != comm) else { return };
        // A use recorded there may end after the receive.
        if chunk.moved || chunk.lent.contains(&comm) {
            return;
        }
        self.chunks.swap_remove(index);
        self.read_on(&chunk, home);
        let (device, address) = (self.pool.device(), chunk.address);
        self.at(home, move |_, stream| assert_eq!(free_async(device, address, stream), BFC_OK));
        self.say(|| format!("free {} on {home}", chunk.number));
    }

    /// Runs everything that can run until a condition holds. Returns whether it does.
    fn run_until(&mut self, holds: impl Fn() -> bool) -> bool {
        loop {
            if holds() {
                return true;
            }
            let steps = |place| self.at(place, |gpu, stream| gpu.step(stream, 1000));
            let ran: u64 = (0..self.streams.len()).map(steps).sum();
            if ran == 0 {
                return holds();
            }
        }
    }
}
