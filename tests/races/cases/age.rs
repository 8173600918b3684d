//! The age of the frees that a request waits for. If free memory waits for several frees, a request waits for the
//! oldest of them with which it can be served, and for no later work, because a receive may have been posted in
//! between.

use super::{REQUESTS, fill_and_free, first_of, fixed_pool, pairs, send, variants};
use crate::common::gpu::BACKENDS;
use crate::common::receive::Receive;
use crate::common::*;

/// The memory freed before the receive is posted on the communication stream, and after it.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Of three neighbours, the first before and the others after.
    FirstOfThree,
    /// The last before, the others after.
    LastOfThree,
    /// The middle one before, the others after.
    Between,
    /// All three before. After the receive the stream itself takes the middle one again and frees it.
    TakenAgain,
    /// A larger one that a third stream freed before, next to the best fit freed after.
    OfAnotherStream,
}

use self::Layout::*;

const LAYOUTS: [Layout; 5] = [FirstOfThree, LastOfThree, Between, TakenAgain, OfAnotherStream];

/// Three neighbours of this many units each.
const UNITS: u64 = 96;

#[test]
fn a_request_takes_what_was_freed_first() {
    let kinds = pairs(pairs(LAYOUTS, REQUESTS), pairs([false, true], BACKENDS));
    variants(kinds, |gpu, ((layout, request), (held, (backend, unit)))| {
        gpu.enter(0);
        let pool = fixed_pool(backend, 4 * UNITS * unit);
        let [comm, compute, third] = [(); 3].map(|()| gpu.stream(false));
        let bytes = UNITS * unit;
        let streams = [comm, third];
        let held = if held { &streams[..] } else { &[] };
        held.iter().for_each(|&stream| gpu.hold(stream));
        let known = [comm, compute, third].map(|stream| pool.get_on(unit, stream));
        let chunks = match layout {
            OfAnotherStream => {
                let larger = pool.get_on(bytes + 2 * unit, third);
                let between = pool.get_on(unit, compute);
                [larger, between, pool.get_on(bytes, comm)]
            }
            _ => [(); 3].map(|()| pool.get_on(bytes, comm)),
        };
        // Nothing else is free.
        let rest = pool.stats().bytes_limit - pool.stats().bytes_in_use;
        let filler = pool.get_on(rest, compute);
        let [first, between, last] = chunks;
        let (before, behind): (&[u64], &[u64]) = match layout {
            FirstOfThree => (&[first], &[between, last]),
            LastOfThree => (&[last], &[between, first]),
            Between => (&[between], &[first, last]),
            TakenAgain => (&[first, between, last], &[]),
            OfAnotherStream => (&[], &[last]),
        };
        before.iter().for_each(|&chunk| fill_and_free(gpu, &pool, chunk, bytes, comm));
        if matches!(layout, OfAnotherStream) {
            fill_and_free(gpu, &pool, first, bytes, third);
        }
        let again = matches!(layout, TakenAgain).then(|| {
            // The best fit is the whole run, so the first two are taken, and then the first is freed again.
            let low = pool.get_on(bytes, comm);
            let high = pool.get_on(bytes, comm);
            pool.put_on(low, comm);
            high
        });
        let receive = Receive::post(gpu, comm);
        behind.iter().for_each(|&chunk| fill_and_free(gpu, &pool, chunk, bytes, comm));
        if let Some(high) = again {
            fill_and_free(gpu, &pool, high, bytes, comm);
        }
        let got = request.make(&pool, bytes, compute);
        let judged = send(gpu, receive, got, bytes, compute, held);
        let others = [filler]
            .into_iter()
            .chain(known)
            .chain(Some(between).filter(|_| matches!(layout, OfAnotherStream)));
        others.for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// The stream takes a part of the memory that it freed before the receive, and frees that after it: the part that the
/// request left does not become newer.
#[test]
fn what_a_request_leaves_of_an_earlier_free_is_not_later() {
    variants(pairs(REQUESTS, BACKENDS), |gpu, (request, (backend, unit))| {
        gpu.enter(0);
        let bytes = UNITS * unit;
        let pool = fixed_pool(backend, 4 * bytes);
        let [comm, compute] = [(); 2].map(|()| gpu.stream(false));
        let known = [comm, compute].map(|stream| pool.get_on(unit, stream));
        let chunk = pool.get_on(2 * bytes, comm);
        let rest = pool.stats().bytes_limit - pool.stats().bytes_in_use;
        let filler = pool.get_on(rest, compute);
        fill_and_free(gpu, &pool, chunk, 2 * bytes, comm);
        let receive = Receive::post(gpu, comm);
        let part = pool.get_on(bytes, comm);
        fill_and_free(gpu, &pool, part, bytes, comm);
        let got = request.make(&pool, bytes, compute);
        let judged = send(gpu, receive, got, bytes, compute, &[]);
        [filler].into_iter().chain(known).for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// A place that is partly free after pending work, and partly not mapped yet.
#[test]
fn a_request_that_needs_more_granules_waits_for_nothing_behind_the_free() {
    variants(REQUESTS, |gpu, request| {
        gpu.enter(0);
        let (backend, granule) = (BFC_BACKEND_CUDA_VMM, 2 << 20);
        let pool = Pool::on_device(0, |options| {
            (options.backend, options.memory_limit) = (backend, 16 * granule);
            options.flags = BFC_SPLIT_ALWAYS | BFC_ALLOW_GROWTH;
            options.initial_region_bytes = granule;
        });
        let [comm, compute] = [(); 2].map(|()| gpu.stream(false));
        let known = [comm, compute].map(|stream| pool.get_on(granule / 2, stream));
        let [first, second] = [(); 2].map(|()| pool.get_on(4 * granule, comm));
        let later = pool.get_on(granule, compute);
        // Of 16 granules 10 are mapped: the request needs the granules freed first and four new ones, or more of both.
        fill_and_free(gpu, &pool, second, granule, comm);
        let receive = Receive::post(gpu, comm);
        fill_and_free(gpu, &pool, first, granule, comm);
        pool.put_on(later, compute);
        let got = request.make(&pool, 9 * granule, compute);
        let judged = send(gpu, receive, got, granule, compute, &[]);
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
        judged
    });
}

/// Free and used memory in random order, on three streams: a request no larger than the longest run of memory freed
/// before the receive is served, and waits for nothing after the receive, whatever was freed there.
#[test]
fn what_was_freed_before_the_receive_serves_in_random_layouts() {
    const LIMIT: u64 = 256;
    let seeds = if cfg!(debug_assertions) { 60 } else { 300u64 };
    variants(pairs(0..seeds, BACKENDS), |gpu, (seed, (backend, unit))| {
        gpu.enter(0);
        let mut random = Random::new(seed);
        let pool = fixed_pool(backend, LIMIT * unit);
        let streams = [(); 3].map(|()| gpu.stream(false));
        let [comm, compute, third] = streams;
        let mut live: Vec<u64> = streams.iter().map(|&stream| pool.get_on(unit, stream)).collect();
        let held: &[u64] = if random.one_in(2) { &[comm, third] } else { &[] };
        held.iter().for_each(|&stream| gpu.hold(stream));
        let (most, mut left, mut chunks) = (1 + random.below(40), LIMIT - 3, Vec::new());
        while left != 0 {
            let (units, stream) = ((1 + random.below(most)).min(left), streams[random.index(3)]);
            chunks.push((pool.get_on(units * unit, stream), units * unit, stream));
            left -= units;
        }
        random.shuffle(&mut chunks);
        let (before, behind) = chunks.split_at(chunks.len() * 2 / 5);
        for &(chunk, bytes, own) in before {
            gpu.fill(own, chunk, bytes, 1);
            let used_on = streams[random.index(3)];
            gpu.order(own, used_on);
            gpu.expect(used_on, chunk, bytes, 1);
            match random.below(3) {
                0 => pool.put_on(chunk, used_on),
                _ if used_on == own => pool.put(chunk),
                _ => {
                    assert_eq!(pool.record(chunk, used_on), BFC_OK, "{}", last_error());
                    pool.put_on(chunk, own);
                }
            }
        }
        let receive = Receive::post(gpu, comm);
        for &(chunk, bytes, own) in behind {
            if random.one_in(3) {
                live.push(chunk);
                continue;
            }
            gpu.fill(comm, chunk, bytes, 2);
            if own != comm {
                assert_eq!(pool.record(chunk, comm), BFC_OK, "{}", last_error());
            }
            pool.put_on(chunk, own);
        }
        let mut free: Vec<(u64, u64)> =
            before.iter().map(|&(chunk, bytes, _)| (chunk, chunk + bytes)).collect();
        let request = REQUESTS[random.index(3)];
        let mut served = Vec::new();
        for _ in 0..6 {
            let longest = longest_run(&mut free);
            let bytes = if random.one_in(2) { longest } else { random.below(longest / unit + 1) * unit };
            if bytes == 0 {
                continue;
            }
            let chunk = request.make(&pool, bytes, compute)?;
            if receive.is_forced() {
                return Err(format!("deadlock: a request of {bytes} bytes has waited in the host"));
            }
            gpu.fill(compute, chunk, bytes, 3);
            let rest = |&(from, to): &(u64, u64)| [(from, to.min(chunk)), (from.max(chunk + bytes), to)];
            free = free.iter().flat_map(rest).filter(|(from, to)| from < to).collect();
            served.push((chunk, bytes));
        }
        receive.send(gpu, compute);
        // The streams wait for each other repeatedly.
        while held.iter().map(|&stream| gpu.step(stream, u64::MAX)).sum::<u64>() != 0 {}
        let is_sent = receive.is_sent();
        receive.deliver(gpu);
        gpu.sim.release_all();
        served.iter().for_each(|&(chunk, bytes)| gpu.expect(compute, chunk, bytes, 3));
        let mismatches = gpu.sim.mismatches();
        served.into_iter().map(|(chunk, _)| chunk).chain(live).for_each(|chunk| pool.put(chunk));
        pool.check();
        first_of([
            (!is_sent, "deadlock: the send was ordered after the receive"),
            (mismatches != 0, "wrong data"),
        ])
    });
}

/// Returns the most contiguous bytes of sorted ranges.
fn longest_run(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let (mut longest, mut run) = (0, (0, 0));
    for &(from, to) in ranges.iter() {
        run = if from == run.1 { (run.0, to) } else { (from, to) };
        longest = longest.max(run.1 - run.0);
    }
    longest
}
