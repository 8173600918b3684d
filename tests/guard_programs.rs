//! `BFC_DEBUG=guard` on host memory: correct programs cause no reports, with several threads, with
//! streams, in a forked child, and until the end of the allocator.

mod common;

use common::guarded::*;
use common::*;

/// A program that stays within its allocations, with all kinds of calls.
fn random_program(pool: &Pool, seed: u64, rounds: u32, tag: u8) {
    let mut random = Random::new(seed);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for _ in 0..rounds {
        match random.below(20) {
            0 => drop(pool.trim(random.below(MIB))),
            1 => assert_eq!(bfc_check(pool.device()), BFC_OK),
            2..=10 if live.len() < 60 => {
                let most = [200, 5000, 300_000][random.index(3)];
                let size = random.between(1, most);
                let address = match random.below(4) {
                    0 => pool.alloc_aligned(size, 1 << random.between(8, 15)),
                    _ => pool.alloc(size),
                };
                let Ok(address) = address else { continue };
                assert!(bytes(address, size).iter().all(|&byte| byte == 0xFF));
                write(address, &vec![tag; size as usize]);
                live.push((address, size));
            }
            _ if !live.is_empty() => {
                let (address, size) = live.swap_remove(random.index(live.len()));
                assert!(bytes(address, size).iter().all(|&byte| byte == tag), "nothing else wrote there");
                pool.put(address);
            }
            _ => {}
        }
    }
    live.into_iter().for_each(|(address, _)| pool.put(address));
}

#[test]
fn no_false_alarm_in_random_programs() {
    guarded("no_false_alarm_in_random_programs", |log| {
        for seed in 0..8 {
            let flags = [
                BFC_ALLOW_GROWTH,
                BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION,
                BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS,
                0,
            ][seed as usize % 4];
            let pool =
                Pool::host(4 * MIB, |options| (options.flags, options.initial_region_bytes) = (flags, 65536));
            random_program(&pool, seed, 1000, 3);
            assert_quiet(&pool, log);
            assert_eq!((pool.stats().bytes_in_use, counter(&pool, "guards_unchecked")), (0, 0));
        }
    });
}

#[test]
fn no_false_alarm_with_several_threads() {
    guarded("no_false_alarm_with_several_threads", |log| {
        for seed in 0..2 {
            let pool = Pool::host(6 * MIB, |options| {
                options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
                (options.initial_region_bytes, options.retry_timeout_ms) = (65536, 2);
            });
            std::thread::scope(|scope| {
                for thread in 0..4u8 {
                    let pool = &pool;
                    scope.spawn(move || random_program(pool, seed * 4 + u64::from(thread), 700, 10 + thread));
                }
            });
            assert_quiet(&pool, log);
            assert_eq!(counter(&pool, "guards_unchecked"), 0);
        }
    });
}

