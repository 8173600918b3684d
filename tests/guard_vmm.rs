//! `BFC_DEBUG=guard` for memory that may be unmapped and moved while free: `BFC_BACKEND_HOST_VMM`, and
//! `BFC_BACKEND_CUDA_VMM` on the simulated driver, which is a simulation. The simulated device's memory is the host's,
//! so a program may write to both.

mod common;

use common::gpu::Gpu;
use common::guarded::*;
use common::lost::{assert_refused, lost};
use common::simcuda::steer::RESET_ENDS;
use common::simcuda::{Simulation, simulated_with};
use common::*;

const GRANULE: u64 = 2 * MIB;
const BACKENDS: [u32; 2] = [BFC_BACKEND_HOST_VMM, BFC_BACKEND_CUDA_VMM];

/// Runs a body in a process of its own with each backend.
#[track_caller]
fn each(test: &str, body: impl Fn(u32, &log::Collected)) {
    with_simulation(test, |_, backend, log| body(backend, log));
}

#[track_caller]
fn with_simulation(test: &str, body: impl Fn(Simulation, u32, &log::Collected)) {
    simulated_with(test, &[("BFC_DEBUG", "guard")], |sim| {
        for backend in BACKENDS {
            body(sim, backend, &log::Collected::start());
            sim.assert_clean();
        }
    });
}

