//! Default streams of other contexts: NULL and the thread's own stream belong to the context that is current at the call,
//! and the pool waits for their work like for that of any other stream.

use super::contexts::{Home, Next, Use, Variant, is_waited_for};
use super::{Mark, REQUESTS, Request, first_of, fixed_pool, misuses, pairs, variants};
use crate::common::gpu::{BACKENDS, PER_THREAD};
use crate::common::ordered::record_stream;
use crate::common::simcuda::steer::{ALLOCATIONS, EVENTS, FREE_SYNCHRONIZES, POISON, RECYCLE_HANDLES};
use crate::common::*;
use cuda_sys::{CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_UNKNOWN};
use std::sync::Barrier;

#[test]
fn foreign_default_streams_are_waited_for() {
    use Use::*;
    let uses = [Recorded, FreedThere, AllocatedThere, FreedPlainly, Only];
    // Memory is not allocated in the order of another device's default stream.
    let kinds = pairs([Home::Peer, Home::Created, Home::Green], uses).into_iter();
    let kinds = kinds.filter(|&(home, use_)| home != Home::Peer || matches!(use_, Recorded | FreedThere));
    let nexts = REQUESTS.map(Next::Request).into_iter().chain([Next::Destruction]);
    let kinds = pairs(kinds, pairs([0, PER_THREAD], nexts)).into_iter();
    let kinds = kinds.map(|((home, use_), (there, next))| Variant {
        backend: BACKENDS[0],
        home,
        use_,
        next,
        default: Some(there),
        elsewhere: false,
    });
    variants(kinds, is_waited_for);
}

/// The same handle in two contexts denotes two streams, even while nothing else is known.
#[test]
fn default_streams_of_two_contexts_wait_for_each_other() {
    // Whether the pool's own context is first.
    let kinds = pairs([0, 1, PER_THREAD], pairs([Home::Created, Home::Green], [true, false]));
    variants(kinds, |gpu, (stream, (home, own))| {
        let primary = gpu.enter(0);
        let contexts = [primary, home.enter(gpu, primary)];
        let [first, second] = if own { contexts } else { [contexts[1], contexts[0]] };
        let (pool, bytes) = (fixed_pool(BFC_BACKEND_CUDA, 128 * KIB), 100 * KIB);
        gpu.set_current(first);
        gpu.hold(stream);
        let chunk = pool.get_on(bytes, stream);
        gpu.fill(stream, chunk, bytes, 1);
        gpu.expect(stream, chunk, bytes, 1);
        let done = Mark::queue(gpu, stream);
        pool.put_on(chunk, stream);
        // Its own memory is reusable at once.
        assert_eq!(pool.get_on(bytes, stream), chunk);
        pool.put_on(chunk, stream);
        gpu.set_current(second);
        let got = Request::Async.make(&pool, bytes, stream)?;
        gpu.fill(stream, got, bytes, 2);
        let is_early = done.is_overtaken(gpu, stream);
        gpu.sim.release_all();
        pool.put_on(got, stream);
        gpu.set_current(contexts[0]);
        pool.check();
        misuses(gpu)?;
        first_of([
            (gpu.sim.mismatches() != 0, "wrong data"),
            (is_early, "the other context's work on the memory is not done"),
        ])
    });
}

/// Without a living context current, a default stream is that of the pool's own context. Nothing of a context that has
/// ended is passed to the driver.
#[test]
fn contexts_that_end_leave_nothing() {
    // Whether the stream is forgotten, and handles come again.
    let kinds = pairs([0, PER_THREAD], pairs([true, false], [true, false]));
    variants(kinds, |gpu, (stream, (told, recycled))| {
        gpu.sim.set(RECYCLE_HANDLES, i64::from(recycled));
        let own = gpu.enter(0);
        let pool = fixed_pool(BFC_BACKEND_CUDA, 128 * KIB);
        let here = gpu.stream(false);
        let ended = gpu.own_context(0);
        let [kept, given, used] = [here, stream, here].map(|stream| pool.get_on(10 * KIB, stream));
        let there = pool.get_on(10 * KIB, stream);
        assert_eq!(pool.record(used, stream), BFC_OK);
        pool.put_on(given, stream);
        gpu.set_current(own);
        pool.put_on(used, here);
        gpu.set_current(ended);
        if told {
            pool.forget(stream);
        } else {
            pool.put_on(there, stream);
        }
        let live = gpu.sim.live(EVENTS);
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let (begin, end, pool) = (&begin, &end, &pool);
            scope.spawn(move || {
                gpu.set_current(ended);
                begin.wait();
                end.wait();
                // The context is current in this thread, and destroyed.
                let chunk = pool.get_on(KIB, stream);
                assert_eq!(record_stream(0, chunk, stream), BFC_OK, "{}", last_error());
                assert_eq!(record_stream(0, kept, stream), BFC_OK, "{}", last_error());
                pool.put_on(chunk, stream);
            });
            begin.wait();
            gpu.destroy_context(ended);
            end.wait();
        });
        assert!(gpu.sim.live(EVENTS) >= live, "the pool's events are of its own context");
        let next = gpu.own_context(0);
        let again = pool.get_on(KIB, stream);
        pool.put_on(again, stream);
        gpu.set_current(0);
        let none = pool.get_on(KIB, stream);
        pool.put_on(none, stream);
        gpu.set_current(own);
        if told {
            pool.put(there);
        }
        pool.put_on(kept, here);
        let all = Request::Async.make(&pool, 120 * KIB, here)?;
        pool.put_on(all, here);
        pool.check();
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        gpu.destroy_context(next);
        gpu.destroy_stream(here);
        assert_eq!((gpu.sim.live(EVENTS), gpu.sim.live(ALLOCATIONS)), (0, 0));
        misuses(gpu)
    });
}

