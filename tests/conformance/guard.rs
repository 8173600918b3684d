//! The debug mode `BFC_DEBUG=guard`, on the backends that support it: an out-of-bounds write is attributed to its
//! allocation, and a correct program causes no report. Each test runs in a process of its own, because of the variable.

use super::*;
use crate::common::guarded::{GUARD, POISON, alarms, assert_quiet, assert_says, counter};
use crate::common::log::Collected;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;

/// The variables of the tests. Moves of granules are messages of the level info.
pub const VARIABLES: [(&str, &str); 2] = [("BFC_DEBUG", "guard"), ("BFC_LOG", "info")];

/// A pool of 64 MiB.
fn pool<F: Fixture>(fixture: &F) -> Pool {
    fixture.pool(32, GROWTH)
}

/// Whether all bytes of a range have this value.
fn all<F: Fixture>(fixture: &F, address: u64, bytes: u64, value: u8) -> bool {
    fixture.bytes(address, bytes).iter().all(|&byte| byte == value)
}

/// Returns the only message, which is an error.
#[track_caller]
fn only(log: &Collected) -> String {
    let alarms = alarms(log);
    assert_eq!(alarms.len(), 1, "{alarms:#?}");
    let (level, message) = alarms[0].clone();
    assert_eq!(level, BFC_LOG_ERROR);
    message
}

pub fn a_byte_after_the_end<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    scope_begin("matmul", 7);
    let address = pool.get(1000);
    bfc_scope_end();
    fixture.write_bytes(address, &[1; 1001]);
    pool.put(address);
    let message = only(log);
    let allocation =
        format!("{address:#x} (allocation 1, 1000 bytes in a chunk of 1280, operation \"matmul\", step 7)");
    let begins = format!("bfc, device {}: a write after the end of", pool.device());
    assert_says(&message, &[&allocation, &begins, "1 of 280 guard bytes"]);
    assert_says(&message, &["the first 0 bytes after its end: 01 fd fd", "(seen when it was freed)"]);
    assert!(!message.contains(", or "), "one allocation only: {message}");
    assert_eq!((counter(&pool, "guard_violations"), counter(&pool, "guards_unchecked")), (1, 0));
    assert_says(&pool.report(), &["guards: 1 damaged, 0 frees unchecked", &message]);
    assert!(all(fixture, address, 1280, POISON));
    // The memory is free again, and intact.
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert_eq!(pool.get(1000), address);
    pool.put(address);
    assert_eq!(alarms(log).len(), 1);
}

pub fn far_after_the_end<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    // A chunk of twice the size, so that the slack is large; more than the library reads at once.
    let (large, wall) = (pool.get(600_000), pool.get(1));
    pool.put(large);
    let small = pool.get(350_000);
    assert_eq!(small, large);
    let size = pool.range(small).unwrap().chunk.1;
    // A chunk of one growing region is always split, so its guard ends sooner.
    assert!(F::ONE_REGION || size >= 600_064, "{size}: all of it");
    let far = if F::ONE_REGION { 150 } else { 70_000 };
    fixture.write_bytes(small + size - 1, &[0x42]);
    fixture.write_bytes(small + 350_000 + far, &[0x41, GUARD, 0x43]);
    pool.put(small);
    let bytes = format!("the first {far} bytes after its end: 41 fd 43 fd");
    assert_says(&only(log), &["3 of ", &bytes]);
    pool.put(wall);
    assert_eq!(alarms(log).len(), 1);
}

/// The last bytes of a guard are also those before the next allocation, so the writer is ambiguous.
pub fn between_two_allocations<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    scope_begin("conv", 3);
    let first = pool.get(100);
    bfc_scope_end();
    let second = pool.get(200);
    assert_eq!(second, first + 256);
    fixture.write_bytes(second - 4, &[9; 4]);
    pool.put(second);
    let one = format!("before the start of {second:#x} (allocation 2, 200 bytes in a chunk of 512)");
    let other = "(allocation 1, 100 bytes in a chunk of 256, operation \"conv\", step 3)";
    let other = format!("or after the end of {first:#x} {other}");
    let bytes = "the first 4 bytes before its start: 09 09 09 09 (";
    assert_says(&only(log), &[&one, &other, "4 of 64 guard bytes", bytes]);
    pool.put(first);
    assert_eq!(alarms(log).len(), 1, "reported once");

    // The reverse.
    let (first, second) = (pool.get(100), pool.get(200));
    fixture.write_bytes(second - 4, &[9; 4]);
    pool.put(first);
    let after = format!("after the end of {first:#x}");
    let before = format!("or before the start of {second:#x}");
    let bytes = "the first 152 bytes after its end";
    assert_says(&alarms(log)[1].1, &[&after, &before, "4 of 156 guard bytes", bytes]);
    pool.put(second);
    assert_eq!((alarms(log).len(), counter(&pool, "guard_violations")), (2, 2));
}

