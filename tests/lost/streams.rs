//! A program that ends the context of its device memory, on the simulated driver: a simulation, whose rules
//! about primary contexts are those of NVIDIA's manual (its README) and were compared with no real driver.
//!
//! Here: streams, events and private pools.

use crate::common::gpu::Gpu;
use crate::common::lost::*;
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::{EVENTS, REUSE_ADDRESSES};
use crate::common::*;
use std::time::Duration;

/// Streams, recorded events, recorded uses, private pools: none of them is left, and none is destroyed,
/// which with the real driver would be a use of resources that no longer exist.
#[test]
fn streams_events_and_private_pools_are_forgotten() {
    simulated("streams_events_and_private_pools_are_forgotten", |sim| {
        for told in [true, false] {
            sim.set(REUSE_ADDRESSES, 0);
            let (pool, gpu) = (Pool::on_device(0, |options| options.memory_limit = 16 * MIB), Gpu::new(sim));
            gpu.enter(0);
            let [one, other] = [0; 2].map(|_| gpu.stream(false));
            sim.hold(pointer(one));
            let recorded = pool.alloc_on(MIB, other).unwrap();
            assert_eq!(pool.record(recorded, one), BFC_OK);
            let mut live = vec![pool.alloc_on(MIB, one).unwrap(), pool.alloc_on(MIB, other).unwrap()];
            for _ in 0..3 {
                let address = pool.alloc_on(2 * MIB, one).unwrap();
                sim.fill(pointer(one), address, MIB, 7);
                live.push(address);
            }
            for address in live.drain(2..) {
                assert_eq!(pool.free_on(address, one), BFC_OK);
            }
            assert_eq!(pool.free_on(recorded, other), BFC_OK);
            // More than the limit leaves: the other stream is made to wait for the work of the first.
            live.push(pool.alloc_on(7 * MIB, other).unwrap());
            assert!(sim.live(EVENTS) > 0, "an event is out");
            assert_eq!(pool.begin_private(5, other), BFC_OK);
            live.push(pool.alloc_on(256, other).unwrap());
            gpu.reset(0);
            assert_eq!(sim.live(EVENTS), 0);
            if told {
                lost(0);
                assert_empty(&pool);
            }
            gpu.enter(0);
            let stream = gpu.stream(false);
            // Nothing that it would have waited for exists.
            let new = pool.alloc_on(15 * MIB, stream).unwrap();
            live.into_iter().for_each(|address| assert_refused(&pool, address));
            assert_eq!(pool.end_private(5, other), BFC_ERROR_INVALID_ARGUMENT);
            assert_eq!(pool.release_private(5), BFC_ERROR_INVALID_ARGUMENT);
            assert_eq!(pool.try_forget(other), BFC_OK);
            assert_eq!(pool.free_on(new, stream), BFC_OK);
            pool.check();
            let same = pool.alloc_on(15 * MIB, stream).unwrap();
            assert_eq!(same, new, "on one stream at once");
            pool.put(same);
            assert_eq!(pool.destroy(), BFC_OK);
            gpu.destroy_stream(stream);
            gpu.leave(0);
            gpu.leave(0);
            sim.assert_clean();
        }
    });
}

/// A pool that has used several streams begins with one again: the placements are those of a fresh one.
#[test]
fn the_next_life_is_as_the_first() {
    simulated("the_next_life_is_as_the_first", |sim| {
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let program = |pool: &Pool, stream: u64| {
            let mut random = Random::new(7);
            let (mut live, mut placed) = (Vec::new(), Vec::new());
            for _ in 0..2000 {
                if live.len() < 20 || random.below(2) == 0 {
                    let address = pool.alloc_on(1 + random.below(MIB), stream).unwrap();
                    live.push(address);
                    placed.push(address);
                } else {
                    let place = random.below(live.len() as u64) as usize;
                    assert_eq!(pool.free_on(live.swap_remove(place), stream), BFC_OK);
                }
            }
            pool.check();
            placed
        };
        gpu.enter(0);
        let first = program(&pool, gpu.stream(false));
        // More than one in between.
        pool.alloc_on(MIB, 0).unwrap();
        for _ in 0..2 {
            gpu.reset(0);
            lost(0);
            gpu.enter(0);
            assert_eq!(program(&pool, gpu.stream(false)), first);
            gpu.leave(0);
        }
        drop(pool);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A thread that queries events meanwhile returns to a pool that has none, so the events that it returns are not kept.
#[test]
fn who_asks_about_events_comes_back_to_none() {
    simulated("who_asks_about_events_comes_back_to_none", |sim| {
        let (pool, gpu) = (Pool::on_device(0, |options| options.memory_limit = 16 * MIB), Gpu::new(sim));
        for function in [c"cuEventQuery", c"cuCtxSynchronize"] {
            gpu.enter(0);
            let streams = [0; 3].map(|_| gpu.stream(false));
            for &stream in &streams[..2] {
                sim.hold(pointer(stream));
                let address = pool.alloc_on(4 * MIB, stream).unwrap();
                sim.fill(pointer(stream), address, MIB, 7);
                assert_eq!(pool.free_on(address, stream), BFC_OK);
            }
            let before = sim.calls_of(function);
            // After the call, because before it the event would be one that was destroyed.
            sim.delay(c"cuCtxPopCurrent".as_ptr(), 300_000_000);
            std::thread::scope(|scope| {
                let (last, pool) = (streams[2], &pool);
                let asks_for_events = function == c"cuEventQuery";
                let other = scope.spawn(move || match asks_for_events {
                    true => pool.alloc_on(15 * MIB, last).map(|address| assert_eq!(free(0, address), BFC_OK)),
                    false => pool.try_trim(0).map(drop),
                });
                let since = std::time::Instant::now();
                while sim.calls_of(function) == before {
                    assert!(since.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(30));
                gpu.reset(0);
                lost(0);
                assert_empty(pool);
                other.join().unwrap().expect("it is served, or has nothing to do");
            });
            sim.clear_faults();
            pool.check();
            // Its stream belonged to the old life, and is known in the new one now, so it is forgotten too. An event
            // that was kept would still exist.
            gpu.reset(0);
            lost(0);
            gpu.enter(0);
            let streams = [0; 2].map(|_| gpu.stream(false));
            sim.hold(pointer(streams[0]));
            let address = pool.alloc_on(15 * MIB, streams[0]).unwrap();
            sim.fill(pointer(streams[0]), address, MIB, 7);
            assert_eq!(pool.free_on(address, streams[0]), BFC_OK);
            let behind = pool.alloc_on(15 * MIB, streams[1]).unwrap_or_else(|_| panic!("{}", last_error()));
            assert_eq!(pool.free_on(behind, streams[1]), BFC_OK);
            pool.check();
            assert_eq!(sim.misuse_texts(), [""; 0]);
            gpu.reset(0);
            lost(0);
            gpu.leave(0);
            gpu.leave(0);
        }
        drop(pool);
        sim.assert_clean();
    });
}
