//! Random programs that use the library's C functions.

mod graphs;
mod mutations;
mod steps;

use crate::common::gpu::Gpu;
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::EVENTS;
use crate::common::*;
use crate::driver::Driver;
use crate::harness::{self, kinds};
use crate::kind::{GRANULES, Kind, SIMPLE};
use crate::shadow;
use crate::world::{Seen, World};
use std::ops::Deref;

/// The C functions, and the driver beside them. The pool is on device 0.
#[derive(Clone, Copy)]
pub struct Library(Gpu);

impl Deref for Library {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.0
    }
}

fn result(status: Status) -> Result<(), Status> {
    if status == BFC_OK { Ok(()) } else { Err(status) }
}

impl Driver for Library {
    type Pool = Pool;
    const HOOKED: bool = false;
    const OUT_OF_MEMORY: Status = BFC_ERROR_OUT_OF_MEMORY;

    fn new(gpu: Gpu) -> Library {
        Library(gpu)
    }

    fn alloc(self, bytes: u64) -> Result<u64, Status> {
        alloc(0, bytes as usize)
    }

    fn free(self, address: u64) -> Result<(), Status> {
        result(free(0, address))
    }

    fn alloc_async(self, bytes: u64, stream: u64) -> Result<u64, Status> {
        alloc_async(0, bytes as usize, stream)
    }

    fn free_async(self, address: u64, stream: u64) -> Result<(), Status> {
        result(free_async(0, address, stream))
    }

    /// A small pool, so that memory is scarce.
    fn pool(self, random: &mut Random, kind: Kind) -> Pool {
        Pool::on_device(0, |wanted| {
            (wanted.backend, wanted.memory_limit) = match kind.granules {
                true => (BFC_BACKEND_CUDA_VMM, [8, 12, 16, 24][random.index(4)] << 20),
                false => (BFC_BACKEND_CUDA, [8, 16, 32, 64][random.index(4)] << 10),
            };
            wanted.flags = 0;
            if !random.one_in(3) {
                wanted.flags = BFC_ALLOW_GROWTH;
                wanted.initial_region_bytes = [4, 16][random.index(2)] << 10;
            }
            if random.one_in(2) {
                wanted.flags |= BFC_GARBAGE_COLLECTION;
            }
            if random.one_in(4) {
                wanted.flags |= BFC_SPLIT_ALWAYS;
            }
        })
    }

    fn shared_pool(self) -> Pool {
        Pool::on_device(0, |wanted| {
            (wanted.memory_limit, wanted.initial_region_bytes) = (32 << 10, 8 << 10);
            wanted.flags = BFC_ALLOW_GROWTH;
        })
    }

    fn end_pool(self, pool: &Pool) {
        pool.check();
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        assert_eq!(self.sim.live(EVENTS), 0, "events are left");
    }

    fn act(world: &mut World<Library>) {
        world.act();
    }

    fn usable(world: &World<Library>, address: u64, _: u64) -> u64 {
        world.pool.allocated_size(address).expect("live")
    }

    fn free_at(world: &mut World<Library>, index: usize) {
        world.free_at(index);
    }

    fn between(world: &mut World<Library>, comm: usize, sender: usize) -> Vec<(u64, u64)> {
        world.between(comm, sender)
    }

    fn capture(world: &mut World<Library>) {
        world.capture();
    }

    fn launch(world: &mut World<Library>) {
        world.launch();
    }

    fn end_graph(world: &mut World<Library>, index: usize) {
        world.destroy_graph(index);
    }

    fn assert_telling(seen: &Seen, count: u64, kind: Kind) {
        let Seen { crossings, reuses, receives, judged, failed, .. } = *seen;
        assert!(crossings > count / 4 && reuses > count, "{crossings} and {reuses}: too few to say anything");
        assert!(failed > count / 2 || !kind.fails, "{failed} failures: too few to say anything");
        let few = receives <= count / 4 || 2 * judged <= receives;
        assert!(!few || !kind.receives, "{judged} of {receives} receives judged: too few to say anything");
    }
}

