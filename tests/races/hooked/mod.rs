//! Reuse races under the interposer, on the simulated driver (a simulation, whose streams run their work when they
//! are told to): no memory of cudaMalloc is handed out while work that was queued before its cudaFree may still touch
//! it.
//!
//! Each test runs in a process of its own with libbfc_preload.so preloaded. RACES_PROGRAMS is the number of random
//! programs that each kind runs. RACES_SEED runs a single program. The log of a failing program is shown. `cargo xtask
//! test --suite races` runs many in the release build.

mod graphs;
mod others;
mod receives;
mod together;
mod world;

use crate::common;
use crate::progress;
use crate::shadow;
use common::gpu::Gpu;
use common::hooked::Hooked;
use common::preload::{self, Interposer};
use common::simcuda::steer::{
    ALLOCATIONS, CAPTURED_STREAMS_HIDE, EVENTS, FREE_SYNCHRONIZES, RECYCLE_HANDLES, RETAINS,
    STREAM_QUERIES_UNSAFE,
};
use common::simcuda::{Simulation, simulated_saying};
use progress::Progress;
use std::env;
use world::{Seen, World};

/// The operations of a program, and its settings.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Settings of the interposer and of libbfc.
    variables: &'static [(&'static str, &'static str)],
    devices: usize,
    /// The devices' kernels touch each other's memory.
    peers: bool,
    /// The second device is used through a context that the program has created.
    own_context: bool,
    /// Copies between devices.
    copies: bool,
    /// Streams are the default streams of threads, except for one.
    threads: bool,
    /// Captures into graphs, which are launched repeatedly.
    graphs: bool,
    /// Captures may be thread-local and global, not only relaxed.
    modes: bool,
    /// Some streams are of a context that the program has created on the first device.
    foreign: bool,
    /// All memory is allocated and freed on the legacy stream, which alone orders the other streams' work.
    legacy: bool,
    /// Receives are posted, whose sends are queued later on other streams.
    receives: bool,
    /// Memory that is not pooled is allocated too.
    others: bool,
    /// Bytes of each device.
    memory: u64,
    /// cudaMallocAsync and cudaFreeAsync too.
    is_async: bool,
    /// The memory is pinned host memory, which belongs to every device.
    pinned: bool,
    /// Each cudaFree must wait for the device.
    is_sync: bool,
    /// The sizes of requests.
    sizes: [u64; 3],
}

const PLAIN: Kind = Kind {
    variables: &[("BFC_MEMORY_LIMIT", "48k")],
    devices: 1,
    peers: false,
    own_context: false,
    copies: false,
    threads: false,
    graphs: false,
    modes: false,
    foreign: false,
    legacy: false,
    receives: false,
    others: false,
    memory: 1 << 30,
    is_async: false,
    pinned: false,
    is_sync: false,
    sizes: [512, 2048, 8192],
};

const ASYNC: Kind =
    Kind { variables: &[("BFC_MEMORY_LIMIT", "48k"), ("BFC_PRELOAD_ASYNC", "1")], is_async: true, ..PLAIN };

/// Sizes of requests without a limit.
const UNLIMITED: [u64; 3] = [4096, 65536, 500_000];

/// Sizes of requests for which regions are released, to make a larger one.
const LARGE: [u64; 3] = [500_000, 2 << 20, 9 << 20];

/// Sizes of requests with granules of 2 MiB.
const GRANULES: [u64; 3] = [100_000, 1 << 20, 3 << 20];

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Programs of each kind, unless the environment sets another number.
fn programs() -> u64 {
    number("RACES_PROGRAMS").unwrap_or(if cfg!(debug_assertions) { 100 } else { 1000 })
}

/// Granules are large, and so is the work on them; programs with receives are repeatedly run to their end.
fn programs_of(kind: Kind) -> u64 {
    match kind.sizes[2] > 1 << 20 {
        true => (programs() / 8).max(programs().min(50)),
        false if kind.receives || kind.foreign || kind.modes => (programs() / 4).max(programs().min(50)),
        false => programs(),
    }
}

/// Programs between two resets of the simulation.
const BATCH: u64 = 64;

fn begin(sim: Simulation, kind: Kind, seed: u64) -> Hooked {
    assert_eq!(sim.configure(kind.devices as i32, kind.memory), 0);
    // A handle that was destroyed is the next one that is created.
    sim.set(RECYCLE_HANDLES, ((seed / BATCH) % 2) as i64);
    // It "may" wait for the device's work, says the manual. Memory that the driver itself serves during captures is
    // freed as if it did, as programs do.
    let waits = (seed / BATCH / 2).is_multiple_of(2) || kind.is_async && kind.graphs;
    sim.set(FREE_SYNCHRONIZES, i64::from(waits));
    Hooked::new(Gpu::new(sim))
}