#[test]
fn no_false_alarm_in_random_programs_of_streams() {
    guarded("no_false_alarm_in_random_programs_of_streams", |log| {
        for seed in 0..8 {
            let pool = Pool::host(2 * MIB, |options| {
                (options.flags, options.initial_region_bytes) =
                    (BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION, 65536);
            });
            // Several streams from the beginning.
            pool.put(pool.get(1));
            pool.put_on(pool.get_on(1, 16), 16);
            let mut random = Random::new(seed);
            let mut live: Vec<(u64, u64)> = Vec::new();
            // Memory that streams freed and their work may still use, with its contents.
            let mut pending: Vec<(u64, u64, u64)> = Vec::new();
            for _ in 0..1500 {
                let stream = 16 + random.below(3);
                match random.below(20) {
                    0 => {
                        assert_eq!(bfc_stream_synchronized(pool.device(), pointer(stream)), BFC_OK);
                        pending.retain(|&(.., on)| on != stream);
                    }
                    1 => pool.check(),
                    2 => drop(pool.trim(0)),
                    3..=10 if live.len() < 40 => {
                        let (size, on) = (random.between(1, 20_000), random.below(4));
                        let mut wanted = request(size as usize);
                        (wanted.stream, wanted.flags) =
                            (pointer(16 + on), u32::from(on != 3) * BFC_REQUEST_ON_STREAM);
                        let Ok(address) = pool.alloc_ex(&wanted) else { continue };
                        let overlaps = |&&(at, bytes, by): &&(u64, u64, u64)| {
                            at < address + size && address < at + bytes && by != 16 + on
                        };
                        assert_eq!(pending.iter().find(overlaps), None, "given to another");
                        // It belongs to the same stream, or no work uses it anymore, slack included.
                        let chunk = pool.range(address).unwrap().chunk;
                        pending.retain(|&(at, bytes, _)| at >= chunk.0 + chunk.1 || address >= at + bytes);
                        write(address, &vec![size as u8; size as usize]);
                        live.push((address, size));
                    }
                    _ if !live.is_empty() => {
                        let (address, size) = live.swap_remove(random.index(live.len()));
                        assert!(bytes(address, size).iter().all(|&byte| byte == size as u8));
                        if random.one_in(3) {
                            pool.put(address);
                        } else {
                            pool.put_on(address, stream);
                            pending.push((address, size, stream));
                        }
                    }
                    _ => {}
                }
                for &(address, size, _) in &pending {
                    assert!(
                        bytes(address, size).iter().all(|&byte| byte == size as u8),
                        "its work may read it"
                    );
                }
            }
            assert_eq!(counter(&pool, "guard_violations"), 0, "{:#?}", log.messages());
            assert_eq!(log.messages(), []);
        }
    });
}

/// In the child of a fork, with threads of the parent in the middle of it.
#[test]
fn a_forked_child_goes_on() {
    guarded("a_forked_child_goes_on", |log| {
        let pool = pool();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut seed = u64::from(thread);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        random_program(pool, seed, 50, thread);
                        seed += 3;
                    }
                });
            }
            // Even if something is wrong, because otherwise they run forever.
            let _stop = Stop(&stop);
            for _ in 0..60 {
                // SAFETY: the child only calls the library and ends.
                match unsafe { libc::fork() } {
                    0 => {
                        let works = (0..20).all(|_| {
                            let address = alloc(pool.device(), 5000).unwrap_or(0);
                            address != 0 && free(pool.device(), address) == BFC_OK
                        });
                        let sound = bfc_check(pool.device()) == BFC_OK && summary(&pool).0 == 0;
                        // SAFETY: it ends the child at once.
                        unsafe { libc::_exit(i32::from(!works) + 2 * i32::from(!sound)) };
                    }
                    child => {
                        let mut status = 0;
                        // SAFETY: the pointer is valid, and the child is ours.
                        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                        assert_eq!(status, 0, "1: a call failed; 2: a guard was damaged");
                    }
                }
            }
        });
        assert_quiet(&pool, log);
    });
}

struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Violations and unchecked frees as in the memory map, without allocating much.
fn summary(pool: &Pool) -> (u64, u64) {
    let map = pool.memory_map();
    let number = |name: &str| {
        let at = map.find(name).expect("in the map") + name.len();
        let digits = map[at..].find(|c: char| !c.is_ascii_digit()).expect("an end");
        map[at..at + digits].parse().expect("a number")
    };
    (number("\"guard_violations\":"), number("\"guards_unchecked\":"))
}

#[test]
fn destruction_waits_and_wakes() {
    guarded("destruction_waits_and_wakes", |_| {
        for seed in 0..20 {
            let pool = pool();
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let pool = &pool;
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 3 + thread);
                        loop {
                            match pool.alloc(random.between(1, 300_000)) {
                                Ok(address) => {
                                    let status = pool.free(address);
                                    assert!(
                                        [BFC_OK, BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_NO_ALLOCATOR]
                                            .contains(&status)
                                    );
                                }
                                Err(BFC_ERROR_SHUTTING_DOWN | BFC_ERROR_NO_ALLOCATOR) => break,
                                Err(status) => panic!("{status}: {}", last_error()),
                            }
                        }
                    });
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
                assert_eq!(pool.destroy_forced(), BFC_OK);
            });
        }
    });
}