const RECORDS: Kind = Kind { records: true, ..SIMPLE };
const ENDS: Kind = Kind { ends: true, ..RECORDS };
const RECEIVES: Kind = Kind { receives: true, ..ENDS };
const MODES: Kind = Kind { graphs: true, modes: true, ..ENDS };
const MAPPED: Kind = Kind { granules: true, sizes: GRANULES, plain: true, ..RECORDS };

/// Some streams belong to a context that the program has created, and to another device, which is a peer.
const CONTEXTS: Kind = Kind { devices: 2, peers: true, foreign: true, ..RECORDS };

/// Calls of the driver fail.
const FAILS: Kind = Kind { fails: true, plain: true, ..ENDS };

kinds! { Library:
    fn streams: 1, SIMPLE;
    fn recorded_streams: 2, RECORDS;
    fn streams_that_end: 3, ENDS;
    fn default_streams_of_threads: 4, Kind { threads: true, ..ENDS };
    fn plain_calls_among_them: 5, Kind { plain: true, ..RECORDS };
    fn captured_graphs: 6, Kind { graphs: true, ..RECORDS };
    fn everything_at_once: 7, Kind { plain: true, graphs: true, ..ENDS };
    /// Granules that move, and are released by trims, while work is queued on freed memory.
    fn granules: 8, MAPPED;
    fn granules_among_graphs: 9, Kind { ends: true, graphs: true, ..MAPPED };
    /// Streams of a context that the program has created, and of a peer, with copies to it.
    fn streams_of_other_contexts: 10, CONTEXTS;
    fn streams_of_other_contexts_that_end: 11, Kind { ends: true, plain: true, ..CONTEXTS };
    fn granules_and_other_contexts: 12,
        Kind { granules: true, sizes: GRANULES, ends: true, plain: true, ..CONTEXTS };
    fn streams_that_are_not_forgotten: 13, Kind { unforgotten: true, ..ENDS };
    fn posted_receives: 14, RECEIVES;
    fn granules_and_posted_receives: 15, Kind { granules: true, sizes: GRANULES, ..RECEIVES };
    fn failing_calls: 25, FAILS;
    fn failing_calls_among_threads: 26, Kind { threads: true, ..FAILS };
    fn failing_calls_among_contexts: 27, Kind { fails: true, plain: true, ends: true, ..CONTEXTS };
    fn captures_of_all_modes: 16, Kind { plain: true, ..MODES };
    fn captures_of_all_modes_among_contexts: 17, Kind { graphs: true, modes: true, ends: true, ..CONTEXTS };
    /// Neighbours of memory that is freed after a receive were freed before it.
    fn frees_behind_posted_receives: 22, Kind { frees_behind: true, ..RECEIVES };
    /// NULL and the thread's own stream of each of the contexts: as the only streams, and among others.
    fn default_streams_of_contexts: 23, Kind { defaults: true, ..CONTEXTS };
    /// The same, with one of the contexts ending now and then, and another one created, possibly with its handle.
    fn default_streams_of_contexts_that_end: 24, Kind { defaults: true, ends: true, plain: true, ..CONTEXTS };
}

/// The programs detect a library that neither queries events nor waits for them.
#[test]
fn what_would_be_seen_without_events() {
    simulated(&harness::test(), |sim| {
        let seen = [SIMPLE, RECORDS].map(|kind| {
            let kind = Kind { lies: true, ..kind };
            let (gpu, before) = (harness::begin::<Library>(sim, kind, 0), shadow::races().0);
            (0..50).for_each(|seed| harness::program(gpu, kind, (9 << 32) + seed, &mut Seen::default()));
            shadow::races().0 - before
        });
        assert!(seen.iter().all(|&races| races > 20), "{seen:?} races in 50 programs each");
    });
}

#[test]
fn threads_at_once() {
    harness::concurrent_programs::<Library>(0, false, SIMPLE);
}

/// Some of them capture, and no other thread breaks the captures.
#[test]
fn threads_at_once_with_captures() {
    harness::concurrent_programs::<Library>(1 << 20, true, SIMPLE);
}