/// One program from beginning to end: short, except for some that free so much memory that requests wait for it.
fn program(gpu: Hooked, kind: Kind, seed: u64, sum: &mut Seen) {
    // The driver's possible results for queries about streams during a capture.
    gpu.sim.set(STREAM_QUERIES_UNSAFE, i64::from(seed % 3 != 2));
    gpu.sim.set(CAPTURED_STREAMS_HIDE, i64::from(seed % 3 == 1));
    let mut world = World::new(gpu, kind, seed);
    // Without a limit only those reuse memory.
    let long = if kind.sizes == UNLIMITED { 8 } else { 32 };
    let steps = if world.random.one_in(long) { 1500 } else { world.random.between(10, 70) };
    (0..steps).for_each(|_| world.act());
    if !kind.own_context && !kind.foreign && world.random.one_in(8) {
        world.reset();
        (0..20).for_each(|_| world.act());
    }
    world.end();
    let Seen { again, tempted, refused, put_off, receives, deadlocks, others, without_room } = &world.seen;
    let deadlocks = *deadlocks;
    sum.receives += receives;
    sum.again += again;
    sum.tempted += tempted;
    sum.refused += refused;
    sum.put_off += put_off;
    sum.others += others;
    sum.without_room += without_room;
    if kind.is_mutated() {
        return;
    }
    // Memory that no pool holds belongs to the driver again.
    let left = [ALLOCATIONS, EVENTS, RETAINS].map(|of| gpu.sim.live(of));
    if (world::troubles(&gpu), left, deadlocks) != ((0, 0, 0), [0; 3], 0) {
        let (races, words) = shadow::races();
        let log = world.log();
        panic!(
            "{log}\nseed {seed}: {races} races, {words}; {deadlocks} deadlocks; {left:?} allocations, events, retains \
             left; {:#?}",
            gpu.sim.misuse_texts()
        );
    }
}

impl Kind {
    /// Returns whether the interposer of this process is the mutation.
    fn is_mutated(self) -> bool {
        env::var("RACES_MUTATION").is_ok()
    }
}

/// Runs work in a process of its own with the interposer, and shows its facts.
fn preloaded(test: &str, kind: Kind, which: Interposer, work: impl FnOnce(Simulation)) {
    let programs = programs().to_string();
    let seed = number("RACES_SEED").map(|seed| seed.to_string());
    let mut variables = vec![("RACES_PROGRAMS", &*programs)];
    if !common::child::is_child(test) {
        variables.push(("LD_PRELOAD", preload::library(which).to_str().expect("UTF-8")));
    }
    variables.extend(kind.variables);
    variables.extend((which == Interposer::WithoutQuarantine).then_some(("RACES_MUTATION", "1")));
    variables.extend(seed.as_deref().map(|seed| ("RACES_SEED", seed)));
    let out = progress::output(test);
    variables.push((progress::VARIABLE, &out));
    let said = simulated_saying(test, &variables, work);
    common::child::print_facts(&said);
}

/// Random programs of a kind.
fn run(test: &str, first_seed: u64, kind: Kind, which: Interposer) {
    preloaded(test, kind, which, |sim| random_programs(sim, test, first_seed, kind));
}

fn random_programs(sim: Simulation, test: &str, first_seed: u64, kind: Kind) {
    let mut seen = Seen::default();
    if let Some(seed) = number("RACES_SEED") {
        return program(begin(sim, kind, seed), kind, seed, &mut seen);
    }
    let mut gpu = begin(sim, kind, 0);
    let (count, mut synchronizations) = (programs_of(kind), 0);
    let mut progress = Progress::new(test, count);
    for seed in (0..count).map(|place| (first_seed << 32) + place) {
        if seed % BATCH == 0 {
            gpu = begin(sim, kind, seed);
        }
        let before = sim.calls("cuCtxSynchronize");
        program(gpu, kind, seed, &mut seen);
        synchronizations += sim.calls("cuCtxSynchronize") - before;
        progress.note(seed - (first_seed << 32));
    }
    let Seen { again, tempted, refused, put_off, receives, others, without_room, .. } = seen;
    let (races, mismatches, misuses) = world::troubles(&gpu);
    println!(
        "fact {test}: {count} programs: memory was handed out again {again} times, {tempted} times while work was \
         queued on freed memory of that size; {synchronizations} synchronisations, {refused} requests refused, \
         {put_off} frees put off; {receives} receives; {others} allocations of the \
         driver's, {without_room} refused; {races} races, {mismatches} mismatches, {misuses} misuses"
    );
    if kind.is_mutated() {
        assert_seen(races, count);
    } else {
        let is_tempted = tempted > count || kind.is_sync || kind.receives;
        assert!(again > count / 4 && is_tempted, "too few to say anything");
        assert!(others > count / 2 || !kind.others, "{others} other allocations: too few to say anything");
        assert!(receives > count / 4 || !kind.receives, "{receives} receives: too few to say anything");
    }
}

