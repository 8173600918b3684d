//! Several threads.

use super::*;
use crate::common::spans::Spans;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

pub fn a_free_serves_who_waits<F: Fixture>(fixture: &F) {
    let pool = fixture.pool_with(1, |options| options.retry_timeout_ms = 20_000);
    let whole = pool.get(UNIT);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            fixture.enter_thread();
            pool.alloc(UNIT)
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished(), "it waits");
        pool.put(whole);
        assert_eq!(waiter.join().expect("no panic"), Ok(whole));
    });
}

pub fn the_time_is_up<F: Fixture>(fixture: &F) {
    let pool = fixture.pool_with(1, |options| options.retry_timeout_ms = 60);
    let _whole = pool.get(UNIT);
    let begun = Instant::now();
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert!(begun.elapsed() >= Duration::from_millis(55), "{:?}", begun.elapsed());
}

pub fn the_end_wakes_who_waits<F: Fixture>(fixture: &F) {
    let pool = fixture.pool_with(1, |options| options.retry_timeout_ms = 60_000);
    pool.get(UNIT);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            fixture.enter_thread();
            pool.alloc(UNIT)
        });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(pool.destroy_forced(), BFC_OK);
        assert_eq!(waiter.join().expect("no panic"), Err(BFC_ERROR_SHUTTING_DOWN));
    });
}

/// Some use streams and some do not, and all write to every chunk.
pub fn many_threads<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(8, GROWTH | COLLECT);
    let shared = Mutex::new(Spans::default());
    thread::scope(|scope| {
        for seed in 0..6 {
            let (pool, shared) = (&pool, &shared);
            scope.spawn(move || {
                fixture.enter_thread();
                let (mut random, stream) = (Random::new(seed), fixture.stream());
                let mut live: Vec<Filled> = Vec::new();
                for _ in 0..150 {
                    if live.len() < 10 && !random.one_in(3) {
                        let bytes = random.between(1, 100_000);
                        let got =
                            if seed % 2 == 0 { pool.alloc(bytes) } else { pool.alloc_on(bytes, stream) };
                        let Ok(address) = got else { continue };
                        let bytes = pool.allocated_size(address).expect("live");
                        shared.lock().unwrap().insert(address, bytes, ());
                        live.push(Filled::new(fixture, pool, address, random.bits() >> 1));
                    } else if !live.is_empty() {
                        let filled = live.swap_remove(random.index(live.len()));
                        filled.assert_intact(fixture);
                        shared.lock().unwrap().remove(filled.address);
                        match seed % 2 {
                            0 => pool.put(filled.address),
                            _ => pool.put_on(filled.address, stream),
                        }
                    }
                }
                for filled in live {
                    filled.assert_intact(fixture);
                    shared.lock().unwrap().remove(filled.address);
                    pool.put(filled.address);
                }
                assert_eq!(pool.try_forget(stream), BFC_OK, "{}", last_error());
                fixture.finish(pool, stream);
                fixture.end_stream(stream);
            });
        }
    });
    pool.check();
    let stats = pool.stats();
    assert_eq!((stats.bytes_in_use, stats.num_allocs), (0, stats.num_frees));
    assert_eq!(pool.destroy(), BFC_OK);
}
