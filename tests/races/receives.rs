//! Posted receives: work on one stream that ends only after another stream sends later.
//!
//! Between the receive and its send the program continues, but orders nothing after the receive itself. So anything
//! that keeps the send from being executed is a wait by the library for more than was queued before a free, unless the
//! memory itself was freed after the receive. It is detected by running everything that can run, so nothing hangs.

use crate::common::receive::Receive;
use crate::driver::Driver;
use crate::world::World;

impl<D: Driver> World<D> {
    /// A stream posts a receive, others continue, and one of them requests memory and sends from it.
    pub fn receive(&mut self) {
        let comm = self.random.index(self.streams.len());
        let sender = (comm + 1 + self.random.index(self.streams.len() - 1)) % self.streams.len();
        let receive = self.at(comm, |gpu, stream| Receive::post(*gpu, stream));
        self.say(|| format!("stream {comm} posts a receive, which {sender} is to send"));
        let gpu = self.gpu;
        let returned = || ["cuMemFree", "cuMemUnmap"].map(|function| gpu.sim.calls(function));
        // A failing request has waited for everything, so nothing is left to check.
        let before = (returned(), self.seen.refused);
        let behind = D::between(self, comm, sender);
        let (bytes, ordered) = (self.some_bytes(), !self.random.one_in(3));
        let got = self.at(sender, move |gpu, stream| match ordered {
            true => gpu.alloc_async(bytes, stream),
            false => gpu.alloc(bytes),
        });
        // If regions were released, for any request, the driver itself may have waited for the device.
        let is_judged = got.is_ok() && before == (returned(), self.seen.refused);
        let is_forced = receive.is_forced();
        // There was nothing else to wait for, if there was no better place, which is not known here.
        let is_behind = got.is_ok_and(|address| {
            behind.iter().any(|&(other, size)| address < other + size && other < address + bytes)
        });
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
        if is_judged && !is_behind {
            self.seen.judged += 1;
            self.seen.deadlocks += u64::from(is_forced || !is_sent);
        }
        receive.deliver(*gpu);
        // With the library, a chunk without a stream is freed on the stream of its use, because without a stream there
        // is no event to wait for.
        if let Some(chunk) = self.chunks.pop_if(|_| got.is_ok() && !ordered && !D::HOOKED) {
            self.at(sender, move |gpu, on| assert_eq!(gpu.free_async(chunk.address, on), Ok(())));
        }
    }
}
