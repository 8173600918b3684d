//! The contexts of a program: one of each device, and one that the program has created on the first device (of some
//! programs a green one).

use crate::common::Random;
use crate::common::gpu::GreenContext;
use crate::driver::Driver;
use crate::kind::Kind;

struct Context {
    handle: u64,
    device: i32,
    end: End,
    /// Memory of the program that the library's programs copy to. 0 is none.
    buffer: u64,
}

/// The maximum part of a chunk that is copied.
pub const BUFFER: u64 = 64 << 10;

/// Each stream copies to a part of its own, because copies on two streams are unordered, even if one replaces the
/// other, which has ended with its work still queued. A program has fewer streams than this.
const STREAMS: u64 = 128;

/// How a context ends.
#[derive(Clone, Copy)]
enum End {
    /// It is released, being a device's primary one.
    Left,
    Destroyed,
    Green(GreenContext),
}

impl Context {
    /// Of the current context.
    fn new<D: Driver>(gpu: D, handle: u64, device: i32, end: End) -> Context {
        let is_pools = device == 0 && matches!(end, End::Left);
        let buffer = if D::HOOKED || is_pools { 0 } else { (*gpu).alloc(BUFFER * STREAMS) };
        Context { handle, device, end, buffer }
    }
}

/// By index: those of the devices, then the program's own on the first.
pub struct Contexts(Vec<Context>);

impl Contexts {
    /// Enters them. The first is current then.
    pub fn new<D: Driver>(gpu: D, kind: Kind, random: &mut Random) -> Contexts {
        let of_device = |device| match device {
            1 if kind.own_context => Context::new(gpu, gpu.own_context(1), device, End::Destroyed),
            _ => Context::new(gpu, gpu.enter(device), device, End::Left),
        };
        let mut all: Vec<Context> = (0..kind.devices as i32).map(of_device).collect();
        if kind.peers {
            for (own, other) in all.iter().zip(all.iter().rev()) {
                gpu.set_current(own.handle);
                gpu.enable_peer(other.handle);
            }
        }
        if kind.foreign {
            all.push(Contexts::create(gpu, random));
        }
        gpu.set_current(all[0].handle);
        Contexts(all)
    }

    /// Creates the program's own context and makes it current.
    fn create<D: Driver>(gpu: D, random: &mut Random) -> Context {
        let green = random.one_in(2).then(|| gpu.green_context(0));
        let handle = green.map_or_else(|| gpu.own_context(0), |green| green.context);
        Context::new(gpu, handle, 0, green.map_or(End::Destroyed, End::Green))
    }

    fn end_one<D: Driver>(&self, gpu: D, index: usize) {
        let Context { handle, device, end, buffer } = self.0[index];
        gpu.set_current(handle);
        if buffer != 0 {
            // A green context shares the primary one's memory.
            (*gpu).free(buffer);
        }
        match end {
            End::Left => gpu.leave(device),
            End::Destroyed => gpu.destroy_context(handle),
            End::Green(green) => gpu.destroy_green_context(green),
        }
    }

    /// Destroys the context that the program has created, and creates another, possibly with its handle.
    pub fn renew<D: Driver>(&mut self, gpu: D, random: &mut Random) {
        let last = self.0.len() - 1;
        self.end_one(gpu, last);
        self.0[last] = Contexts::create(gpu, random);
    }

    pub fn handle(&self, index: usize) -> u64 {
        self.0[index].handle
    }

    pub fn device(&self, index: usize) -> i32 {
        self.0[index].device
    }

    /// Returns the part of a context's buffer that a stream copies to.
    pub fn buffer(&self, index: usize, stream: u64) -> u64 {
        self.0[index].buffer + stream % STREAMS * BUFFER
    }

    pub fn set_current<D: Driver>(&self, gpu: D, index: usize) {
        gpu.set_current(self.0[index].handle);
    }

    /// Waits for all work.
    pub fn synchronize<D: Driver>(&self, gpu: D) {
        for context in &self.0 {
            gpu.set_current(context.handle);
            gpu.synchronize_context();
        }
    }

    /// Resets all devices, and releases the references to their contexts.
    pub fn reset<D: Driver>(&self, gpu: D) {
        self.0.iter().for_each(|context| gpu.reset(context.device));
        self.0.iter().for_each(|context| gpu.leave(context.device));
    }

    /// Ends all.
    pub fn end<D: Driver>(&self, gpu: D) {
        (0..self.0.len()).rev().for_each(|index| self.end_one(gpu, index));
    }
}