pub fn in_front_where_free_memory_lies<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    let free_before = |pool: &Pool| {
        // Freed when the second already exists, or before.
        let (first, second) = (pool.get(1000), pool.get(1000));
        pool.put(first);
        second
    };
    let address = free_before(&pool);
    fixture.write_bytes(address - 64, &[5; 8]);
    pool.put(address);
    let late = "or a late write to memory that was freed there";
    assert_says(&only(log), &["a write before the start of", late, "8 of 64", "64 bytes before its start"]);

    let first = pool.get(1);
    let aligned = pool.alloc_aligned(1000, 4096).unwrap();
    assert!(aligned >= first + 512, "free memory lies before it");
    pool.put(first);
    fixture.write_bytes(aligned - 1, &[5]);
    pool.put(aligned);
    assert_says(&alarms(log)[1].1, &["1 of 64 guard bytes", "the first 1 bytes before its start: 05 ("]);
    assert_eq!(counter(&pool, "guard_violations"), 2);
    // Memory beyond the guard is free, and is not checked.
    let address = free_before(&pool);
    fixture.write_bytes(address - 65, &[5]);
    pool.put(address);
    assert_eq!(counter(&pool, "guard_violations"), 2);
    // Before a region's first chunk there is nothing to write to.
    let first = pool.get(10);
    assert_eq!(first, pool.range(first).unwrap().region.0);
    pool.put(first);
    assert_eq!(alarms(log).len(), 2);
}

pub fn new_memory_is_nan_and_freed_memory_is_poison<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    let mut adjacent = 0;
    for size in [1, 4, 255, 256, 1000, 100_000, UNIT - 64] {
        let address = pool.get(size);
        let new = fixture.bytes(address, size);
        assert!(new.iter().all(|&byte| byte == 0xFF), "{size}");
        let mut floats = new.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap()));
        assert!(floats.all(f32::is_nan));
        let chunk = pool.range(address).unwrap().chunk;
        assert!(chunk.1 >= size + 64 && chunk.1 < size + 64 + 256);
        assert!(all(fixture, address + size, chunk.1 - size, GUARD));
        fixture.write_bytes(address, &vec![7; size as usize]);
        pool.put(address);
        assert!(all(fixture, address, chunk.1, POISON), "use after free is seen");
        // Again, with a following allocation, whose guard before it stays.
        let (address, next) = (pool.get(size), pool.get(1));
        assert!(all(fixture, address, size, 0xFF));
        pool.put(address);
        if next == address + chunk.1 {
            adjacent += 1;
            assert!(all(fixture, address, chunk.1 - 64, POISON));
            assert!(all(fixture, next - 64, 64, GUARD));
        }
        pool.put(next);
        assert!(all(fixture, address, chunk.1, POISON) && all(fixture, next, 256, POISON));
    }
    assert!(adjacent > 0, "no allocation followed another");
    assert_quiet(&pool, log);
}

pub fn what_may_be_used_is_what_was_asked_for<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    assert_eq!(pool.alloc(0), Ok(0));
    for size in [1, 192, 193, 256, 1000] {
        let address = pool.get(size);
        assert_eq!((pool.requested_size(address), pool.allocated_size(address)), (Ok(size), Ok(size)));
        fixture.write_bytes(address, &vec![0; size as usize]);
        let stats = pool.stats();
        assert_eq!((stats.bytes_requested, stats.bytes_in_use), (size, rounded(size + 64)));
        assert!(stats.largest_alloc_size >= stats.bytes_in_use);
        pool.put(address);
    }
    assert_eq!(pool.free(1 << 40), BFC_ERROR_INVALID_POINTER);
    let address = pool.get(1);
    pool.put(address);
    assert_eq!(pool.free(address), BFC_ERROR_DOUBLE_FREE);
    assert_eq!(pool.alloc(u64::MAX), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.alloc(u64::MAX - 63), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.alloc(32 * UNIT), Err(BFC_ERROR_OUT_OF_MEMORY), "no room for the guard");
    pool.trim(0);
    pool.put(pool.get(32 * UNIT - 64));
    assert_quiet(&pool, log);
}

