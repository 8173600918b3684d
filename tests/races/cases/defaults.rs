//! Default streams of other contexts: NULL and the thread's own stream belong to the context that is current at the call,
//! and the pool waits for their work like for that of any other stream.

use super::{Mark, Request, first_of, fixed_pool, variants};
use crate::common::gpu::{BACKENDS, Gpu, PER_THREAD};
use crate::common::ordered::record_stream;
use crate::common::simcuda::steer::{ALLOCATIONS, EVENTS, FREE_SYNCHRONIZES, POISON, RECYCLE_HANDLES};
use crate::common::*;
use cuda_sys::{CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_UNKNOWN};
use std::sync::Barrier;

/// The context of the foreign default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    /// In the primary context of device 1, whose kernels reach device 0.
    Peer,
    /// In a context of `cuCtxCreate` on device 0.
    Created,
    /// In a green context on device 0.
    Green,
}

/// How the foreign stream uses the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Recorded, and the chunk is freed on a stream of the pool's own context.
    Recorded,
    /// Freed in its order.
    FreedThere,
    /// Allocated and freed in its order.
    AllocatedThere,
    /// Allocated in its order, and freed by `bfc_free` with the pool's own context current.
    FreedPlainly,
    /// Allocated and freed in its order, when no other stream is known.
    Only,
}

#[derive(Clone, Copy)]
struct Variant {
    home: Home,
    use_: Use,
    there: u64,
    /// `None` is the destruction of the pool.
    next: Option<Request>,
}

fn all() -> impl Iterator<Item = (String, Variant)> {
    use Use::*;
    let uses = [Recorded, FreedThere, AllocatedThere, FreedPlainly, Only];
    let kinds = [Home::Peer, Home::Created, Home::Green]
        .into_iter()
        .flat_map(move |home| uses.map(|use_| (home, use_)));
    // Memory is not allocated in the order of another device's default stream.
    let kinds = kinds.filter(|&(home, use_)| home != Home::Peer || matches!(use_, Recorded | FreedThere));
    kinds.flat_map(|(home, use_)| {
        [0, PER_THREAD].into_iter().flat_map(move |there| {
            let nexts = [Some(Request::Plain), Some(Request::Async), Some(Request::Ex), None];
            nexts.map(|next| {
                let name = format!("{home:?}, {use_:?}, stream {there}, then {next:?}");
                (name, Variant { home, use_, there, next })
            })
        })
    })
}

fn enter(gpu: Gpu, home: Home, own: u64) -> u64 {
    match home {
        Home::Created => gpu.own_context(0),
        Home::Green => gpu.green_context(0).context,
        Home::Peer => {
            let peer = gpu.enter(1);
            gpu.enable_peer(own);
            peer
        }
    }
}

#[test]
fn foreign_default_streams_are_waited_for() {
    variants("cases::defaults::foreign_default_streams_are_waited_for", all(), |gpu, variant| {
        let Variant { home, use_, there, next } = variant;
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        gpu.sim.set(POISON, 1);
        let own = gpu.enter(0);
        let foreign = enter(gpu, home, own);
        gpu.hold(there);
        gpu.set_current(own);
        let (here, other) = (gpu.stream(false), gpu.stream(false));
        let (pool, bytes) = (fixed_pool(BFC_BACKEND_CUDA, 128 * KIB), 100 * KIB);
        let known: Vec<u64> = match use_ {
            Use::Only => Vec::new(),
            _ => [here, other].iter().map(|&stream| pool.get_on(KIB, stream)).collect(),
        };
        let chunk = if matches!(use_, Use::Recorded | Use::FreedThere) {
            let chunk = pool.get_on(bytes, here);
            gpu.fill(here, chunk, bytes, 1);
            let event = gpu.recorded(here);
            gpu.set_current(foreign);
            gpu.wait(there, event);
            gpu.destroy_event(event);
            chunk
        } else {
            gpu.set_current(foreign);
            let chunk = pool.get_on(bytes, there);
            gpu.fill(there, chunk, bytes, 1);
            chunk
        };
        gpu.expect(there, chunk, bytes, 1);
        let done = Mark::queue(gpu, there);
        match use_ {
            Use::Recorded => {
                assert_eq!(pool.record(chunk, there), BFC_OK, "{}", last_error());
                gpu.set_current(own);
                pool.put_on(chunk, here);
            }
            Use::FreedPlainly => {
                gpu.set_current(own);
                pool.put(chunk);
            }
            _ => pool.put_on(chunk, there),
        }
        gpu.set_current(own);
        let mut is_early = false;
        let got = match next {
            Some(request) => Some(request.make(&pool, bytes, other)),
            None => {
                assert_eq!(pool.destroy_forced(), BFC_OK, "{}", last_error());
                is_early = !done.is_reached();
                None
            }
        };
        if let Some(Ok(address)) = got {
            gpu.fill(other, address, bytes, 2);
            is_early |= Mark::queue(gpu, other).is_reached() && !done.is_reached();
            gpu.expect(other, address, bytes, 2);
        }
        gpu.sim.release_all();
        let (mismatches, texts) = (gpu.sim.mismatches(), gpu.sim.misuse_texts());
        if next.is_some() {
            got.clone().into_iter().flatten().for_each(|address| pool.put_on(address, other));
            known.into_iter().for_each(|address| pool.put(address));
            pool.check();
        }
        got.transpose()?;
        if !texts.is_empty() && mismatches == 0 {
            return Err(format!("misuse: {}", texts.join("; ")));
        }
        first_of([
            (mismatches != 0, "wrong data: the foreign stream finds what was written after the free"),
            (is_early, "the memory is handed out, or given back, while the foreign stream still works on it"),
        ])
    });
}

