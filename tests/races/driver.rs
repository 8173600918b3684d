//! What executes a program: the C functions of libbfc beside the driver, or the functions of CUDA that the interposer
//! hooks.

use crate::common::Random;
use crate::common::gpu::{Gpu, GreenContext};
use crate::kind::Kind;
use crate::world::{Seen, World};
use cuda_sys::{CUresult, CUstreamCaptureMode};
use std::ops::Deref;

/// An executor of programs. It is the plain driver for everything that is not redefined here.
pub trait Driver: Copy + Send + Sync + Deref<Target = Gpu> + 'static {
    /// The pool, if the program creates it.
    type Pool;
    /// Memory that is requested without a stream may be used by any stream at once, and is freed after all work.
    const HOOKED: bool;
    const OUT_OF_MEMORY: i32;

    fn new(gpu: Gpu) -> Self;

    /// Requests memory without a stream.
    fn alloc(self, bytes: u64) -> Result<u64, i32>;
    fn free(self, address: u64) -> Result<(), i32>;
    /// Requests memory in the order of a stream.
    fn alloc_async(self, bytes: u64, stream: u64) -> Result<u64, i32>;
    fn free_async(self, address: u64, stream: u64) -> Result<(), i32>;

    /// Creates the pool of a random program, or of threads that run concurrently.
    fn pool(self, random: &mut Random, kind: Kind) -> Self::Pool;
    fn shared_pool(self) -> Self::Pool;
    /// Ends it.
    fn end_pool(self, pool: &Self::Pool);

    /// Runs a random step.
    fn act(world: &mut World<Self>);
    /// The bytes of a new chunk that the program may use.
    fn usable(world: &World<Self>, address: u64, bytes: u64) -> u64;
    /// Frees a chunk, or leaves it if that is not possible now.
    fn free_at(world: &mut World<Self>, index: usize);
    /// What the program does between a receive and the request that it sends from. Returns memory that was freed after
    /// the receive in its order.
    fn between(world: &mut World<Self>, comm: usize, sender: usize) -> Vec<(u64, u64)>;
    /// Captures some work, while other work continues.
    fn capture(world: &mut World<Self>);
    fn launch(world: &mut World<Self>);
    /// Destroys a graph by its index, possibly before its last launch has completed.
    fn end_graph(world: &mut World<Self>, index: usize);
    /// Frees what is not pooled, at the end of the program when nothing else is in use.
    fn end_others(_: &mut World<Self>, _is_over: bool) {}
    /// Checks that the programs were of use.
    fn assert_telling(seen: &Seen, count: u64, kind: Kind);

    // The calls with a hook.
    fn enter(self, device: i32) -> u64 {
        (*self).enter(device)
    }
    fn leave(self, device: i32) {
        (*self).leave(device);
    }
    fn reset(self, device: i32) {
        (*self).reset(device);
    }
    fn own_context(self, device: i32) -> u64 {
        (*self).own_context(device)
    }
    fn destroy_context(self, context: u64) {
        (*self).destroy_context(context);
    }
    fn green_context(self, device: i32) -> GreenContext {
        (*self).green_context(device)
    }
    fn destroy_green_context(self, green: GreenContext) {
        (*self).destroy_green_context(green);
    }
    fn enable_peer(self, other: u64) {
        (*self).enable_peer(other);
    }
    fn synchronize_context(self) {
        (*self).synchronize_context();
    }
    fn stream(self, blocking: bool) -> u64 {
        (*self).stream(blocking)
    }
    fn destroy_stream(self, stream: u64) {
        (*self).destroy_stream(stream);
    }
    fn begin_capture_in(self, stream: u64, mode: CUstreamCaptureMode) {
        (*self).begin_capture_in(stream, mode);
    }
    fn try_end_capture(self, stream: u64) -> Result<u64, CUresult> {
        (*self).try_end_capture(stream)
    }
}
