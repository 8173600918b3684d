//! Random programs that use the functions of CUDA, each in a process with the interposer preloaded.

mod graphs;
pub mod others;
mod steps;

use crate::common::gpu::Gpu;
use crate::common::hooked::Hooked;
use crate::common::preload::{self, Interposer};
use crate::common::{Random, child, simcuda};
use crate::driver::{Driver, plain_or_hooked};
use crate::harness::{self, kinds};
use crate::kind::{GRANULES, Kind, SIMPLE, UNLIMITED};
use crate::world::{Seen, World};
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};

impl Driver for Hooked {
    /// The interposer creates it.
    type Pool = ();
    const HOOKED: bool = true;
    const OUT_OF_MEMORY: CUresult = CUDA_ERROR_OUT_OF_MEMORY;

    fn new(gpu: Gpu) -> Hooked {
        Hooked::new(gpu)
    }

    fn alloc(self, bytes: u64) -> Result<u64, CUresult> {
        Hooked::alloc(self, bytes)
    }

    fn free(self, address: u64) -> Result<(), CUresult> {
        Hooked::free(self, address)
    }

    fn alloc_async(self, bytes: u64, stream: u64) -> Result<u64, CUresult> {
        Hooked::alloc_async(self, bytes, stream)
    }

    fn free_async(self, address: u64, stream: u64) -> Result<(), CUresult> {
        Hooked::free_async(self, address, stream)
    }

    plain_or_hooked!(Hooked);

    fn pool(self, _: &mut Random, _: Kind) {}

    fn shared_pool(self) {}

    fn end_pool(self, (): &()) {}

    fn act(world: &mut World<Hooked>) {
        world.act();
    }

    fn usable(_: &World<Hooked>, _: u64, bytes: u64) -> u64 {
        bytes
    }

    fn free_at(world: &mut World<Hooked>, index: usize) {
        world.free_at(index);
    }

    fn between(world: &mut World<Hooked>, _: usize, _: usize) -> Vec<(u64, u64)> {
        (0..world.random.below(6)).for_each(|_| world.step());
        Vec::new()
    }

    fn capture(world: &mut World<Hooked>) {
        world.capture();
    }

    fn launch(world: &mut World<Hooked>) {
        world.launch();
    }

    /// The chunks that it reads may be freed afterwards.
    fn end_graph(world: &mut World<Hooked>, index: usize) {
        let graph = world.graphs.swap_remove(index);
        world.gpu.destroy_graph(graph.executable);
        for number in &graph.chunks {
            if let Some(chunk) = world.chunks.iter_mut().find(|chunk| chunk.number == *number) {
                chunk.graphs -= 1;
            }
        }
        world.say(|| format!("graph of {:?} ends", graph.chunks));
    }

    fn end_others(world: &mut World<Hooked>, is_over: bool) {
        world.end_others();
        if is_over && world.kind.others {
            world.has_room();
        }
    }

    fn assert_telling(seen: &Seen, count: u64, kind: Kind) {
        let Seen { again, tempted, receives, others, .. } = *seen;
        let is_tempted = tempted > count || kind.is_sync || kind.receives;
        assert!(again > count / 4 && is_tempted, "too few to say anything");
        assert!(others > count / 2 || !kind.others, "{others} other allocations: too few to say anything");
        assert!(receives > count / 4 || !kind.receives, "{receives} receives: too few to say anything");
    }
}

const LIMIT: (&str, &str) = ("BFC_MEMORY_LIMIT", "48k");
const IN_ORDER: (&str, &str) = ("BFC_PRELOAD_ASYNC", "1");
const MAPPED: [(&str, &str); 2] = [("BFC_MEMORY_LIMIT", "16m"), ("BFC_BACKEND", "cuda_vmm")];

const PLAIN: Kind = Kind { variables: &[LIMIT], ..SIMPLE };
const ASYNC: Kind = Kind { variables: &[LIMIT, IN_ORDER], is_async: true, ..SIMPLE };
const SYNC: Kind = Kind { variables: &[LIMIT, ("BFC_PRELOAD_FREE", "sync")], is_sync: true, ..SIMPLE };
const PEERS: Kind = Kind { devices: 2, peers: true, ..PLAIN };

/// The memory is mapped and remapped in granules.
const PLAIN_GRANULES: Kind = Kind { variables: &MAPPED, sizes: GRANULES, ..PLAIN };
const ASYNC_GRANULES: Kind = Kind { variables: &[MAPPED[0], MAPPED[1], IN_ORDER], sizes: GRANULES, ..ASYNC };

/// Sizes of requests for which regions are released, to make a larger one.
const LARGE: [u64; 3] = [500_000, 2 << 20, 9 << 20];