/// The same handle in two contexts denotes two streams, even while nothing else is known.
#[test]
fn default_streams_of_two_contexts_wait_for_each_other() {
    let kinds = [0, 1, PER_THREAD].into_iter().flat_map(|stream| {
        let homes = [Home::Created, Home::Green].into_iter();
        homes.flat_map(move |home| [true, false].map(|own| (stream, home, own)))
    });
    let kinds = kinds.map(|kind| (format!("{kind:?}: stream, home, own first"), kind));
    variants(
        "cases::defaults::default_streams_of_two_contexts_wait_for_each_other",
        kinds,
        |gpu, (stream, home, own)| {
            let primary = gpu.enter(0);
            let contexts = [primary, enter(gpu, home, primary)];
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
            let is_early = Mark::queue(gpu, stream).is_reached() && !done.is_reached();
            gpu.sim.release_all();
            pool.put_on(got, stream);
            gpu.set_current(contexts[0]);
            pool.check();
            assert_eq!(gpu.sim.misuse_texts(), Vec::<String>::new());
            first_of([
                (gpu.sim.mismatches() != 0, "wrong data"),
                (is_early, "the other context's work on the memory is not done"),
            ])
        },
    );
}

/// Without a living context current, a default stream is that of the pool's own context. Nothing of a context that has
/// ended is passed to the driver.
#[test]
fn contexts_that_end_leave_nothing() {
    let kinds = [0, PER_THREAD].into_iter().flat_map(|stream| {
        [true, false].into_iter().flat_map(move |told| [true, false].map(|recycled| (stream, told, recycled)))
    });
    let kinds = kinds.map(|(stream, told, recycled)| {
        (
            format!("stream {stream}, forgotten: {told}, handles come again: {recycled}"),
            (stream, told, recycled),
        )
    });
    variants("cases::defaults::contexts_that_end_leave_nothing", kinds, |gpu, (stream, told, recycled)| {
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
        let texts = gpu.sim.misuse_texts();
        if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
    });
}

/// Each thread's own stream has the same handle. A pool that another thread destroys waits for the stream whose memory
/// it holds.
#[test]
fn the_end_waits_for_streams_of_other_threads() {
    let kinds = [Home::Created, Home::Green].map(|home| (format!("{home:?}"), home));
    variants("cases::defaults::the_end_waits_for_streams_of_other_threads", kinds, |gpu, home| {
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        let own = gpu.enter(0);
        let foreign = enter(gpu, home, own);
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
        assert_eq!(gpu.sim.misuse_texts(), Vec::<String>::new());
        first_of([(is_early, "the memory is given back while the other thread's stream works on it")])
    });
}

/// A failing driver call does not show that its context has ended.
#[test]
fn a_failing_driver_does_not_end_a_context() {
    let kinds = [CUDA_ERROR_UNKNOWN, CUDA_ERROR_OPERATING_SYSTEM].map(|code| (format!("{code}"), code));
    variants("cases::defaults::a_failing_driver_does_not_end_a_context", kinds, |gpu, code| {
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
    let kinds = [false, true].into_iter().flat_map(|green| BACKENDS.map(|backend| (green, backend)));
    let kinds = kinds.map(|kind| (format!("{kind:?} (in a green context, backend)"), kind));
    variants(
        "cases::defaults::memory_of_an_ended_thread_is_not_lost",
        kinds,
        |gpu, (is_green, (backend, unit))| {
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
            let is_early = Mark::queue(gpu, other).is_reached() && !done.is_reached();
            gpu.expect(other, got, bytes, 2);
            gpu.sim.release_all();
            pool.put_on(got, other);
            let idle = pool.try_trim(0).map(|_| pool.stats().pool_bytes);
            pool.check();
            let texts = gpu.sim.misuse_texts();
            first_of([
                (
                    gpu.sim.mismatches() != 0 || is_early,
                    "the memory is handed out while the thread's work uses it",
                ),
                (idle != Ok(0), "the memory is not given back"),
                (!texts.is_empty(), &format!("misuse: {}", texts.join("; "))),
            ])
        },
    );
}
