//! Events that cover more than the work queued before the free. A communication stream frees, and then posts a
//! receive, whose send is queued by the stream that requests the memory next. A send that waits for the free is in
//! time. One that waits for an event recorded later comes after the receive: a deadlock.

use super::{REQUESTS, Request, first_of, fixed_pool, pairs, send, variants};
use crate::common::gpu::{BACKENDS, Gpu, LEGACY};
use crate::common::log::Collected;
use crate::common::receive::Receive;
use crate::common::*;

/// The reasons why the memory waits for the communication stream.
#[derive(Clone, Copy, Debug)]
enum Freed {
    /// Allocated there, and freed in its order.
    InOrder,
    /// Allocated there, and freed with `bfc_free`, which is in the order of the chunk's stream.
    Plainly,
    /// Allocated on the other stream, and freed in the order of this one.
    Elsewhere,
    /// Used there, as recorded before the work or after it, and freed on the other stream.
    RecordedBefore,
    RecordedAfter,
    /// Freed there, but not used by the same stream: allocated by `bfc_alloc`.
    Common,
}

use Freed::*;

const FREED: [Freed; 6] = [InOrder, Plainly, Elsewhere, RecordedBefore, RecordedAfter, Common];

/// Makes the chunk wait for the work of `comm`, which fills or reads it.
fn free(gpu: Gpu, pool: &Pool, freed: Freed, bytes: u64, [comm, other]: [u64; 2]) {
    let chunk = match freed {
        InOrder | Plainly => pool.get_on(bytes, comm),
        Elsewhere | RecordedBefore | RecordedAfter => pool.get_on(bytes, other),
        Common => pool.get(bytes),
    };
    gpu.order(other, comm);
    if matches!(freed, RecordedBefore) {
        assert_eq!(pool.record(chunk, comm), BFC_OK);
    }
    gpu.fill(comm, chunk, bytes, 1);
    match freed {
        InOrder | Elsewhere | Common => pool.put_on(chunk, comm),
        Plainly => pool.put(chunk),
        RecordedBefore => pool.put_on(chunk, other),
        RecordedAfter => {
            assert_eq!(pool.record(chunk, comm), BFC_OK);
            pool.put_on(chunk, other);
        }
    }
}