kinds! { Hooked:
    fn streams: 1, PLAIN;
    /// The pool grows without a limit, and synchronizes when many frees wait.
    fn without_a_limit: 2, Kind { sizes: UNLIMITED, ..SIMPLE };
    fn default_streams_of_threads: 3, Kind { threads: true, ..PLAIN };
    fn captured_graphs: 4, Kind { graphs: true, ..PLAIN };
    fn two_devices: 5, Kind { devices: 2, ..PLAIN };
    fn peers: 6, Kind { graphs: true, ..PEERS };
    fn copies_between_devices: 7, Kind { devices: 2, copies: true, ..PLAIN };
    fn frees_that_synchronize: 8, Kind { graphs: true, ..SYNC };
    fn stream_order: 9, ASYNC;
    fn stream_order_of_threads: 10, Kind { threads: true, ..ASYNC };
    fn stream_order_among_graphs: 11, Kind { graphs: true, ..ASYNC };
    fn stream_order_of_peers: 12, Kind { devices: 2, peers: true, ..ASYNC };
    fn stream_order_without_a_limit: 13, Kind { variables: &[IN_ORDER], sizes: UNLIMITED, ..ASYNC };
    /// The second device's context is the program's own: its memory is not pooled, but it uses pooled memory.
    fn own_contexts: 16, Kind { own_context: true, copies: true, ..PEERS };
    fn granules: 17, Kind { graphs: true, ..PLAIN_GRANULES };
    fn granules_in_stream_order: 18, ASYNC_GRANULES;
    fn pinned_memory: 19,
        Kind { variables: &[("BFC_PRELOAD_PINNED", "1")], devices: 2, pinned: true, sizes: UNLIMITED, ..SIMPLE };
    /// Streams of a context of the program's own, on the device whose memory is pooled.
    fn foreign_streams: 20, Kind { foreign: true, graphs: true, ..PLAIN };
    fn foreign_streams_in_stream_order: 21, Kind { foreign: true, ..ASYNC };
    fn posted_receives_in_stream_order: 22, Kind { receives: true, ..ASYNC };
    /// Kernels of two devices that touch each other's memory, and copies between them.
    fn granules_of_peers: 23, Kind { devices: 2, peers: true, copies: true, ..PLAIN_GRANULES };
    fn granules_and_posted_receives: 27, Kind { receives: true, ..ASYNC_GRANULES };
    /// The pool grows until the device has no more memory. Then it releases some, which must not break a capture.
    fn captures_of_all_modes_on_a_small_device: 24, ON_A_SMALL_DEVICE;
    fn captures_of_all_modes: 25, Kind { graphs: true, modes: true, devices: 2, ..PLAIN };
    /// NULL is the only stream known to the pool, and kernels run on blocking ones.
    fn stream_order_of_the_legacy_stream: 26, Kind { legacy: true, ..ASYNC };
    /// The detection of memory that is reused at once.
    #[ignore = "run by the suite races"]
    fn the_mutation_is_seen: 14, Kind { interposer: Interposer::WithoutQuarantine, ..PLAIN };
    #[ignore = "run by the suite races"]
    fn the_mutation_is_seen_in_stream_order: 15, Kind { interposer: Interposer::WithoutQuarantine, ..ASYNC };
}

const ON_A_SMALL_DEVICE: Kind = Kind {
    variables: &[("BFC_TRIM_AFTER", "0.002")],
    graphs: true,
    modes: true,
    others: true,
    memory: 16 << 20,
    sizes: LARGE,
    ..SIMPLE
};

/// The detection of captures that libbfc does not know: those on a small device are broken.
#[test]
#[ignore = "run by the suite races"]
fn captures_that_are_not_announced_are_seen() {
    let library = preload::library(Interposer::WithoutAnnouncement);
    let variables = [
        ("LD_PRELOAD", library.to_str().expect("UTF-8")),
        ("SIMCUDA_LIBRARY", simcuda::library().to_str().expect("UTF-8")),
        // The first program that detects it ends the run.
        ("RACES_PROGRAMS", "8000"),
    ];
    let ended = child::run("hooked::captures_of_all_modes_on_a_small_device", &variables);
    assert!(!ended.success, "no capture is broken:\n{}", ended.text);
    assert!(ended.text.contains("901") || ended.text.contains("was broken"), "{}", ended.text);
}

#[test]
fn threads_at_once() {
    harness::concurrent_programs::<Hooked>(0, false, PLAIN);
}

#[test]
fn threads_at_once_with_frees_that_synchronize() {
    harness::concurrent_programs::<Hooked>(1 << 20, false, SYNC);
}

#[test]
#[ignore = "run by the suite races"]
fn the_mutation_is_seen_among_threads() {
    let kind = Kind { interposer: Interposer::WithoutQuarantine, ..PLAIN };
    harness::concurrent_programs::<Hooked>(2 << 20, false, kind);
}