fn vmm(backend: u32, limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (backend, limit);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;
    change(&mut wanted);
    let device = if backend == BFC_BACKEND_CUDA_VMM { 0 } else { fresh_device() };
    Pool::create(device, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

/// Returns the request for a chunk of this many granules.
fn granules(count: u64) -> u64 {
    count * GRANULE - 64
}

/// Returns how often granules have moved so far.
fn moved(log: &log::Collected) -> u64 {
    let number = |text: &str| text.split(" and moved ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    log.with(" and moved ").iter().filter_map(|text| number(text)).sum::<u64>() / GRANULE
}

#[test]
fn overruns_are_found() {
    each("overruns_are_found", |backend, log| {
        let pool = vmm(backend, 16 * MIB, |_| ());
        scope_begin("conv", 9);
        let [first, second, third] = [1000, granules(1), 5000].map(|bytes| pool.get(bytes));
        bfc_scope_end();
        assert!(bytes(second, granules(1)).iter().all(|&byte| byte == 0xFF));
        write(first + 1000, &[1]);
        pool.put(first);
        pool.put(second);
        write(third - 1, &[2]);
        pool.put(third);
        let messages = log.messages();
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].1.contains(&format!("after the end of {first:#x}")), "{messages:#?}");
        assert!(messages[0].1.contains("operation \"conv\", step 9"), "{messages:#?}");
        assert!(messages[1].1.contains(&format!("before the start of {third:#x}")), "{messages:#?}");
        assert!(bytes(first, 1000).iter().chain(bytes(second, granules(1))).all(|&byte| byte == POISON));
        assert_eq!((counter(&pool, "guard_violations"), counter(&pool, "guards_unchecked")), (2, 0));
    });
}

/// The guard before a chunk was lost with the preceding granule, and other memory was mapped there.
#[test]
fn a_guard_that_was_unmapped_is_missed_by_nobody() {
    each("a_guard_that_was_unmapped_is_missed_by_nobody", |backend, log| {
        let pool = vmm(backend, 16 * MIB, |_| ());
        let [wall, gone, behind] = [0; 3].map(|_| pool.get(granules(1)));
        pool.put(gone);
        assert_eq!(pool.trim(0), GRANULE);
        pool.check();
        // The granule is a different one now, and its end is free.
        let small = pool.get(1000);
        assert_eq!(small, gone);
        pool.check();
        pool.put(behind);
        assert_quiet(&pool, log);
        // A chunk that is handed out after an unmapped one.
        pool.put(small);
        pool.trim(0);
        let [unmapped, behind] = [0; 2].map(|_| pool.get(granules(1)));
        pool.put(unmapped);
        pool.trim(0);
        pool.put(behind);
        let behind = pool.alloc_aligned(granules(1), 4 * MIB).unwrap();
        pool.put(pool.get(GRANULE / 2));
        pool.put(behind);
        pool.put(wall);
        assert_quiet(&pool, log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
    });
}

/// The limit is reached: free granules move to the end, and from there to a place before a chunk.
#[test]
fn a_guard_that_moved_away_is_missed_by_nobody() {
    each("a_guard_that_moved_away_is_missed_by_nobody", |backend, log| {
        let pool = vmm(backend, 24 * MIB, |_| ());
        let pairs = [0; 3].map(|_| [3, 1].map(|count| pool.get(granules(count))));
        pairs.iter().for_each(|pair| pool.put(pair[0]));
        let large = pool.get(granules(9));
        assert!(large > pairs[2][1]);
        pool.check();
        pool.put(large);
        // Two free, one in use, and so on: no place for three.
        let pieces = [0; 9].map(|_| pool.get(granules(1)));
        let (kept, gone): (Vec<_>, Vec<_>) = pieces.chunks(3).map(|three| (three[2], &three[..2])).unzip();
        gone.concat().into_iter().for_each(|piece| pool.put(piece));
        let back = [0; 2].map(|_| pool.get(granules(3) - 4096));
        back.iter().for_each(|&address| assert!(address < pairs[2][1], "in an unmapped range"));
        assert_eq!(pool.stats().pool_bytes, 24 * MIB);
        pool.check();
        pairs.iter().for_each(|pair| pool.put(pair[1]));
        back.into_iter().chain(kept).for_each(|address| pool.put(address));
        assert_quiet(&pool, log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
        // A guard that is trusted again is checked.
        let [front, behind] = [1000, 1000].map(|bytes| pool.get(bytes));
        pool.put(front);
        write(behind - 8, &[1; 8]);
        pool.put(behind);
        assert_eq!(counter(&pool, "guard_violations"), 1);
    });
}

/// A program that stays within its allocations, with growth, trims and remapping.
fn random_program(pool: &Pool, seed: u64, rounds: u32, tag: u8) {
    let mut random = Random::new(seed);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for _ in 0..rounds {
        match random.below(20) {
            0 if random.one_in(4) => drop(pool.trim(random.below(24 * MIB))),
            1 => assert_eq!(bfc_check(pool.device()), BFC_OK),
            // Pieces of free memory, for which a large request is too large.
            2 => {
                let gone: Vec<(u64, u64)> = live.iter().copied().step_by(2).collect();
                live.retain(|chunk| !gone.contains(chunk));
                gone.into_iter().for_each(|(address, _)| pool.put(address));
            }
            3..=13 if live.len() < 20 => {
                let most = [5000, GRANULE, 2 * GRANULE, 4 * GRANULE][random.index(4)];
                let size =
                    if random.one_in(3) { granules(1 + random.below(2)) } else { random.between(1, most) };
                let address = match random.below(4) {
                    0 => pool.alloc_aligned(size, 1 << random.between(8, 21)),
                    _ => pool.alloc(size),
                };
                let Ok(address) = address else { continue };
                let ends = |offset: u64| bytes(address + offset, size.min(4096).min(size - offset));
                assert!(ends(0).iter().chain(ends(size - size.min(4096))).all(|&byte| byte == 0xFF));
                write(address, &vec![tag; size as usize]);
                live.push((address, size));
            }
            _ if !live.is_empty() => {
                let (address, size) = live.swap_remove(random.index(live.len()));
                assert!(bytes(address, size) == vec![tag; size as usize], "nothing else wrote there");
                pool.put(address);
            }
            _ => {}
        }
    }
    live.into_iter().for_each(|(address, _)| pool.put(address));
}

/// Messages of warnings and errors. Those about moves have another level.
#[track_caller]
fn assert_no_alarm(pool: &Pool, log: &log::Collected) {
    assert_eq!(bfc_check(pool.device()), BFC_OK);
    let alarms: Vec<_> = log.messages().into_iter().filter(|&(level, _)| level <= BFC_LOG_WARN).collect();
    assert_eq!((counter(pool, "guard_violations"), alarms), (0, vec![]));
    assert_eq!((pool.stats().bytes_in_use, counter(pool, "guards_unchecked")), (0, 0));
}

#[test]
fn no_false_alarm_in_random_programs() {
    simulated_with(
        "no_false_alarm_in_random_programs",
        &[("BFC_DEBUG", "guard"), ("BFC_LOG", "info")],
        |sim| {
            for backend in BACKENDS {
                let log = log::Collected::start();
                for seed in 0..12 {
                    let pool = vmm(backend, 24 * MIB, |_| ());
                    random_program(&pool, seed, 400, 3);
                    assert_no_alarm(&pool, &log);
                }
                assert!(moved(&log) > 20, "{} granules moved", moved(&log));
                sim.assert_clean();
            }
        },
    );
}

/// One writes guards while another moves granules: neither waits forever, nor writes to unmapped memory.
#[test]
fn no_false_alarm_with_several_threads() {
    simulated_with(
        "no_false_alarm_with_several_threads",
        &[("BFC_DEBUG", "guard"), ("BFC_LOG", "info")],
        |sim| {
            for backend in BACKENDS {
                let log = log::Collected::start();
                for seed in 0..2 {
                    let pool = vmm(backend, 32 * MIB, |options| options.retry_timeout_ms = 1);
                    std::thread::scope(|scope| {
                        for thread in 0..4u8 {
                            let pool = &pool;
                            scope.spawn(move || {
                                random_program(pool, seed * 4 + u64::from(thread), 120, 10 + thread);
                            });
                        }
                    });
                    assert_no_alarm(&pool, &log);
                }
                sim.assert_clean();
            }
        },
    );
}

/// A free checks the guard before its chunk, which is in free memory. A concurrent trim must wait.
#[test]
fn what_is_looked_at_is_not_unmapped() {
    let variables = [("BFC_DEBUG", "guard")];
    simulated_with("what_is_looked_at_is_not_unmapped", &variables, |sim| {
        let log = log::Collected::start();
        let pool = vmm(BFC_BACKEND_CUDA_VMM, 16 * MIB, |_| ());
        let [front, behind] = [0; 2].map(|_| pool.get(granules(1)));
        pool.put(front);
        sim.delay(c"cuMemcpyDtoH_v2".as_ptr(), 300_000_000);
        let reads = sim.calls("cuMemcpyDtoH_v2");
        std::thread::scope(|scope| {
            scope.spawn(|| pool.put(behind));
            let since = std::time::Instant::now();
            while sim.calls("cuMemcpyDtoH_v2") == reads {
                assert!(since.elapsed().as_secs() < 60);
                std::thread::yield_now();
            }
            assert_eq!(pool.trim(0), 2 * GRANULE, "all, once the other is free");
        });
        sim.clear_faults();
        assert_quiet(&pool, &log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
        drop(pool);
        sim.assert_clean();
    });
}

/// Work that is held on streams writes; the memory is not unmapped or overwritten before the work has completed.
#[test]
fn no_false_alarm_in_random_programs_of_streams() {
    simulated_with("no_false_alarm_in_random_programs_of_streams", &[("BFC_DEBUG", "guard")], |sim| {
        let (gpu, log) = (Gpu::new(sim), log::Collected::start());
        gpu.enter(0);
        let streams = [false, false, true].map(|blocking| gpu.stream(blocking));
        for seed in 0..6 {
            let pool = vmm(BFC_BACKEND_CUDA_VMM, 24 * MIB, |_| ());
            streams.iter().for_each(|&stream| gpu.hold(stream));
            let mut random = Random::new(seed);
            let mut live: Vec<(u64, u64, u64)> = Vec::new();
            for round in 0..250 {
                let stream = streams[random.index(3)];
                match random.below(16) {
                    0 => drop(gpu.step(stream, random.below(4))),
                    1 => assert_eq!(bfc_check(0), BFC_OK),
                    2 => drop(pool.trim(random.below(24 * MIB))),
                    3..=8 if live.len() < 20 => {
                        let size = 8 * random.between(1, GRANULE / 4);
                        let Ok(address) = pool.alloc_on(size, stream) else { continue };
                        gpu.expect(stream, address, size, u64::MAX);
                        gpu.fill(stream, address, size, address ^ size);
                        live.push((address, size, stream));
                    }
                    _ if !live.is_empty() => {
                        let (address, size, stream) = live.swap_remove(random.index(live.len()));
                        gpu.expect(stream, address, size, address ^ size);
                        if round % 3 == 0 {
                            pool.put(address);
                        } else {
                            pool.put_on(address, stream);
                        }
                    }
                    _ => {}
                }
            }
            live.drain(..).for_each(|(address, _, stream)| pool.put_on(address, stream));
            streams.iter().for_each(|&stream| assert_eq!(sim.release(pointer(stream)), 0));
            assert_eq!(sim.mismatches(), 0, "{:#?}", sim.misuse_texts());
            assert_no_alarm(&pool, &log);
        }
        streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Memory of a stream is left alone on the host, in any granule, and causes no reports.
#[test]
fn streams_on_the_host() {
    guarded("streams_on_the_host", |log| {
        let pool = vmm(BFC_BACKEND_HOST_VMM, 16 * MIB, |_| ());
        let mut random = Random::new(5);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..600 {
            let stream = 16 + random.below(3);
            match random.below(12) {
                0 => assert_eq!(bfc_stream_synchronized(pool.device(), pointer(stream)), BFC_OK),
                1 => pool.check(),
                2 => drop(pool.trim(random.below(16 * MIB))),
                3..=7 if live.len() < 12 => {
                    let size = random.between(1, 3 * MIB);
                    let got = if stream == 16 { pool.alloc(size) } else { pool.alloc_on(size, stream) };
                    let Ok(address) = got else { continue };
                    write(address, &vec![size as u8; size as usize]);
                    live.push((address, size));
                }
                _ if !live.is_empty() => {
                    let (address, size) = live.swap_remove(random.index(live.len()));
                    assert!(bytes(address, size) == vec![size as u8; size as usize]);
                    if stream == 16 { pool.put(address) } else { pool.put_on(address, stream) }
                }
                _ => {}
            }
        }
        assert_eq!((counter(&pool, "guard_violations"), log.messages()), (0, vec![]));
    });
}

/// The context is lost: guards of lost memory are not checked, and those of the next life are written.
#[test]
fn after_a_reset_there_are_guards_again() {
    simulated_with("after_a_reset_there_are_guards_again", &[("BFC_DEBUG", "guard")], |sim| {
        for ends in 0..=2 {
            for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
                sim.configure(1, 1 << 30);
                sim.set(RESET_ENDS, ends);
                let (log, gpu) = (log::Collected::start(), Gpu::new(sim));
                let mut wanted = options();
                (wanted.backend, wanted.memory_limit, wanted.flags) = (backend, 16 * MIB, BFC_ALLOW_GROWTH);
                let pool = Pool::create(0, &wanted, None).unwrap();
                for told in [true, false, false] {
                    let [first, second, third] = [1000, 2000, GRANULE].map(|bytes| pool.get(bytes));
                    pool.put(second);
                    gpu.reset(0);
                    if told {
                        lost(0);
                        assert_refused(&pool, first);
                    }
                    // The library notices the loss when it checks the guards.
                    let new = pool.get(500);
                    assert!(bytes(new, 500).iter().all(|&byte| byte == 0xFF), "it is there");
                    assert!(third == new || pool.free(third) == BFC_ERROR_INVALID_POINTER);
                    pool.check();
                    write(new + 500, &[1]);
                    let before = counter(&pool, "guard_violations");
                    pool.put(new);
                    assert_eq!(counter(&pool, "guard_violations"), before + 1);
                    assert_eq!(pool.stats().bytes_in_use, 0);
                }
                assert_eq!(counter(&pool, "guards_unchecked"), 0, "{:#?}", log.messages());
                drop(pool);
                sim.assert_clean();
            }
        }
    });
}