/// The memory freed there is the only memory.
#[test]
fn a_request_waits_for_nothing_behind_the_free() {
    // The communication stream is the legacy default stream, or bfc_forget_stream is called for it after the receive.
    let comms = [(false, false), (true, false), (false, true)];
    let kinds = pairs(pairs(FREED, REQUESTS), pairs(comms, BACKENDS));
    variants(kinds, |gpu, ((freed, request), ((legacy, forgotten), (backend, unit)))| {
        gpu.enter(0);
        let pool = fixed_pool(backend, 128 * unit);
        let (comm, compute) = (if legacy { LEGACY } else { gpu.stream(false) }, gpu.stream(false));
        // Both streams are known before the free.
        let known = [comm, compute].map(|stream| pool.get_on(unit, stream));
        free(gpu, &pool, freed, 100 * unit, [comm, compute]);
        let receive = Receive::post(gpu, comm);
        if forgotten {
            pool.forget(comm);
        }
        let got = request.make(&pool, 100 * unit, compute);
        let judged = send(gpu, receive, got, 100 * unit, compute, &[]);
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// Memory freed before the receive serves the request, although more was freed after it.
#[test]
fn a_later_free_does_not_spoil_an_earlier_one() {
    variants(pairs(REQUESTS, BACKENDS), |gpu, (request, (backend, unit))| {
        gpu.enter(0);
        let pool = fixed_pool(backend, 256 * unit);
        let (comm, compute) = (gpu.stream(false), gpu.stream(false));
        let (first, between) = (pool.get_on(100 * unit, comm), pool.get_on(unit, compute));
        let (second, rest) = (pool.get_on(120 * unit, comm), pool.get_on(34 * unit, compute));
        for chunk in [first, second] {
            gpu.fill(comm, chunk, 100 * unit, 1);
        }
        pool.put_on(first, comm);
        let receive = Receive::post(gpu, comm);
        gpu.fill(comm, second, 100 * unit, 1);
        pool.put_on(second, comm);
        let got = request.make(&pool, 100 * unit, compute);
        let judged = send(gpu, receive, got, 100 * unit, compute, &[]);
        [between, rest].into_iter().for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// The requesting stream has itself used the chunk, as recorded, and that work is pending. In its own order it waits
/// for nothing, whatever other streams have posted.
#[test]
fn a_stream_does_not_wait_for_its_own_recorded_use() {
    // Whether the chunk's stream is forgotten.
    variants(pairs(BACKENDS, [true, false]), |gpu, ((backend, unit), forgotten)| {
        gpu.enter(0);
        let pool = fixed_pool(backend, 128 * unit);
        let [home, comm, compute] = [(); 3].map(|()| gpu.stream(false));
        let known = [comm, compute].map(|stream| pool.get_on(unit, stream));
        gpu.hold(compute);
        let chunk = pool.get_on(100 * unit, home);
        gpu.fill(home, chunk, 100 * unit, 1);
        gpu.order(home, compute);
        gpu.expect(compute, chunk, 100 * unit, 1);
        assert_eq!(pool.record(chunk, compute), BFC_OK, "{}", last_error());
        pool.put_on(chunk, home);
        if forgotten {
            pool.forget(home);
        }
        let receive = Receive::post(gpu, comm);
        let got = Request::Async.make(&pool, 100 * unit, compute);
        let judged = send(gpu, receive, got, 100 * unit, compute, &[compute]);
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// Neither `bfc_pool_begin` nor a request for the private pool, which can grow, waits for a receive of another stream.
#[test]
fn private_pools_wait_for_no_receive() {
    // Whether the communication stream is of that pool too.
    variants(pairs(BACKENDS, [true, false]), |gpu, ((backend, unit), shares)| {
        gpu.enter(0);
        let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
        let (comm, compute) = (gpu.stream(false), gpu.stream(false));
        let known = [comm, compute].map(|stream| pool.get_on(unit, stream));
        if shares {
            assert_eq!(pool.begin_private(7, comm), BFC_OK, "{}", last_error());
        }
        free(gpu, &pool, InOrder, 100 * unit, [comm, compute]);
        let receive = Receive::post(gpu, comm);
        assert_eq!(pool.begin_private(7, compute), BFC_OK, "{}", last_error());
        let got = Request::Async.make(&pool, 100 * unit, compute);
        let judged = send(gpu, receive, got, 100 * unit, compute, &[]);
        for stream in [Some(comm).filter(|_| shares), Some(compute)].into_iter().flatten() {
            assert_eq!(pool.end_private(7, stream), BFC_OK, "{}", last_error());
        }
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// Memory that was freed while one stream was known has no event of that time. Requests of other streams grow rather
/// than wait for it.
#[test]
fn memory_of_the_only_stream_is_not_waited_for_where_the_pool_can_grow() {
    variants(pairs(REQUESTS, BACKENDS), |gpu, (request, (backend, unit))| {
        gpu.enter(0);
        let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
        let (comm, compute) = (gpu.stream(false), gpu.stream(false));
        free(gpu, &pool, InOrder, 100 * unit, [comm, compute]);
        let receive = Receive::post(gpu, comm);
        let got = request.make(&pool, 100 * unit, compute);
        let judged = send(gpu, receive, got, 100 * unit, compute, &[]);
        pool.check();
        judged
    });
}

/// Memory that was freed without a stream has no event either. Requests grow rather than wait for it. If the pool
/// cannot grow, they wait for the context, which is logged.
#[test]
fn memory_without_a_stream_is_waited_for_behind_growth_and_logged() {
    // A request without a stream is in the order of that memory.
    let kinds = pairs(pairs([true, false], [Request::Async, Request::Ex]), BACKENDS);
    variants(kinds, |gpu, ((grows, request), (backend, unit))| {
        gpu.enter(0);
        let log = Collected::start();
        let pool = match grows {
            true => Pool::in_small_regions(backend, 0, GIB, GROWING),
            false => fixed_pool(backend, 128 * unit),
        };
        let [comm, compute] = [(); 2].map(|()| gpu.stream(false));
        let known = [comm, compute].map(|stream| pool.get_on(unit, stream));
        let chunk = pool.get(100 * unit);
        gpu.hold(comm);
        gpu.fill(comm, chunk, 100 * unit, 1);
        pool.put(chunk);
        let waits = gpu.sim.calls("cuCtxSynchronize");
        let address = request.make(&pool, 100 * unit, compute)?;
        let waited = gpu.sim.calls("cuCtxSynchronize") != waits;
        let lines = log.with("freed without a stream").len();
        gpu.sim.release_all();
        known.into_iter().for_each(|address| pool.put(address));
        pool.put_on(address, compute);
        pool.check();
        first_of([
            (waited == grows, "a pool that can grow does, and another waits for the context"),
            (lines != usize::from(waited), "the log says that a request has waited, once, exactly if it has"),
        ])
    });
}

/// A request waits for it if everything else has failed, which is logged.
#[test]
fn memory_of_the_only_stream_is_waited_for_last_and_logged() {
    variants(pairs(REQUESTS, BACKENDS), |gpu, (request, (backend, unit))| {
        gpu.enter(0);
        let log = Collected::start();
        let pool = fixed_pool(backend, 128 * unit);
        let (comm, compute) = (gpu.stream(false), gpu.stream(false));
        gpu.hold(comm);
        free(gpu, &pool, InOrder, 100 * unit, [comm, compute]);
        let before = log.messages().len();
        let address = request.make(&pool, 100 * unit, compute)?;
        let lines = log.messages().len() - before;
        gpu.fill(compute, address, 100 * unit, 2);
        gpu.sim.release_all();
        gpu.expect(compute, address, 100 * unit, 2);
        let mismatches = gpu.sim.mismatches();
        pool.put_on(address, compute);
        pool.check();
        first_of([
            (mismatches != 0, "the memory was handed out too early"),
            (lines == 0, "nothing in the log says that a request has waited for work after the free"),
        ])
    });
}