pub fn a_check_looks_at_all_that_lives<F: Fixture>(fixture: &F, log: &Collected) {
    let pool = pool(fixture);
    let addresses: Vec<u64> = (0..40).map(|_| pool.get(500)).collect();
    assert_quiet(&pool, log);
    addresses.iter().step_by(2).for_each(|&address| pool.put(address));
    assert_quiet(&pool, log);
    // One after, one before.
    fixture.write_bytes(addresses[7] + 500, &[1]);
    fixture.write_bytes(addresses[11] - 3, &[1]);
    pool.check();
    let messages = alarms(log);
    assert_eq!((messages.len(), counter(&pool, "guard_violations")), (2, 2), "{messages:#?}");
    assert!(messages.iter().all(|(_, message)| message.contains("(seen by bfc_check)")));
    let find = |text: String| messages.iter().any(|(_, message)| message.contains(&text));
    assert!(find(format!("after the end of {:#x}", addresses[7])), "{messages:#?}");
    assert!(find(format!("before the start of {:#x}", addresses[11])), "{messages:#?}");
    // Reported once.
    pool.check();
    addresses.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
    assert_eq!((alarms(log).len(), counter(&pool, "guard_violations")), (2, 2));
    // Large numbers are counted, and the first ones are reported.
    let addresses: Vec<u64> = (0..40).map(|_| pool.get(500)).collect();
    addresses.iter().for_each(|address| fixture.write_bytes(address + 500, &[1]));
    pool.check();
    assert_eq!((alarms(log).len(), counter(&pool, "guard_violations")), (2 + 16 + 1, 42));
    assert_eq!(log.with("and 24 more damaged guards").len(), 1);
}

/// The callback may use the allocator in any way.
pub fn a_listener_may_use_the_allocator<F: Fixture>(fixture: &F, _: &Collected) {
    static CALLS: Mutex<Vec<Status>> = Mutex::new(Vec::new());
    extern "C" fn listen(device: *mut c_void, level: i32, _: *const c_char) {
        if level <= BFC_LOG_WARN {
            let device = device as i32;
            let answer = alloc(device, 10).map_or_else(|status| status, |address| free(device, address));
            CALLS.lock().unwrap().push(answer);
        }
    }
    let pool = pool(fixture);
    bfc_set_log_callback(Some(listen), pointer(pool.device() as u64));
    let address = pool.get(10);
    fixture.write_bytes(address + 10, &[1]);
    pool.put(address);
    bfc_set_log_callback(None, std::ptr::null_mut());
    assert_eq!(*CALLS.lock().unwrap(), [BFC_OK]);
}

/// The sizes of the random programs. Memory in granules moves, and is unmapped while free.
struct Sizes {
    limit: u64,
    region: u64,
    most: &'static [u64],
    live: usize,
}

fn sizes<F: Fixture>() -> Sizes {
    match F::ONE_REGION {
        true => Sizes { limit: 12 * UNIT, region: 0, most: &[5000, UNIT, 2 * UNIT, 4 * UNIT], live: 20 },
        false => Sizes { limit: 2 * UNIT, region: 64 * KIB, most: &[200, 5000, 300_000], live: 60 },
    }
}

