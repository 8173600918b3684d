//! The remains of streams that have ended, or were captured, and of frees that nothing waits for: no request waits
//! for them in place of another stream, fails because of them, or keeps their events.

use super::{Request, first_of, fixed_pool, pairs, send, variants};
use crate::common::gpu::{BACKENDS, PER_THREAD};
use crate::common::receive::Receive;
use crate::common::*;
use std::sync::mpsc;

/// A thread's default stream has the place in the library of a forgotten stream. Memory that another thread frees there
/// has no event, and the forgotten stream's last event does not cover it: a request that relied on it would find
/// nothing after it, and wait for the whole context.
#[test]
fn the_last_event_of_a_forgotten_stream_is_of_no_other() {
    variants(BACKENDS, |gpu, (backend, unit)| {
        let (context, bytes) = (gpu.enter(0), 100 * unit);
        let pool = fixed_pool(backend, 228 * unit);
        let [old, compute, comm] = [(); 3].map(|()| gpu.stream(false));
        let known = pool.get_on(unit, compute);
        let sent = pool.get_on(bytes, comm);
        gpu.hold(old);
        let chunk = pool.get_on(bytes, old);
        gpu.fill(old, chunk, bytes, 1);
        pool.put_on(chunk, old);
        pool.forget(old);
        // After the events of its remaining memory.
        let chunk = pool.get_on(110 * unit, compute);
        gpu.sim.release_all();
        pool.put_on(chunk, compute);
        pool.synchronized(compute);
        let ((tell, told), (give, given)) = (mpsc::channel::<()>(), mpsc::channel());
        let shared = &pool;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                gpu.set_current(context);
                let chunk = shared.get_on(bytes, PER_THREAD);
                gpu.hold(PER_THREAD);
                gpu.fill(PER_THREAD, chunk, bytes, 1);
                give.send(chunk).expect("the first thread waits for it");
                // The stream exists as long as its thread.
                let _ = told.recv();
            });
            pool.put(given.recv().expect("the thread sends it"));
            gpu.hold(comm);
            gpu.fill(comm, sent, bytes, 1);
            pool.put_on(sent, comm);
            let receive = Receive::post(gpu, comm);
            let got = Request::Async.make(&pool, bytes, compute);
            let judged = send(gpu, receive, got.clone(), bytes, compute, &[comm]);
            drop(tell);
            pool.put_on(known, compute);
            pool.put_on(got?, compute);
            pool.check();
            judged
        })
    });
}

/// For a captured stream the library neither records an event nor queries the context. Once the capture has ended, a
/// synchronization makes memory freed there reusable, although the program does not name the stream again.
#[test]
fn what_was_freed_in_a_capture_is_not_lost() {
    variants(BACKENDS, |gpu, (backend, unit)| {
        gpu.enter(0);
        let (pool, bytes) = (fixed_pool(backend, 128 * unit), 100 * unit);
        let [captured, compute] = [(); 2].map(|()| gpu.stream(false));
        let known = pool.get_on(unit, compute);
        let chunk = pool.get_on(bytes, captured);
        gpu.fill(captured, chunk, bytes, 1);
        gpu.begin_capture(captured);
        pool.put_on(chunk, captured);
        gpu.destroy_graph(gpu.end_capture(captured));
        let address = Request::Async.make(&pool, bytes, compute)?;
        [known, address].into_iter().for_each(|address| pool.put(address));
        pool.check();
        Ok(())
    });
}

/// The operations of a round of a steady state.
#[derive(Clone, Copy, Debug)]
enum Round {
    InOrder,
    /// Recorded on the next stream.
    Recorded,
    /// Freed on the next stream.
    Elsewhere,
    /// Two chunks: one freed on the other's stream, the other recorded there.
    Exchanged,
}

/// While no work completes, the library holds a limited number of events and bytes of metadata.
#[test]
fn events_and_metadata_are_bounded() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 1000 } else { 4000 };
    let rounds = [Round::InOrder, Round::Recorded, Round::Elsewhere, Round::Exchanged];
    let kinds = pairs(pairs(rounds, [2, 8]), BACKENDS);
    variants(kinds, |gpu, ((round, streams), (backend, unit))| {
        gpu.enter(0);
        let pool = fixed_pool(backend, 1024 * unit);
        let streams: Vec<u64> = (0..streams).map(|_| gpu.stream(false)).collect();
        streams.iter().for_each(|&stream| gpu.hold(stream));
        let mut random = Random::new(5);
        let (mut most, mut least) = ((0, 0), None);
        for number in 0..ROUNDS {
            let at = random.index(streams.len());
            let (own, other) = (streams[at], streams[(at + 1) % streams.len()]);
            let address = Request::Async.make(&pool, random.between(1, 200) * unit, own)?;
            match round {
                Round::InOrder => pool.put_on(address, own),
                Round::Elsewhere => pool.put_on(address, other),
                Round::Recorded | Round::Exchanged => {
                    if matches!(round, Round::Exchanged) {
                        pool.put_on(Request::Async.make(&pool, random.between(1, 200) * unit, other)?, own);
                    }
                    assert_eq!(pool.record(address, other), BFC_OK, "{}", last_error());
                    pool.put_on(address, own);
                }
            }
            let events = gpu.sim.calls("cuEventCreate") - gpu.sim.calls("cuEventDestroy_v2");
            most = (events, pool.stats().metadata_bytes);
            if number == ROUNDS / 2 {
                least = Some(most);
            }
        }
        gpu.sim.release_all();
        pool.check();
        let (events, bytes) = least.expect("more than one round");
        first_of([
            (most.0 > events + events / 2 + 32, "the number of events grows"),
            (most.1 > bytes + bytes / 2, "the metadata grows"),
        ])
    });
}