fn random_kind(test: &str, first_seed: u64, kind: Kind) {
    run(test, first_seed, kind, Interposer::Shipped);
}

#[test]
fn streams() {
    random_kind("hooked::streams", 1, PLAIN);
}

/// The pool grows without a limit, and synchronizes when many frees wait.
#[test]
fn without_a_limit() {
    let kind = Kind { variables: &[], sizes: UNLIMITED, ..PLAIN };
    random_kind("hooked::without_a_limit", 2, kind);
}

#[test]
fn default_streams_of_threads() {
    random_kind("hooked::default_streams_of_threads", 3, Kind { threads: true, ..PLAIN });
}

#[test]
fn captured_graphs() {
    random_kind("hooked::captured_graphs", 4, Kind { graphs: true, ..PLAIN });
}

#[test]
fn two_devices() {
    random_kind("hooked::two_devices", 5, Kind { devices: 2, ..PLAIN });
}

#[test]
fn peers() {
    random_kind("hooked::peers", 6, Kind { devices: 2, peers: true, graphs: true, ..PLAIN });
}

#[test]
fn copies_between_devices() {
    random_kind("hooked::copies_between_devices", 7, Kind { devices: 2, copies: true, ..PLAIN });
}

/// The second device's context is the program's own: its memory is not pooled, but it uses pooled memory.
#[test]
fn own_contexts() {
    let kind = Kind { devices: 2, peers: true, own_context: true, copies: true, ..PLAIN };
    random_kind("hooked::own_contexts", 16, kind);
}

#[test]
fn frees_that_synchronize() {
    let variables = &[("BFC_MEMORY_LIMIT", "48k"), ("BFC_PRELOAD_FREE", "sync")];
    let kind = Kind { variables, graphs: true, is_sync: true, ..PLAIN };
    random_kind("hooked::frees_that_synchronize", 8, kind);
}

#[test]
fn stream_order() {
    random_kind("hooked::stream_order", 9, ASYNC);
}

#[test]
fn stream_order_of_threads() {
    random_kind("hooked::stream_order_of_threads", 10, Kind { threads: true, ..ASYNC });
}

#[test]
fn stream_order_among_graphs() {
    random_kind("hooked::stream_order_among_graphs", 11, Kind { graphs: true, ..ASYNC });
}

#[test]
fn stream_order_of_peers() {
    random_kind("hooked::stream_order_of_peers", 12, Kind { devices: 2, peers: true, ..ASYNC });
}

/// NULL is the only stream known to the pool, and kernels run on blocking ones.
#[test]
fn stream_order_of_the_legacy_stream() {
    random_kind("hooked::stream_order_of_the_legacy_stream", 26, Kind { legacy: true, ..ASYNC });
}

#[test]
fn stream_order_without_a_limit() {
    let kind = Kind { variables: &[("BFC_PRELOAD_ASYNC", "1")], sizes: UNLIMITED, ..ASYNC };
    random_kind("hooked::stream_order_without_a_limit", 13, kind);
}

#[test]
fn pinned_memory() {
    let kind = Kind {
        variables: &[("BFC_PRELOAD_PINNED", "1")],
        devices: 2,
        pinned: true,
        sizes: UNLIMITED,
        ..PLAIN
    };
    random_kind("hooked::pinned_memory", 19, kind);
}

/// The memory is mapped and remapped in granules.
#[test]
fn granules() {
    let variables = &[("BFC_MEMORY_LIMIT", "16m"), ("BFC_BACKEND", "cuda_vmm")];
    random_kind("hooked::granules", 17, Kind { variables, graphs: true, sizes: GRANULES, ..PLAIN });
}

/// The same, with kernels of two devices that touch each other's memory, and copies between them.
#[test]
fn granules_of_peers() {
    let variables = &[("BFC_MEMORY_LIMIT", "16m"), ("BFC_BACKEND", "cuda_vmm")];
    let kind = Kind { variables, devices: 2, peers: true, copies: true, sizes: GRANULES, ..PLAIN };
    random_kind("hooked::granules_of_peers", 23, kind);
}

#[test]
fn granules_in_stream_order() {
    let variables = &[("BFC_MEMORY_LIMIT", "16m"), ("BFC_BACKEND", "cuda_vmm"), ("BFC_PRELOAD_ASYNC", "1")];
    random_kind("hooked::granules_in_stream_order", 18, Kind { variables, sizes: GRANULES, ..ASYNC });
}