/// Each thread's own stream has the same handle. A pool that another thread destroys waits for the stream whose memory
/// it holds.
#[test]
fn the_end_waits_for_streams_of_other_threads() {
    variants([Home::Created, Home::Green], |gpu, home| {
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        let own = gpu.enter(0);
        let foreign = home.enter(gpu, own);
        let (pool, bytes) = (fixed_pool(BFC_BACKEND_CUDA, 128 * KIB), 100 * KIB);
        let done = std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                gpu.set_current(foreign);
                gpu.hold(PER_THREAD);
                let chunk = pool.get_on(bytes, PER_THREAD);
                gpu.fill(PER_THREAD, chunk, bytes, 1);
                Mark::queue(gpu, PER_THREAD)
            });
            work.join().unwrap()
        });
        gpu.set_current(own);
        assert_eq!(pool.destroy_forced(), BFC_OK, "{}", last_error());
        let is_early = !done.is_reached();
        gpu.sim.release_all();
        misuses(gpu)?;
        first_of([(is_early, "the memory is given back while the other thread's stream works on it")])
    });
}

/// A failing driver call does not show that its context has ended.
#[test]
fn a_failing_driver_does_not_end_a_context() {
    variants([CUDA_ERROR_UNKNOWN, CUDA_ERROR_OPERATING_SYSTEM], |gpu, code| {
        let own = gpu.enter(0);
        let here = gpu.stream(false);
        let foreign = gpu.own_context(0);
        let (pool, bytes) = (fixed_pool(BFC_BACKEND_CUDA, 128 * KIB), 100 * KIB);
        let (chunk, other) = (pool.get_on(bytes, 0), pool.get_on(KIB, here));
        gpu.hold(0);
        let done = Mark::queue(gpu, 0);
        // The first call returns the current context, the second one shows that the pool's own exists, and this one
        // concerns the stream's context.
        gpu.sim.fail(Some("cuCtxGetId"), 3, code);
        let calls = gpu.sim.calls("cuCtxGetId");
        pool.put_on(chunk, 0);
        assert!(gpu.sim.calls("cuCtxGetId") >= calls + 3);
        assert_eq!(Request::Async.make(&pool, bytes, 0)?, chunk, "its own memory");
        assert!(!done.is_reached());
        pool.put_on(chunk, 0);
        gpu.set_current(own);
        pool.put(other);
        pool.check();
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        gpu.destroy_context(foreign);
        Ok(())
    });
}

/// Memory of a thread's default stream that another thread frees after that thread has ended: nothing can be recorded
/// there, but a synchronization of the device's own context covers its green contexts (cuCtxSynchronize).
#[test]
fn memory_of_an_ended_thread_is_not_lost() {
    // Whether it is in a green context.
    variants(pairs([false, true], BACKENDS), |gpu, (is_green, (backend, unit))| {
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        gpu.sim.set(POISON, 1);
        let own = gpu.enter(0);
        let (pool, other) = (fixed_pool(backend, 128 * unit), gpu.stream(false));
        let there = if is_green { gpu.green_context(0).context } else { own };
        gpu.set_current(own);
        let bytes = 100 * unit;
        let (chunk, done) = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                gpu.set_current(there);
                gpu.hold(PER_THREAD);
                let chunk = pool.get_on(bytes, PER_THREAD);
                gpu.fill(PER_THREAD, chunk, bytes, 1);
                gpu.expect(PER_THREAD, chunk, bytes, 1);
                (chunk, Mark::queue(gpu, PER_THREAD))
            });
            worker.join().expect("the thread ends")
        });
        pool.put(chunk);
        let got = Request::Async.make(&pool, bytes, other)?;
        gpu.fill(other, got, bytes, 2);
        let is_early = done.is_overtaken(gpu, other);
        gpu.expect(other, got, bytes, 2);
        gpu.sim.release_all();
        pool.put_on(got, other);
        let idle = pool.try_trim(0).map(|_| pool.stats().pool_bytes);
        pool.check();
        let is_wrong = gpu.sim.mismatches() != 0 || is_early;
        first_of([
            (is_wrong, "the memory is handed out while the thread's work uses it"),
            (idle != Ok(0), "the memory is not given back"),
        ])?;
        misuses(gpu)
    });
}
