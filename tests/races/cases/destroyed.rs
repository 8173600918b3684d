//! Streams that are destroyed without `bfc_forget_stream`, as RMM's tests and many programs do: memory that they freed
//! serves others, no request fails for them, and their handles are not passed to the driver, which may crash.

use super::{Mark, Request, first_of, fixed_pool, misuses, pairs, variants};
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::steer::RECYCLE_HANDLES;
use crate::common::*;

/// How the stream used the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    InOrder,
    /// It reused the memory that it freed, and another stream freed that: nothing waits for the event of its own free.
    TakenBack,
    Recorded,
    /// In the order of its requests for a private pool, which is released once the stream is gone.
    Private,
    /// In its order, when no other stream was known, so there is no event.
    Only,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Synchronized,
    /// Its work continues after its end.
    Working,
    /// Another stream has its handle, in this context, and is busy.
    Recycled,
    /// Another stream has its handle, in another context, and is busy.
    RecycledElsewhere,
    /// It was a stream of a context that ends, and was forgotten before. "It is the caller's responsibility to ensure that
    /// the context or its resources are not accessed or passed in subsequent API calls and doing so will result in
    /// undefined behavior. These resources include CUDA types CUmodule, CUfunction, CUstream, CUevent" (cuCtxDestroy in
    /// cuda.h): the library keeps no event of it.
    WithContext,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Plain,
    Async,
    Ex,
    /// `bfc_trim`, and then a request.
    Trim,
    /// `bfc_pool_begin`, and then a request.
    Private,
}

#[test]
fn a_destroyed_stream_spoils_no_request() {
    let uses = [Use::InOrder, Use::TakenBack, Use::Recorded, Use::Private, Use::Only];
    let ends = [End::Synchronized, End::Working, End::Recycled, End::RecycledElsewhere, End::WithContext];
    let nexts = [Next::Plain, Next::Async, Next::Ex, Next::Trim, Next::Private];
    let kinds = pairs(pairs(uses, ends), pairs(nexts, BACKENDS));
    variants(kinds, |gpu, ((use_, end), (next, (backend, unit)))| {
        gpu.sim.set(RECYCLE_HANDLES, 1);
        let context = gpu.enter(0);
        let (pool, other) = (fixed_pool(backend, 128 * unit), gpu.stream(false));
        let own = if end == End::WithContext { gpu.own_context(0) } else { 0 };
        let dying = gpu.stream(false);
        gpu.set_current(context);
        let known = (use_ != Use::Only).then(|| pool.get_on(unit, other));
        let bytes = 100 * unit;
        gpu.hold(dying);
        if use_ == Use::Private {
            assert_eq!(pool.begin_private(7, dying), BFC_OK, "{}", last_error());
        }
        let chunk = pool.get_on(bytes, if use_ == Use::Recorded { other } else { dying });
        gpu.fill(dying, chunk, bytes, 1);
        gpu.expect(dying, chunk, bytes, 1);
        let done = Mark::queue(gpu, dying);
        if use_ == Use::Recorded {
            assert_eq!(pool.record(chunk, dying), BFC_OK, "{}", last_error());
            pool.put_on(chunk, other);
        } else {
            pool.put_on(chunk, dying);
        }
        if use_ == Use::TakenBack {
            gpu.synchronize(dying);
            pool.put_on(pool.get_on(bytes, dying), other);
        }
        if use_ == Use::Private {
            assert_eq!(pool.end_private(7, dying), BFC_OK, "{}", last_error());
        }
        if end == End::WithContext {
            gpu.synchronize(dying);
            pool.forget(dying);
        }
        let another = finish(gpu, dying, end, own);
        if use_ == Use::Private {
            assert_eq!(pool.release_private(7), BFC_OK, "{}", last_error());
        }
        let got = follow(&pool, next, bytes, other);
        let mut is_early = false;
        if let Ok(address) = got {
            gpu.fill(other, address, bytes, 2);
            is_early = done.is_overtaken(gpu, other);
            gpu.expect(other, address, bytes, 2);
        }
        let waits = another.is_some_and(|another| gpu.pending(another) == 0);
        gpu.sim.release_all();
        if let Ok(address) = got {
            pool.put_on(address, other);
        }
        if next == Next::Private {
            assert_eq!(pool.end_private(7, other), BFC_OK, "{}", last_error());
        }
        // Its place in the library belongs to another stream now, and its remaining events are reused or destroyed.
        let late = gpu.stream(false);
        pool.put_on(pool.get_on(unit, late), late);
        pool.forget(late);
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
        let (mismatches, texts) = (gpu.sim.mismatches(), gpu.sim.misuse_texts());
        got?;
        let stale = texts.iter().find(|text| text.contains("is one that was destroyed"));
        // Without an event of the free the library may query once, and must handle the answer.
        let has_event = matches!(use_, Use::InOrder | Use::TakenBack | Use::Recorded);
        if let Some(stale) = stale.filter(|_| has_event) {
            return Err(format!("the destroyed handle is passed to the driver: {stale}"));
        }
        // If only a synchronization of the context helps, that waits for the new stream too.
        let waits = waits && has_event && matches!(next, Next::Plain | Next::Async | Next::Ex);
        first_of([
            (mismatches != 0, "wrong data"),
            (is_early, "the memory is handed out while the destroyed stream still works on it"),
            (waits, "the request waits for the work of another stream with the same handle"),
        ])
    });
}

