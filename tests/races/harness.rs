//! Runs random programs of a kind, each test in a process of its own, and reports the progress of a long run. The
//! output of that process is kept until its end, so the progress goes to the standard error of its parent.

use crate::common::child;
use crate::common::gpu::Gpu;
use crate::common::preload;
use crate::common::simcuda::steer::{
    CAPTURED_STREAMS_HIDE, FREE_SYNCHRONIZES, RECYCLE_HANDLES, STREAM_QUERIES_UNSAFE,
};
use crate::common::simcuda::{Simulation, simulated_saying};
use crate::driver::Driver;
use crate::kind::{Kind, UNLIMITED};
use crate::world::{Seen, World};
use crate::{shadow, together};
use std::env;
use std::time::{Duration, Instant};

/// The file descriptor to which the lines about the progress are written.
const VARIABLE: &str = "RACES_PROGRESS";

/// The time between two of them: a short run prints none.
const PAUSE: Duration = Duration::from_secs(60);

/// Programs between two resets of the simulation.
pub const BATCH: u64 = 64;

/// The name of the running test, which its thread has.
pub fn test() -> String {
    std::thread::current().name().expect("a test's own thread").to_owned()
}

pub fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Programs of each kind, unless the environment sets another number. With the interposer they are slower.
fn programs<D: Driver>() -> u64 {
    let many = if cfg!(debug_assertions) { 150 } else { 2000 };
    number("RACES_PROGRAMS").unwrap_or(if D::HOOKED { many * 2 / 3 } else { many })
}

/// The variable for the child: in the parent, a copy of its standard error, which the child inherits.
fn output(test: &str) -> String {
    if child::is_child(test) {
        return env::var(VARIABLE).unwrap_or_default();
    }
    // SAFETY: a copy of an open file descriptor, which lives as long as this process.
    let copy = unsafe { libc::dup(2) };
    copy.to_string()
}

/// Runs `count` programs by their places, and reports how many have run.
fn each(test: &str, count: u64, mut program: impl FnMut(u64)) {
    let mut last = Instant::now();
    for done in 0..count {
        program(done);
        if last.elapsed() < PAUSE {
            continue;
        }
        last = Instant::now();
        let Some(descriptor) = number(VARIABLE) else { continue };
        let line = format!("{test}: {done} of {count} programs\n");
        // SAFETY: the buffer has that many bytes; an invalid descriptor is an error, which does not matter.
        let _ = unsafe { libc::write(descriptor as i32, line.as_ptr().cast(), line.len()) };
    }
}

/// Runs work in a process of its own, with the interposer if the driver needs it, and shows its facts.
fn in_child<D: Driver>(kind: Kind, more: &[(&str, &str)], work: impl FnOnce(&str, Simulation)) {
    let (test, programs) = (test(), programs::<D>().to_string());
    let (seed, out) = (env::var("RACES_SEED").ok(), output(&test));
    let mut variables = [&[("RACES_PROGRAMS", &*programs), (VARIABLE, &*out)], kind.variables, more].concat();
    variables.extend(seed.as_deref().map(|seed| ("RACES_SEED", seed)));
    if D::HOOKED && !child::is_child(&test) {
        variables.push(("LD_PRELOAD", preload::library(kind.interposer).to_str().expect("UTF-8")));
    }
    child::print_facts(&simulated_saying(&test, &variables, |sim| work(&test, sim)));
}

pub fn begin<D: Driver>(sim: Simulation, kind: Kind, seed: u64) -> D {
    assert_eq!(sim.configure(kind.devices as i32, kind.memory), 0);
    // A handle that was destroyed is the next one that is created.
    sim.set(RECYCLE_HANDLES, ((seed / BATCH) % 2) as i64);
    // It "may" wait for the device's work, says the manual. Memory that the driver itself serves during captures is
    // freed as if it did, as programs do.
    let waits = (seed / BATCH / 2) % 2 == u64::from(!D::HOOKED) || kind.is_async && kind.graphs;
    sim.set(FREE_SYNCHRONIZES, i64::from(waits));
    D::new(Gpu::new(sim))
}