/// A program that stays within its allocations, with all kinds of calls.
fn random_program<F: Fixture>(fixture: &F, pool: &Pool, seed: u64, rounds: u32, tag: u8) {
    let sizes = sizes::<F>();
    let mut random = Random::new(seed);
    let mut live: Vec<(u64, u64)> = Vec::new();
    for _ in 0..rounds {
        match random.below(20) {
            0 if !F::ONE_REGION || random.one_in(4) => drop(pool.trim(random.below(sizes.limit))),
            1 => pool.check(),
            // Pieces of free memory, for which a large request is too large.
            2 if F::ONE_REGION => {
                let gone: Vec<(u64, u64)> = live.iter().copied().step_by(2).collect();
                live.retain(|chunk| !gone.contains(chunk));
                gone.into_iter().for_each(|(address, _)| pool.put(address));
            }
            3..=12 if live.len() < sizes.live => {
                // Or exactly one or two granules with the guard.
                let size = match F::ONE_REGION && random.one_in(3) {
                    true => random.between(1, 2) * UNIT - 64,
                    false => {
                        let most = sizes.most[random.index(sizes.most.len())];
                        random.between(1, most)
                    }
                };
                let address = match random.below(4) {
                    0 => pool.alloc_aligned(size, 1 << random.between(8, 15)),
                    _ => pool.alloc(size),
                };
                let Ok(address) = address else { continue };
                let end = size.min(300_000);
                assert!(all(fixture, address, end, 0xFF) && all(fixture, address + size - end, end, 0xFF));
                fixture.write_bytes(address, &vec![tag; size as usize]);
                live.push((address, size));
            }
            _ if !live.is_empty() => {
                let (address, size) = live.swap_remove(random.index(live.len()));
                assert!(fixture.bytes(address, size) == vec![tag; size as usize], "nothing else wrote there");
                pool.put(address);
            }
            _ => {}
        }
    }
    live.into_iter().for_each(|(address, _)| pool.put(address));
}

/// Creates a pool for random programs.
fn small_pool<F: Fixture>(fixture: &F, flags: u32, retry_timeout_ms: u32) -> Pool {
    let sizes = sizes::<F>();
    let change = |options: &mut bfc_options_t| {
        (options.flags, options.initial_region_bytes) = (flags, sizes.region);
        options.retry_timeout_ms = retry_timeout_ms;
    };
    fixture.try_pool(sizes.limit, &change).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

pub fn no_false_alarm_in_random_programs<F: Fixture>(fixture: &F, log: &Collected) {
    let flags = [GROWTH | BFC_SPLIT_ALWAYS, GROWTH | COLLECT, GROWTH, 0];
    for seed in 0..12 {
        let pool = small_pool(fixture, flags[seed as usize % 4], 0);
        random_program(fixture, &pool, seed, if F::ONE_REGION { 400 } else { 1000 }, 3);
        assert_quiet(&pool, log);
        assert_eq!((pool.stats().bytes_in_use, counter(&pool, "guards_unchecked")), (0, 0));
    }
    let moves = log.with(" and moved ").len();
    assert!(moves > 5 || !F::ONE_REGION, "granules moved {moves} times");
}

/// One writes guards while another moves granules: neither waits forever, nor writes to unmapped memory.
pub fn no_false_alarm_with_several_threads<F: Fixture>(fixture: &F, log: &Collected) {
    for seed in 0..2 {
        let pool = small_pool(fixture, GROWTH | [COLLECT, BFC_SPLIT_ALWAYS][seed as usize], 2);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    fixture.enter_thread();
                    let rounds = if F::ONE_REGION { 120 } else { 700 };
                    random_program(fixture, pool, seed * 4 + u64::from(thread), rounds, 10 + thread);
                });
            }
        });
        assert_quiet(&pool, log);
        assert_eq!((pool.stats().bytes_in_use, counter(&pool, "guards_unchecked")), (0, 0));
    }
}

pub fn destruction_waits_and_wakes<F: Fixture>(fixture: &F, _: &Collected) {
    for seed in 0..20 {
        let pool = pool(fixture);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let pool = &pool;
                scope.spawn(move || {
                    fixture.enter_thread();
                    let mut random = Random::new(seed * 3 + thread);
                    let ended = [BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_NO_ALLOCATOR];
                    loop {
                        match pool.alloc(random.between(1, 300_000)) {
                            Ok(address) => {
                                let status = pool.free(address);
                                assert!(status == BFC_OK || ended.contains(&status), "{status}");
                            }
                            Err(status) if ended.contains(&status) => break,
                            Err(status) => panic!("{status}: {}", last_error()),
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert_eq!(pool.destroy_forced(), BFC_OK);
        });
    }
}
