//! The order of streams.

use super::*;

/// Used on one stream only, the pair for streams places exactly like the plain pair.
pub fn one_stream_is_like_none<F: Fixture>(fixture: &F) {
    if lacks_pools(fixture, 2) {
        return;
    }
    let pools = [fixture.pool(6, GROWTH | COLLECT), fixture.pool(6, GROWTH | COLLECT)];
    let (stream, mut random) = (fixture.stream(), Random::new(9));
    let mut live: Vec<[u64; 2]> = Vec::new();
    let mut offsets = Vec::new();
    for _ in 0..600 {
        if live.len() < 40 && !random.one_in(3) {
            let most = [2000, 200_000][random.index(2)];
            let bytes = random.between(1, most);
            let got = [pools[0].alloc(bytes), pools[1].alloc_on(bytes, stream)];
            assert_eq!(got[0].is_ok(), got[1].is_ok(), "{bytes}");
            if let [Ok(plain), Ok(ordered)] = got {
                live.push([plain, ordered]);
                let place = |pool: &Pool, address| {
                    let range = pool.range(address).expect("live");
                    (address - range.region.0, range.chunk.1, range.region.1)
                };
                offsets.push((place(&pools[0], plain), place(&pools[1], ordered)));
            }
        } else if !live.is_empty() {
            let [plain, ordered] = live.swap_remove(random.index(live.len()));
            pools[0].put(plain);
            pools[1].put_on(ordered, stream);
        }
    }
    // The backend determines the addresses of regions, which decide ties between them.
    let same = offsets.iter().filter(|(plain, ordered)| plain == ordered).count();
    assert!(same * 10 >= offsets.len() * 9, "{same} of {}", offsets.len());
    let stats = pools.each_ref().map(|pool| pool.stats());
    assert_eq!(stats[0].bytes_in_use, stats[1].bytes_in_use);
    assert_eq!(stats[0].pool_bytes, stats[1].pool_bytes);
    pools.iter().for_each(|pool| pool.check());
}

/// A full pool, with one chunk that was freed on a stream with pending work, and two streams.
fn freed_on_a_busy_stream<F: Fixture>(fixture: &F) -> (Pool, u64, [u64; 2]) {
    let pool = fixture.pool(1, GROWTH);
    let streams = [fixture.stream(), fixture.stream()];
    let chunk = pool.get_on(UNIT, streams[0]);
    fixture.occupy(streams[0]);
    pool.put_on(chunk, streams[0]);
    (pool, chunk, streams)
}

pub fn streams_wait_for_each_other<F: Fixture>(fixture: &F) {
    let (pool, chunk, [own, other]) = freed_on_a_busy_stream(fixture);
    // At once on its own stream.
    assert_eq!(pool.get_on(UNIT, own), chunk);
    pool.put_on(chunk, own);
    pool.check();
    if F::DEVICE {
        // After the work, because nothing else is left.
        assert_eq!(pool.get_on(UNIT, other), chunk);
        pool.put_on(chunk, other);
    } else {
        assert_eq!(pool.alloc_on(UNIT, other), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc(UNIT), Err(BFC_ERROR_OUT_OF_MEMORY));
    }
    fixture.finish(&pool, own);
    assert_eq!(pool.get_on(UNIT, other), chunk);
    pool.put_on(chunk, other);
    fixture.finish(&pool, other);
    assert_eq!(pool.get(UNIT), chunk);
}

pub fn synchronised_is_for_all<F: Fixture>(fixture: &F) {
    let (pool, chunk, [own, other]) = freed_on_a_busy_stream(fixture);
    fixture.finish(&pool, own);
    assert_eq!(pool.vouch(own), BFC_OK);
    assert_eq!(pool.get_on(1000, other), chunk);
    assert_eq!(pool.get(1000), chunk + 1024);
    assert_eq!(pool.vouch(fixture.stream()), BFC_OK, "of a stream that was never used here");
    pool.check();
}

pub fn recorded_streams_are_waited_for<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, GROWTH);
    let (own, other) = (fixture.stream(), fixture.stream());
    let chunk = pool.get_on(UNIT, own);
    fixture.occupy(other);
    assert_eq!(pool.record(chunk, other), BFC_OK, "{}", last_error());
    assert_eq!(pool.record(chunk, other), BFC_OK, "twice is as once");
    assert_eq!(pool.record(chunk, own), BFC_OK, "its own");
    assert_eq!(pool.record(chunk + 256, other), BFC_ERROR_INVALID_POINTER);
    pool.put_on(chunk, own);
    assert_eq!(pool.record(chunk, other), BFC_ERROR_INVALID_POINTER, "free");
    pool.check();
    if !F::DEVICE {
        assert_eq!(pool.alloc_on(UNIT, own), Err(BFC_ERROR_OUT_OF_MEMORY), "the other may still use it");
        assert_eq!(pool.alloc_on(UNIT, other), Err(BFC_ERROR_OUT_OF_MEMORY), "and its own");
    }
    fixture.finish(&pool, other);
    assert_eq!(pool.get_on(UNIT, own), chunk);
    pool.put_on(chunk, own);
}

