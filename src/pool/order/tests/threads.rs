//! Several threads at once on several streams.

use super::create;
use super::device::{Clock, Device};
use crate::error::ErrorKind;
use crate::pool::slot::Slot;
use crate::pool::{alloc, free, lifecycle, order};
use crate::sys::thread;
use bfc_core::stream_id::Stream;
use bfc_core::testing::Random;
use bfc_core::units::UNIT;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const THREADS: u64 = 4;

/// Runs one thread's program. It has a stream of its own, which ends now and then, and its default stream. It frees
/// chunks on either.
fn work(slot: &'static Slot, device: &'static Device, number: u64, steps: u64) {
    let mut random = Random(number);
    let own = thread::number().unwrap();
    let handle = 100 + number;
    let mut streams = {
        let mut state = device.state();
        [
            (Stream::of_thread(own), state.add_stream(2, own)),
            (Stream::of_handle(handle), state.add_stream(handle, 0)),
        ]
    };
    let mut live: Vec<(u64, u64, usize)> = Vec::new();
    for _ in 0..steps {
        match random.below(100) {
            0 => {
                let stream = Stream::of_handle(handle);
                assert_eq!(order::forget(&mut slot.enter().unwrap(), stream), Ok(()));
                let mut state = device.state();
                state.destroy_stream(handle, 0);
                streams[1].1 = state.add_stream(handle, 0);
            }
            1..=50 => {
                let (stream, queue) = random.pick(&streams);
                let bytes = UNIT * (1 + random.below(8));
                match alloc::alloc(slot, bytes, stream) {
                    Ok(addr) => {
                        let guard = slot.enter().unwrap();
                        let bytes = guard.arena.chunks().size(guard.arena.chunk_in_use(addr).unwrap());
                        drop(guard);
                        device.state().take(addr, bytes, queue);
                        live.push((addr, bytes, queue));
                    }
                    Err(error) => assert_eq!(error, ErrorKind::OutOfMemory),
                }
            }
            _ if !live.is_empty() => {
                let place = random.below(live.len() as u64) as usize;
                let (addr, bytes, queue) = live.swap_remove(place);
                let (stream, freed_on) = random.pick(&streams);
                let mut state = device.state();
                state.launch(queue);
                // Work queued on the allocating stream is done first, even if that stream has ended.
                if freed_on != queue {
                    state.run(queue);
                }
                let clock = Clock::from([(freed_on, state.launch(freed_on))]);
                state.put(addr, bytes, &clock);
                drop(state);
                assert_eq!(free::free_on(slot, addr, stream, false), Ok(()));
            }
            _ => {}
        }
    }
    for (addr, ..) in live {
        assert_eq!(free::free(slot, addr), Ok(()));
    }
}

#[test]
fn threads_on_several_streams() {
    let (slot, device) = (&*Box::leak(Box::new(Slot::new())), Device::new(true));
    let steps = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    for seed in 0..4 {
        create(slot, device, seed % 2 == 0, 96 * UNIT);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let device_works = scope.spawn(|| {
                let mut random = Random(seed);
                while !over.load(Relaxed) {
                    let mut state = device.state();
                    for _ in 0..random.below(20) {
                        let queues = state.queues.len() as u64;
                        if queues != 0 {
                            state.step(random.below(queues) as usize);
                        }
                    }
                    drop(state);
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..THREADS)
                .map(|number| scope.spawn(move || work(slot, device, seed * THREADS + number, steps)))
                .collect();
            let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            over.store(true, Relaxed);
            device_works.join().unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        });
        assert_eq!(slot.enter().unwrap().arena.check(), Ok(()));
        assert_eq!(lifecycle::destroy(slot, false), Ok(()), "nothing is lost");
        let state = device.state();
        assert!(state.wrong.is_empty(), "{:#?}", state.wrong);
        assert_eq!((state.events_alive(), state.held), (0, 0));
    }
}