/// One program from beginning to end.
pub fn program<D: Driver>(gpu: D, kind: Kind, seed: u64, seen: &mut Seen) {
    // The driver's possible results for queries about streams during a capture.
    gpu.sim.set(STREAM_QUERIES_UNSAFE, i64::from(seed % 3 != 2));
    gpu.sim.set(CAPTURED_STREAMS_HIDE, i64::from(seed % 3 == 1));
    let mut world = World::new(gpu, kind, seed);
    // Under the interposer, some free so much memory that requests wait for it. Without a limit only those reuse memory.
    let is_long = D::HOOKED && world.random.one_in(if kind.sizes == UNLIMITED { 8 } else { 32 });
    let steps = if is_long { 1500 } else { world.random.between(10, 70) };
    (0..steps).for_each(|_| D::act(&mut world));
    if D::HOOKED && !kind.own_context && !kind.foreign && world.random.one_in(8) {
        world.reset();
        (0..20).for_each(|_| D::act(&mut world));
    }
    world.end();
    world.judge();
    seen.add(&world);
}

/// Random programs of a kind.
pub fn random_programs<D: Driver>(number_of_kind: u64, kind: Kind) {
    in_child::<D>(kind, &[], |test, sim| {
        let mut seen = Seen::default();
        if let Some(seed) = number("RACES_SEED") {
            return program::<D>(begin(sim, kind, seed), kind, seed, &mut seen);
        }
        let (all, mut gpu) = (programs::<D>(), begin::<D>(sim, kind, 0));
        // Not too few.
        let count = (all / kind.share()).max(all.min(if D::HOOKED { 50 } else { 100 }));
        each(test, count, |place| {
            let seed = (number_of_kind << 32) + place;
            if seed.is_multiple_of(BATCH) {
                gpu = begin(sim, kind, seed);
            }
            program(gpu, kind, seed, &mut seen);
        });
        let races = shadow::races().0;
        println!("fact {test}: {count} programs: {seen:?}, {races} races");
        if kind.is_mutated() {
            return assert_seen(races, count);
        }
        D::assert_telling(&seen, count, kind);
    });
}

/// Programs of threads that really run concurrently.
pub fn concurrent_programs<D: Driver>(first_seed: u64, captures: bool, kind: Kind) {
    // The library's own thread releases memory concurrently.
    let trims: &[_] = if captures { &[("BFC_TRIM_AFTER", "0.002")] } else { &[] };
    in_child::<D>(kind, trims, |test, sim| {
        let (count, mut sum) = (programs::<D>() / 4, 0);
        each(test, count, |place| {
            let seed = first_seed + place;
            let gpu = begin::<D>(sim, kind, seed * BATCH);
            // Operations of others during an ordering step, or a synchronization.
            if !D::HOOKED && seed.is_multiple_of(2) {
                for function in [c"cuEventRecord", c"cuStreamWaitEvent", c"cuEventQuery"] {
                    sim.delay(function.as_ptr(), 10_000);
                }
            }
            if captures || D::HOOKED && seed.is_multiple_of(3) {
                sim.delay(c"cuCtxSynchronize".as_ptr(), if captures { 50_000 } else { 100_000 });
            }
            sum += together::program(gpu, 2 + (seed % 3) as usize, seed, captures, kind.is_mutated());
            if !kind.is_mutated() {
                sim.assert_clean();
            }
            sim.clear_faults();
        });
        let races = shadow::races().0;
        println!("fact {test}: {count} programs: {sum} times memory to reuse, {races} races");
        if kind.is_mutated() {
            return assert_seen(races, count);
        }
        assert!(sum > count / 4, "{sum} are too few to say anything");
    });
}

/// Checks that a defect is detected.
pub fn assert_seen(races: u64, programs: u64) {
    assert!(races > programs / 4, "{races} races in {programs} programs: the test would not see them");
}

/// The tests of kinds: for each a name, a number for its seeds, and what differs from [`SIMPLE`] or another kind.
macro_rules! kinds {
    ($driver:ty: $($(#[$doc:meta])* fn $name:ident: $number:literal, $kind:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                crate::harness::random_programs::<$driver>($number, $kind);
            }
        )*
    };
}
pub(crate) use kinds;