/// Streams of a context of the program's own, on the device whose memory is pooled.
#[test]
fn foreign_streams() {
    random_kind("hooked::foreign_streams", 20, Kind { foreign: true, graphs: true, ..PLAIN });
}

#[test]
fn foreign_streams_in_stream_order() {
    random_kind("hooked::foreign_streams_in_stream_order", 21, Kind { foreign: true, ..ASYNC });
}

#[test]
fn posted_receives_in_stream_order() {
    random_kind("hooked::posted_receives_in_stream_order", 22, Kind { receives: true, ..ASYNC });
}

#[test]
fn granules_and_posted_receives() {
    let variables = &[("BFC_MEMORY_LIMIT", "16m"), ("BFC_BACKEND", "cuda_vmm"), ("BFC_PRELOAD_ASYNC", "1")];
    random_kind(
        "hooked::granules_and_posted_receives",
        23,
        Kind { variables, receives: true, sizes: GRANULES, ..ASYNC },
    );
}

/// The pool grows until the device has no more memory. Then it releases some, which must not break a capture.
#[test]
fn captures_of_all_modes_on_a_small_device() {
    let variables = &[("BFC_TRIM_AFTER", "0.002")];
    let kind =
        Kind { variables, graphs: true, modes: true, others: true, memory: 16 << 20, sizes: LARGE, ..PLAIN };
    random_kind("hooked::captures_of_all_modes_on_a_small_device", 24, kind);
}

#[test]
fn captures_of_all_modes() {
    random_kind("hooked::captures_of_all_modes", 25, Kind { graphs: true, modes: true, devices: 2, ..PLAIN });
}

/// The detection of memory that is reused at once.
#[test]
fn the_mutation_is_seen() {
    run("hooked::the_mutation_is_seen", 14, PLAIN, Interposer::WithoutQuarantine);
}

/// The detection of captures that libbfc does not know: those on a small device are broken.
#[test]
fn captures_that_are_not_announced_are_seen() {
    let test = "hooked::captures_of_all_modes_on_a_small_device";
    let library = preload::library(Interposer::WithoutAnnouncement);
    let simulation = common::simcuda::library();
    let variables = [
        ("LD_PRELOAD", library.to_str().expect("UTF-8")),
        ("SIMCUDA_LIBRARY", simulation.to_str().expect("UTF-8")),
        // The first program that detects it ends the run.
        ("RACES_PROGRAMS", "8000"),
    ];
    let ended = common::child::run(test, &variables);
    assert!(!ended.success, "no capture is broken:\n{}", ended.text);
    assert!(ended.text.contains("901") || ended.text.contains("was broken"), "{}", ended.text);
}

#[test]
fn the_mutation_is_seen_in_stream_order() {
    run("hooked::the_mutation_is_seen_in_stream_order", 15, ASYNC, Interposer::WithoutQuarantine);
}

/// Threads that really run concurrently.
fn run_together(test: &str, first_seed: u64, kind: Kind, which: Interposer) {
    preloaded(test, kind, which, |sim| {
        let (count, mut seen) = (programs() / 4, Seen::default());
        for seed in first_seed..first_seed + count {
            let gpu = begin(sim, kind, seed * BATCH);
            if seed % 3 == 0 {
                // Operations of others during a synchronization.
                sim.delay(c"cuCtxSynchronize".as_ptr(), 100_000);
            }
            together::program(gpu, 2 + (seed % 3) as usize, seed, kind.is_mutated(), &mut seen);
            sim.clear_faults();
        }
        let races = shadow::races().0;
        println!("fact {test}: {count} programs: {} allocations, {races} races", seen.again);
        if kind.is_mutated() {
            assert_seen(races, count);
        }
    });
}

/// Checks that a mutation is detected.
fn assert_seen(races: u64, programs: u64) {
    assert!(races > programs / 4, "{races} races in {programs} programs: the test would not see them");
}

#[test]
fn threads_at_once() {
    run_together("hooked::threads_at_once", 0, PLAIN, Interposer::Shipped);
}

#[test]
fn threads_at_once_with_frees_that_synchronize() {
    let variables = &[("BFC_MEMORY_LIMIT", "48k"), ("BFC_PRELOAD_FREE", "sync")];
    let kind = Kind { variables, is_sync: true, ..PLAIN };
    run_together("hooked::threads_at_once_with_frees_that_synchronize", 1 << 20, kind, Interposer::Shipped);
}

#[test]
fn the_mutation_is_seen_among_threads() {
    run_together("hooked::the_mutation_is_seen_among_threads", 2 << 20, PLAIN, Interposer::WithoutQuarantine);
}
