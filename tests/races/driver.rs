//! What executes a program: the C functions of libbfc beside the driver, or the functions of CUDA that the interposer
//! hooks.

use crate::common::Random;
use crate::common::gpu::Gpu;
use crate::kind::Kind;
use crate::world::{Seen, World};
use std::ops::Deref;

/// The calls with a hook, which is called by [`Hooked`](crate::common::hooked::Hooked).
macro_rules! plain_or_hooked {
    ($of:ty) => {
        crate::driver::plain_or_hooked! { $of:
            enter(device: i32) -> u64;
            leave(device: i32) -> ();
            reset(device: i32) -> ();
            own_context(device: i32) -> u64;
            destroy_context(context: u64) -> ();
            green_context(device: i32) -> crate::common::gpu::GreenContext;
            destroy_green_context(green: crate::common::gpu::GreenContext) -> ();
            enable_peer(other: u64) -> ();
            synchronize_context() -> ();
            stream(blocking: bool) -> u64;
            destroy_stream(stream: u64) -> ();
            begin_capture_in(stream: u64, mode: cuda_sys::CUstreamCaptureMode) -> ();
            try_end_capture(stream: u64) -> Result<u64, cuda_sys::CUresult>;
        }
    };
    ($of:ty: $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(self, $($argument: $type),*) -> $result {
            let of: &$of = &self;
            of.$name($($argument),*)
        })*
    };
}
pub(crate) use plain_or_hooked;

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

    plain_or_hooked!(Gpu);
}