pub fn forgotten_streams<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, GROWTH);
    let (own, other) = (fixture.stream(), fixture.stream());
    assert_eq!(pool.try_forget(fixture.stream()), BFC_OK, "never used");
    let chunks = [pool.get_on(UNIT / 2, own), pool.get_on(UNIT / 2, own)];
    pool.put_on(chunks[0], own);
    assert_eq!(pool.try_forget(own), BFC_OK, "{}", last_error());
    assert_eq!(pool.try_forget(own), BFC_OK, "twice");
    fixture.finish(&pool, own);
    fixture.end_stream(own);
    // Its live memory is freed later, without a stream or on another stream.
    pool.put(chunks[1]);
    pool.check();
    let again = pool.get_on(UNIT / 2, other);
    pool.put_on(again, other);
    assert_eq!(pool.try_forget(other), BFC_OK);
    fixture.finish(&pool, other);
    fixture.end_stream(other);
    assert_eq!(pool.destroy(), BFC_OK);
}

pub fn frees_of_either_kind<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, GROWTH);
    let stream = fixture.stream();
    let (ordered, plain) = (pool.get_on(UNIT / 2, stream), pool.get(UNIT / 2));
    // A plain free of one is a free on its stream, and so is an ordered free of the other.
    pool.put(ordered);
    pool.put_on(plain, stream);
    pool.check();
    assert_eq!(pool.get_on(UNIT, stream), ordered.min(plain), "both are the stream's");
    assert_eq!(pool.stats().num_frees, 2);
}

pub fn wrong_pointers_on_streams<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(2, GROWTH);
    let (own, other) = (fixture.stream(), fixture.stream());
    let chunks = [pool.get_on(1024, own), pool.get_on(1024, own), pool.get_on(1024, other)];
    assert_eq!(pool.free_on(chunks[0] + 256, own), BFC_ERROR_INVALID_POINTER);
    fixture.occupy(own);
    pool.put_on(chunks[0], own);
    for stream in [own, other] {
        assert_eq!(pool.free_on(chunks[0], stream), BFC_ERROR_DOUBLE_FREE);
    }
    assert_eq!(pool.free(chunks[0]), BFC_ERROR_DOUBLE_FREE);
    assert_eq!(pool.free_on(std::ptr::from_ref(&pool) as u64, own), BFC_ERROR_INVALID_POINTER);
    assert_eq!(pool.stats().num_frees, 1);
    pool.check();
    fixture.finish(&pool, own);
}

pub fn a_request_on_a_stream<F: Fixture>(fixture: &F) {
    let (pool, chunk, [own, other]) = freed_on_a_busy_stream(fixture);
    let mut wanted = request(UNIT as usize);
    (wanted.flags, wanted.stream) = (BFC_REQUEST_ON_STREAM, pointer(own));
    assert_eq!(pool.alloc_ex(&wanted), Ok(chunk), "{}", last_error());
    pool.put_on(chunk, own);
    wanted.stream = pointer(other);
    if !F::DEVICE {
        assert_eq!(pool.alloc_ex(&wanted), Err(BFC_ERROR_OUT_OF_MEMORY));
    }
    fixture.finish(&pool, own);
    (wanted.bytes, wanted.alignment) = (1000, 65_536);
    let aligned = pool.alloc_ex(&wanted).unwrap_or_else(|_| panic!("{}", last_error()));
    assert!(aligned.is_multiple_of(65_536));
    pool.put_on(aligned, other);
    pool.check();
}

/// However memory was freed, once all work has completed every stream can use all of it.
pub fn nothing_is_stranded<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, 0);
    let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
    let mut random = Random::new(5);
    let mut live: Vec<(u64, usize)> = Vec::new();
    for round in 0..300 {
        let on = random.index(3);
        if !random.one_in(3) {
            live.extend(pool.alloc_on(random.between(1, 100_000), streams[on]).map(|address| (address, on)));
        } else if !live.is_empty() {
            let (address, home) = live.swap_remove(random.index(live.len()));
            if round % 7 == 0 {
                assert_eq!(pool.record(address, streams[on]), BFC_OK);
            }
            pool.put_on(address, streams[home]);
        }
        if round % 20 == 0 {
            fixture.occupy(streams[on]);
        }
    }
    live.into_iter().for_each(|(address, _)| pool.put(address));
    streams.iter().for_each(|&stream| fixture.finish(&pool, stream));
    let whole = pool.get_on(4 * UNIT, streams[0]);
    pool.check();
    pool.put_on(whole, streams[0]);
    fixture.finish(&pool, streams[0]);
    pool.put(pool.get(4 * UNIT));
}
