//! Reuse races on the simulated driver (a simulation, whose streams run their work when they are told to): no
//! memory is handed out while work that was queued before its free may still touch it.
//!
//! RACES_PROGRAMS is the number of random programs that each kind runs. RACES_SEED runs a single program. The log of a
//! failing program is shown, and a run of minutes reports its progress.
//! `cargo xtask test --suite races` runs many in the release build.

mod abandoned;
mod contexts;
mod graphs;
mod judge;
mod mutations;
mod receives;
mod together;
mod world;

use crate::common;
use crate::progress;
use crate::shadow;
use common::gpu::Gpu;
use common::simcuda::steer::{
    CAPTURED_STREAMS_HIDE, FREE_SYNCHRONIZES, RECYCLE_HANDLES, STREAM_QUERIES_UNSAFE,
};
use common::simcuda::{Simulation, simulated, simulated_saying};
use progress::Progress;
use std::env;
use world::{Kind, SIMPLE, World};

/// The number of times that memory was handed out ordered after other streams' queued work.
#[derive(Default)]
struct Seen {
    crossings: u64,
    reuses: u64,
    refused: u64,
    receives: u64,
    judged: u64,
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Programs of each kind, unless the environment sets another number.
fn programs() -> u64 {
    number("RACES_PROGRAMS").unwrap_or(if cfg!(debug_assertions) { 150 } else { 2000 })
}

/// Granules are large, and so is the work on them: an eighth of the others, but not too few. Programs with several
/// contexts, or that are repeatedly run to their end, are a quarter.
fn programs_of(kind: Kind) -> u64 {
    let share = match kind {
        Kind { granules: true, .. } => 8,
        Kind { contexts: true, .. } | Kind { unforgotten: true, .. } => 4,
        Kind { receives: true, .. } | Kind { modes: true, .. } => 4,
        _ => 1,
    };
    (programs() / share).max(programs().min(100))
}

/// One program from beginning to end.
fn program(gpu: Gpu, kind: Kind, seed: u64, seen: &mut Seen) {
    // The driver's possible results for queries about streams during a capture.
    gpu.sim.set(STREAM_QUERIES_UNSAFE, i64::from(seed % 3 != 2));
    gpu.sim.set(CAPTURED_STREAMS_HIDE, i64::from(seed % 3 == 1));
    let context = gpu.enter(0);
    let mut world = World::new(gpu, context, kind, seed);
    let steps = world.random.between(10, 70);
    (0..steps).for_each(|_| world.act());
    let world = world.end();
    gpu.leave(0);
    seen.crossings += world.shadow.crossings;
    seen.reuses += world.shadow.reuses;
    seen.refused += world.refused;
    seen.receives += world.receives;
    seen.judged += world.judged;
    world.judge();
}

/// Random programs of a kind, in a process of their own.
fn random_programs(test: &str, first_seed: u64, kind: Kind) {
    let programs = programs().to_string();
    let seed = number("RACES_SEED").map(|seed| seed.to_string());
    let mut variables = vec![("RACES_PROGRAMS", &*programs)];
    variables.extend(seed.as_deref().map(|seed| ("RACES_SEED", seed)));
    let out = progress::output(test);
    variables.push((progress::VARIABLE, &out));
    let facts = simulated_saying(test, &variables, |sim| {
        let mut seen = Seen::default();
        if let Some(seed) = number("RACES_SEED") {
            return program(begin(sim, kind, seed), kind, seed, &mut seen);
        }
        let (count, mut progress) = (programs_of(kind), Progress::new(test, programs_of(kind)));
        let mut gpu = begin(sim, kind, 0);
        for place in 0..count {
            let seed = (first_seed << 32) + place;
            if seed.is_multiple_of(BATCH) {
                gpu = begin(sim, kind, seed);
            }
            program(gpu, kind, seed, &mut seen);
            if seed % BATCH == BATCH - 1 && !kind.unforgotten {
                sim.assert_clean();
            }
            progress.note(place);
        }
        let Seen { crossings, reuses, refused, receives, judged } = seen;
        println!(
            "fact {test}: {count} programs: memory was handed out {crossings} times behind other streams' queued work, {reuses} \
             times behind the same stream's; {refused} requests were refused; {judged} of {receives} receives judged"
        );
        assert!(crossings > count / 4 && reuses > count, "{crossings} and {reuses}: too few to say anything");
        let few = receives <= count / 4 || 2 * judged <= receives;
        assert!(!few || !kind.receives, "{judged} of {receives} receives judged: too few to say anything");
    });
    common::child::print_facts(&facts);
}

/// Programs between two resets of the simulation.
const BATCH: u64 = 64;

fn begin(sim: Simulation, kind: Kind, seed: u64) -> Gpu {
    assert_eq!(sim.configure(1 + i32::from(kind.contexts), 1 << 30), 0);
    // A handle that was destroyed is the next one that is created.
    sim.set(RECYCLE_HANDLES, ((seed / BATCH) % 2) as i64);
    // It "may" wait for the device's work, says the manual.
    sim.set(FREE_SYNCHRONIZES, ((seed / BATCH / 2) % 2) as i64);
    Gpu::new(sim)
}

#[test]
fn streams() {
    random_programs("library::streams", 1, SIMPLE);
}

#[test]
fn recorded_streams() {
    random_programs("library::recorded_streams", 2, Kind { records: true, ..SIMPLE });
}

#[test]
fn streams_that_end() {
    random_programs("library::streams_that_end", 3, Kind { records: true, ends: true, ..SIMPLE });
}

#[test]
fn default_streams_of_threads() {
    random_programs(
        "library::default_streams_of_threads",
        4,
        Kind { records: true, ends: true, threads: true, ..SIMPLE },
    );
}

#[test]
fn plain_calls_among_them() {
    random_programs("library::plain_calls_among_them", 5, Kind { records: true, plain: true, ..SIMPLE });
}

#[test]
fn captured_graphs() {
    random_programs("library::captured_graphs", 6, Kind { records: true, graphs: true, ..SIMPLE });
}

#[test]
fn everything_at_once() {
    let all = Kind { records: true, ends: true, plain: true, graphs: true, ..SIMPLE };
    random_programs("library::everything_at_once", 7, all);
}

/// Granules that move, and are released by trims, while work is queued on freed memory.
#[test]
fn granules() {
    random_programs("library::granules", 8, Kind { records: true, plain: true, granules: true, ..SIMPLE });
}

#[test]
fn granules_among_graphs() {
    let all = Kind { records: true, ends: true, plain: true, graphs: true, granules: true, ..SIMPLE };
    random_programs("library::granules_among_graphs", 9, all);
}

/// Streams of a context that the program has created, and of a peer, with copies to it.
#[test]
fn streams_of_other_contexts() {
    random_programs(
        "library::streams_of_other_contexts",
        10,
        Kind { records: true, contexts: true, ..SIMPLE },
    );
}

#[test]
fn streams_of_other_contexts_that_end() {
    let all = Kind { records: true, ends: true, plain: true, contexts: true, ..SIMPLE };
    random_programs("library::streams_of_other_contexts_that_end", 11, all);
}

#[test]
fn granules_and_other_contexts() {
    let all = Kind { records: true, ends: true, plain: true, granules: true, contexts: true, ..SIMPLE };
    random_programs("library::granules_and_other_contexts", 12, all);
}

/// NULL and the thread's own stream of each of the contexts: as the only streams, and among others.
#[test]
fn default_streams_of_contexts() {
    let kind = Kind { records: true, contexts: true, defaults: true, ..SIMPLE };
    random_programs("library::default_streams_of_contexts", 23, kind);
}

/// The same, with one of the contexts ending now and then, and another one created, possibly with its handle.
#[test]
fn default_streams_of_contexts_that_end() {
    let kind = Kind { records: true, ends: true, plain: true, contexts: true, defaults: true, ..SIMPLE };
    random_programs("library::default_streams_of_contexts_that_end", 24, kind);
}

#[test]
fn streams_that_are_not_forgotten() {
    let all = Kind { records: true, ends: true, unforgotten: true, ..SIMPLE };
    random_programs("library::streams_that_are_not_forgotten", 13, all);
}

#[test]
fn posted_receives() {
    random_programs(
        "library::posted_receives",
        14,
        Kind { records: true, ends: true, receives: true, ..SIMPLE },
    );
}

/// Neighbours of memory that is freed after a receive were freed before it.
#[test]
fn frees_behind_posted_receives() {
    let all = Kind { records: true, ends: true, receives: true, frees_behind: true, ..SIMPLE };
    random_programs("library::frees_behind_posted_receives", 22, all);
}

#[test]
fn granules_and_posted_receives() {
    let all = Kind { records: true, ends: true, receives: true, granules: true, ..SIMPLE };
    random_programs("library::granules_and_posted_receives", 15, all);
}

#[test]
fn captures_of_all_modes() {
    let all = Kind { records: true, ends: true, plain: true, graphs: true, modes: true, ..SIMPLE };
    random_programs("library::captures_of_all_modes", 16, all);
}

#[test]
fn captures_of_all_modes_among_contexts() {
    let all = Kind { records: true, ends: true, graphs: true, modes: true, contexts: true, ..SIMPLE };
    random_programs("library::captures_of_all_modes_among_contexts", 17, all);
}

/// The programs detect a library that neither queries events nor waits for them.
#[test]
fn what_would_be_seen_without_events() {
    simulated("library::what_would_be_seen_without_events", |sim| {
        let seen = [SIMPLE, Kind { records: true, ..SIMPLE }].map(|kind| {
            let gpu = begin(sim, kind, 0);
            let before = shadow::races().0;
            for seed in 0..50 {
                let context = gpu.enter(0);
                let mut world = World::new(gpu, context, Kind { lies: true, ..kind }, (9 << 32) + seed);
                let steps = world.random.between(10, 70);
                (0..steps).for_each(|_| world.act());
                drop(world.end());
                gpu.leave(0);
            }
            shadow::races().0 - before
        });
        assert!(seen.iter().all(|&races| races > 20), "{seen:?} races in 50 programs each");
    });
}

#[test]
fn threads_at_once() {
    run_together("library::threads_at_once", 0, false);
}

/// Some of them capture, and no other thread breaks the captures.
#[test]
fn threads_at_once_with_captures() {
    run_together("library::threads_at_once_with_captures", 1 << 20, true);
}

fn run_together(test: &str, first_seed: u64, captures: bool) {
    let programs = programs().to_string();
    let out = progress::output(test);
    let mut variables = vec![("RACES_PROGRAMS", &*programs), (progress::VARIABLE, &out)];
    // The library's own thread releases memory concurrently.
    variables.extend(captures.then_some(("BFC_TRIM_AFTER", "0.002")));
    let facts = simulated_saying(test, &variables, |sim| {
        let (count, mut crossings) = (self::programs() / 4, 0);
        let mut progress = Progress::new(test, count);
        for place in 0..count {
            let seed = first_seed + place;
            let gpu = begin(sim, SIMPLE, seed * BATCH);
            if seed.is_multiple_of(2) {
                // Operations of others during an ordering step.
                for function in [c"cuEventRecord", c"cuStreamWaitEvent", c"cuEventQuery"] {
                    sim.delay(function.as_ptr(), 10_000);
                }
            }
            if captures {
                sim.delay(c"cuCtxSynchronize".as_ptr(), 50_000);
            }
            crossings += together::program(gpu, 2 + (seed % 3) as usize, seed, captures);
            sim.assert_clean();
            progress.note(place);
        }
        println!("fact {test}: {count} programs: {crossings} times behind other streams' queued work");
        assert!(crossings > count / 4, "{crossings} are too few to say anything");
    });
    common::child::print_facts(&facts);
}