/// Destroys the stream. Returns another one that then has its handle, with work that is held.
fn finish(gpu: Gpu, dying: u64, end: End, own: u64) -> Option<u64> {
    let context = gpu.current();
    if end != End::Working {
        gpu.synchronize(dying);
    }
    if end == End::WithContext {
        gpu.destroy_context(own);
        gpu.set_current(context);
        return None;
    }
    gpu.destroy_stream(dying);
    if matches!(end, End::Synchronized | End::Working) {
        return None;
    }
    if end == End::RecycledElsewhere {
        gpu.own_context(0);
    }
    let another = gpu.stream(false);
    assert_eq!(another, dying, "the handle is recycled");
    gpu.hold(another);
    let memory = gpu.alloc(KIB);
    gpu.fill(another, memory, KIB, 3);
    gpu.set_current(context);
    Some(another)
}

fn follow(pool: &Pool, next: Next, bytes: u64, other: u64) -> Result<u64, String> {
    match next {
        Next::Plain => Request::Plain.make(pool, bytes, other),
        Next::Async => Request::Async.make(pool, bytes, other),
        Next::Ex => Request::Ex.make(pool, bytes, other),
        Next::Trim => {
            pool.try_trim(0).map_err(|status| format!("the trim fails with {status}: {}", last_error()))?;
            Request::Async.make(pool, bytes, other)
        }
        Next::Private => {
            assert_eq!(pool.begin_private(7, other), BFC_OK, "{}", last_error());
            Request::Async.make(pool, bytes, other)
        }
    }
}

/// Like RMM's tests repeated in one process: streams come and go, and the pool stays.
#[test]
fn streams_come_and_go() {
    let kinds = pairs(BACKENDS, pairs([true, false], [true, false]));
    variants(kinds, |gpu, ((backend, unit), (recycles, synchronizes))| {
        gpu.sim.set(RECYCLE_HANDLES, i64::from(recycles));
        gpu.enter(0);
        let pool = fixed_pool(backend, 128 * unit);
        let first = gpu.stream(false);
        let mut random = Random::new(4);
        for round in 0..30 {
            let (a, b) = (gpu.stream(random.one_in(2)), gpu.stream(false));
            for (stream, next) in [(a, b), (b, first), (first, a)] {
                let got = Request::Async.make(&pool, 100 * unit, stream);
                let address = got.map_err(|why| format!("round {round}: {why}"))?;
                gpu.fill(stream, address, 100 * unit, round);
                if random.one_in(2) {
                    gpu.order(stream, next);
                    assert_eq!(pool.record(address, next), BFC_OK, "{}", last_error());
                    gpu.expect(next, address, 100 * unit, round);
                }
                gpu.expect(stream, address, 100 * unit, round);
                pool.put_on(address, stream);
            }
            for stream in [a, b] {
                if synchronizes {
                    gpu.synchronize(stream);
                }
                gpu.destroy_stream(stream);
            }
            if random.one_in(4) {
                pool.try_trim(0)
                    .map_err(|status| format!("round {round}, trim: {status}: {}", last_error()))?;
            }
            pool.check();
        }
        misuses(gpu)
    });
}

/// When the green context of a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detached {
    /// While memory is in use that was allocated on the stream.
    InUse,
    /// While memory is in use, and the stream is forgotten before its handle is destroyed.
    InUseAndForgotten,
    /// After the memory was freed.
    Freed,
}

/// "The API does not destroy streams [...] the streams are detached", and "any subsequent API calls involving these streams
/// will return CUDA_ERROR_STREAM_DETACHED" (cuGreenCtxDestroy), but their work continues.
#[test]
fn a_detached_stream_spoils_nothing() {
    let kinds = [Detached::InUse, Detached::InUseAndForgotten, Detached::Freed];
    variants(pairs(kinds, BACKENDS), |gpu, (detached, (backend, unit))| {
        // Its device must be known.
        assert_eq!(gpu.sim.configure(1, GIB), 0);
        let gpu = Gpu::new(gpu.sim);
        let own = gpu.enter(0);
        let green = gpu.green_context(0);
        let stream = gpu.green_stream(green);
        gpu.set_current(own);
        let (pool, other) = (fixed_pool(backend, 128 * unit), gpu.stream(false));
        let bytes = 100 * unit;
        let chunk = pool.get_on(bytes, stream);
        pool.put_on(pool.get_on(10 * unit, other), other);
        gpu.hold(stream);
        gpu.fill(stream, chunk, bytes, 1);
        gpu.expect(stream, chunk, bytes, 1);
        let done = Mark::queue(gpu, stream);
        if detached == Detached::Freed {
            pool.put_on(chunk, stream);
        }
        gpu.destroy_green_context(green);
        let trimmed = pool.try_trim(0);
        if detached != Detached::Freed {
            pool.put(chunk);
        }
        if detached == Detached::InUseAndForgotten {
            // Events can no longer be recorded there (CUDA_ERROR_STREAM_DETACHED), so the memory waits for a
            // synchronization.
            assert_eq!(pool.try_forget(stream), BFC_ERROR_BACKEND_FAILED);
            assert!(last_error().contains("917"), "{}", last_error());
        }
        gpu.destroy_stream(stream);
        let got = Request::Async.make(&pool, bytes, other);
        let mut is_early = false;
        if let Ok(address) = got {
            gpu.fill(other, address, bytes, 2);
            is_early = done.is_overtaken(gpu, other);
            gpu.expect(other, address, bytes, 2);
            pool.put_on(address, other);
        }
        gpu.sim.release_all();
        let idle = pool.try_trim(0).map(|_| pool.stats().pool_bytes);
        pool.check();
        got?;
        let is_wrong = gpu.sim.mismatches() != 0 || is_early;
        first_of([
            (is_wrong, "the memory is handed out while the stream still works on it"),
            (trimmed.is_err() || idle != Ok(0), "the memory is not given back"),
        ])?;
        misuses(gpu)
    });
}
