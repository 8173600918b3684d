//! Posted receives, as in tests/races/receives.rs: cudaMallocAsync and cudaMalloc order nothing after a receive that
//! was posted after the free.

use super::world::World;
use crate::common::receive::Receive;

impl World {
    /// A stream posts a receive, others continue, and one of them requests memory and sends from it.
    pub fn receive(&mut self) {
        let of_pool = |place: &usize| self.streams[*place].device == 0 && !self.streams[*place].is_foreign;
        let places: Vec<usize> = (0..self.streams.len()).filter(of_pool).collect();
        if places.len() < 2 {
            return;
        }
        let comm = self.random.index(places.len());
        let sender = places[(comm + 1 + self.random.index(places.len() - 1)) % places.len()];
        let comm = places[comm];
        let receive = self.at(comm, |gpu, stream| Receive::post(*gpu, stream));
        self.say(|| format!("stream {comm} posts a receive, which {sender} is to send"));
        (0..self.random.below(6)).for_each(|_| self.step());
        let (bytes, ordered) = (self.some_bytes(), self.random.one_in(2));
        // If regions are released, the driver itself may wait for the device.
        let returned = || ["cuMemFree", "cuMemUnmap"].map(|function| self.gpu.sim.calls(function));
        let before = returned();
        let got = self.at(sender, move |gpu, stream| match ordered {
            true => gpu.alloc_async(bytes, stream),
            false => gpu.alloc(bytes),
        });
        let has_returned = returned() != before;
        let is_forced = receive.is_forced();
        if let Ok(address) = got {
            self.enter(address, bytes, sender, ordered);
        }
        let receive = self.at(sender, move |gpu, stream| {
            receive.send(*gpu, stream);
            receive
        });
        let is_sent = self.run_until(|| receive.is_sent());
        self.seen.receives += 1;
        self.say(|| {
            format!("{bytes} bytes, ordered: {ordered}, {got:x?}; waited: {is_forced}, sent: {is_sent}")
        });
        // A request that fails has waited for everything.
        if got.is_ok() && !has_returned && (is_forced || !is_sent) {
            self.seen.deadlocks += 1;
        }
        receive.deliver(*self.gpu);
    }

    /// Runs everything that can run until a condition holds. Returns whether it does.
    fn run_until(&self, holds: impl Fn() -> bool) -> bool {
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
