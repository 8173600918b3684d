//! Many threads: on one device, on several, with creation and destruction in between.

mod common;

use common::spans::Spans;
use common::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const GROWTH: u32 = BFC_ALLOW_GROWTH;
const COLLECT: u32 = BFC_GARBAGE_COLLECTION;

/// An allocation of a thread: address, bytes, and the byte that fills it.
#[derive(Clone, Copy)]
struct Owned {
    address: u64,
    bytes: usize,
    pattern: u8,
}

impl Owned {
    fn write(&self) {
        // SAFETY: live host memory of at least that many bytes, which only its owning thread uses.
        unsafe { (self.address as *mut u8).write_bytes(self.pattern, self.bytes) };
    }

    fn is_intact(&self) -> bool {
        // SAFETY: as above, written before.
        let contents = unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) };
        contents.iter().all(|&byte| byte == self.pattern)
    }

    fn take(pool: &Pool, shared: &Mutex<Spans<u8>>, bytes: usize, pattern: u8) -> Option<Owned> {
        let address = match pool.alloc(bytes as u64) {
            Ok(address) => address,
            Err(BFC_ERROR_OUT_OF_MEMORY) => return None,
            Err(status) => panic!("status {status}: {}", last_error()),
        };
        let allocated = pool.allocated_size(address).expect("live");
        shared.lock().unwrap().insert(address, allocated, pattern);
        let owned = Owned { address, bytes, pattern };
        owned.write();
        Some(owned)
    }

    fn give_back(self, pool: &Pool, shared: &Mutex<Spans<u8>>) {
        assert!(self.is_intact(), "something wrote into {:#x}", self.address);
        // Before the free, because afterwards another thread may have it.
        shared.lock().unwrap().remove(self.address).expect("in the model");
        pool.put(self.address);
    }
}

/// 16 threads allocate, write, verify and free; another makes all queries.
#[test]
fn sixteen_threads_share_one_device() {
    for flags in [0, GROWTH, GROWTH | COLLECT, GROWTH | COLLECT | BFC_SPLIT_ALWAYS] {
        let pool = Pool::host(24 * MIB, |options| {
            (options.flags, options.initial_region_bytes) = (flags, 256 << 10)
        });
        let shared = Mutex::new(Spans::default());
        let running = AtomicUsize::new(16);
        thread::scope(|scope| {
            for number in 1..=16u8 {
                let (pool, shared, running) = (&pool, &shared, &running);
                scope.spawn(move || {
                    let mut random = Random::new(number.into());
                    let mut mine: Vec<Owned> = Vec::new();
                    for _ in 0..1500 {
                        let take = mine.len() < 40 && !random.one_in(3);
                        if take {
                            let most = 1 << random.between(4, 17);
                            let bytes = random.between(1, most) as usize;
                            mine.extend(Owned::take(pool, shared, bytes, number));
                        } else if !mine.is_empty() {
                            mine.swap_remove(random.index(mine.len())).give_back(pool, shared);
                        }
                    }
                    mine.into_iter().for_each(|owned| owned.give_back(pool, shared));
                    running.fetch_sub(1, SeqCst);
                });
            }
            let (pool, running) = (&pool, &running);
            scope.spawn(move || {
                let mut random = Random::new(99);
                while running.load(SeqCst) != 0 {
                    match random.below(6) {
                        0 => pool.check(),
                        1 => assert_eq!(pool.occupancy().len(), 100),
                        2 => assert!(pool.stats().pool_bytes <= 24 * MIB),
                        3 => drop(pool.trim(random.below(24) * MIB)),
                        // The text may grow between the two calls that `text` makes, so only the length.
                        _ => {
                            let mut length = 0;
                            // SAFETY: no buffer, and a valid out-pointer.
                            let status =
                                unsafe { bfc_report(pool.device(), std::ptr::null_mut(), 0, &mut length) };
                            assert_eq!((status, length > 500), (BFC_OK, true));
                        }
                    }
                    thread::sleep(Duration::from_micros(300));
                }
            });
        });
        pool.check();
        let stats = pool.stats();
        assert_eq!((stats.bytes_in_use, stats.num_allocs), (0, stats.num_frees));
        assert_eq!(stats.num_free_chunks, stats.num_regions, "all merged");
    }
}

/// While 16 threads use a device another creates and destroys its allocator. Every result is
/// success or a documented error, and every region is freed.
#[test]
fn create_and_destroy_while_in_use() {
    let backend = Backend::new(GIB);
    let functions = backend.functions();
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUSTOM, GROWTH | COLLECT, 64 * MIB);
    wanted.suballocator = &functions;
    let device = fresh_device();
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..16 {
            let (stop, served) = (&stop, &served);
            scope.spawn(move || {
                let mut random = Random::new(number);
                let mut mine = Vec::new();
                while !stop.load(Relaxed) {
                    if random.one_in(64) {
                        query(device, random.bits(), std::ptr::from_ref(&random) as u64);
                    }
                    match alloc(device, random.between(1, 100_000) as usize) {
                        Ok(address) => {
                            served.fetch_add(1, Relaxed);
                            mine.push(address);
                        }
                        Err(BFC_ERROR_NO_ALLOCATOR | BFC_ERROR_SHUTTING_DOWN | BFC_ERROR_OUT_OF_MEMORY) => {}
                        Err(status) => panic!("status {status}: {}", last_error()),
                    }
                    if mine.len() > 50 {
                        // Possibly from an earlier allocator of the device, and possibly reused by now.
                        let status = free(device, mine.swap_remove(random.index(mine.len())));
                        let fine = [
                            BFC_OK,
                            BFC_ERROR_NO_ALLOCATOR,
                            BFC_ERROR_SHUTTING_DOWN,
                            BFC_ERROR_INVALID_POINTER,
                            BFC_ERROR_DOUBLE_FREE,
                        ];
                        assert!(fine.contains(&status), "status {status}: {}", last_error());
                    }
                }
            });
        }
        for life in 0..200 {
            // The last lives are on host memory.
            if life == 150 {
                (wanted.backend, wanted.suballocator) = (BFC_BACKEND_HOST, std::ptr::null());
            }
            assert_eq!(create(device, Some(&wanted)), BFC_OK);
            assert_eq!(create(device, Some(&wanted)), BFC_ERROR_ALREADY_EXISTS);
            thread::sleep(Duration::from_micros(life % 7 * 100));
            assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
            assert_eq!(bfc_destroy_forced(device), BFC_OK, "{}", last_error());
        }
        stop.store(true, Relaxed);
    });
    assert!(served.into_inner() > 1000, "the threads had something to do");
    backend.assert_all_returned();
}

/// Queries a device whose allocator comes and goes.
fn query(device: i32, number: u64, own: u64) {
    let there = std::mem::ManuallyDrop::new(Pool::unowned(device));
    let (mut out, mut text, mut length) = (stats(), [0; 4096], 0);
    type Writer = unsafe extern "C" fn(i32, *mut std::ffi::c_char, usize, *mut usize) -> Status;
    let mut write = |writer: Writer| {
        // SAFETY: the buffer has that many bytes, and the length is writable.
        unsafe { writer(device, text.as_mut_ptr(), text.len(), &mut length) }
    };
    let status = match number % 7 {
        // SAFETY: a whole struct.
        0 => unsafe { bfc_stats(device, &mut out) },
        1 => write(bfc_report),
        2 => write(bfc_memory_map),
        3 => write(bfc_occupancy),
        4 => bfc_check(device),
        5 => there.try_trim(MIB).err().unwrap_or(BFC_OK),
        _ => there.range(own).err().unwrap_or(BFC_OK),
    };
    let gone = [BFC_OK, BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_SHUTTING_DOWN];
    let unknown = number % 7 == 6 && status == BFC_ERROR_INVALID_POINTER;
    assert!(unknown || gone.contains(&status), "query {number}: status {status}: {}", last_error());
}

/// A live allocation keeps its allocator: every free succeeds, and contents stay, while another thread destroys the
/// allocator whenever nothing lives, and creates it again.
#[test]
fn a_live_allocation_keeps_its_allocator() {
    let device = fresh_device();
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_HOST, GROWTH | COLLECT, 8 * MIB);
    wanted.initial_region_bytes = 64 << 10;
    let (stop, rest, served) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 1..=8u8 {
            let (stop, rest, served) = (&stop, &rest, &served);
            scope.spawn(move || {
                let mut random = Random::new(number.into());
                let mut mine: Vec<Owned> = Vec::new();
                while !stop.load(Relaxed) {
                    while mine.len() > if rest.load(Relaxed) { 0 } else { 7 } {
                        let owned = mine.swap_remove(random.index(mine.len()));
                        assert!(owned.is_intact(), "something wrote into {:#x}", owned.address);
                        assert_eq!(free(device, owned.address), BFC_OK, "{}", last_error());
                    }
                    if rest.load(Relaxed) {
                        thread::yield_now();
                        continue;
                    }
                    let bytes = random.between(1, 90_000) as usize;
                    match alloc(device, bytes) {
                        Ok(address) => {
                            mine.push(Owned { address, bytes, pattern: number });
                            mine.last().expect("it was pushed").write();
                            served.fetch_add(1, Relaxed);
                        }
                        Err(BFC_ERROR_NO_ALLOCATOR | BFC_ERROR_SHUTTING_DOWN | BFC_ERROR_OUT_OF_MEMORY) => {}
                        Err(status) => panic!("status {status}: {}", last_error()),
                    }
                    if random.one_in(16) {
                        query(device, random.bits(), std::ptr::from_ref(&random) as u64);
                    }
                }
                for owned in mine {
                    assert!(owned.is_intact(), "something wrote into {:#x}", owned.address);
                    assert_eq!(free(device, owned.address), BFC_OK, "{}", last_error());
                }
            });
        }
        for _ in 0..60 {
            assert_eq!(create(device, Some(&wanted)), BFC_OK);
            thread::sleep(Duration::from_micros(500));
            rest.store(true, Relaxed);
            loop {
                match bfc_destroy(device) {
                    BFC_OK => break,
                    status => assert_eq!(status, BFC_ERROR_BUSY, "{}", last_error()),
                }
                thread::sleep(Duration::from_micros(100));
            }
            rest.store(false, Relaxed);
        }
        stop.store(true, Relaxed);
    });
    assert!(served.into_inner() > 100, "the threads had something to do");
}

/// Neither is the scope that a thread left open another thread's.
#[test]
fn memory_outlives_its_thread() {
    let pool = Pool::host(MIB, |_| {});
    let shared = Mutex::new(Spans::default());
    for pattern in 1..=100 {
        let owned = thread::scope(|scope| {
            let ended = scope.spawn(|| {
                assert_eq!(scope_begin("left open", 1), BFC_OK);
                Owned::take(&pool, &shared, 1000, pattern).expect("there is room")
            });
            ended.join().expect("no panic")
        });
        if pattern % 2 == 0 {
            owned.give_back(&pool, &shared);
        } else {
            assert!(owned.is_intact());
        }
    }
    assert_eq!(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT);
    pool.check();
}

/// Several threads create and destroy the same device: one wins each time.
#[test]
fn many_creators_and_destroyers() {
    let device = fresh_device();
    let (created, destroyed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut wanted = options();
                (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
                for _ in 0..500 {
                    match create(device, Some(&wanted)) {
                        BFC_OK => drop(created.fetch_add(1, Relaxed)),
                        status => {
                            assert!([BFC_ERROR_ALREADY_EXISTS, BFC_ERROR_SHUTTING_DOWN].contains(&status))
                        }
                    }
                    match bfc_destroy(device) {
                        BFC_OK => drop(destroyed.fetch_add(1, Relaxed)),
                        status => {
                            assert!([BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_SHUTTING_DOWN].contains(&status))
                        }
                    }
                }
            });
        }
    });
    assert_eq!(created.into_inner(), destroyed.into_inner());
    assert_eq!(bfc_check(device), BFC_ERROR_NO_ALLOCATOR);
}

#[test]
fn destroy_wakes_those_who_wait() {
    let pool = Pool::custom(Backend::new(256), 256, |options| options.retry_timeout_ms = 120_000);
    let only = pool.get(1);
    let begun = Instant::now();
    let ready = Barrier::new(9);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                ready.wait();
                assert_eq!(pool.alloc(1), Err(BFC_ERROR_SHUTTING_DOWN));
            });
        }
        ready.wait();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(pool.destroy(), BFC_ERROR_BUSY, "waiting is no allocation, but there is one");
        assert_eq!(pool.allocated_size(only), Ok(256));
        assert_eq!(pool.destroy_forced(), BFC_OK);
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_NO_ALLOCATOR));
}

/// Destruction waits until the sub-allocator has returned, and releases that region too.
#[test]
fn destroy_waits_for_calls_in_flight() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let gate = &pool.backend().gate;
    gate.close();
    thread::scope(|scope| {
        let slow = scope.spawn(|| pool.alloc(1));
        gate.wait_for_somebody();
        let destroyer = scope.spawn(|| {
            assert_eq!(pool.destroy(), BFC_OK, "no allocation lives yet: {}", last_error());
        });
        while pool.alloc(1) != Err(BFC_ERROR_SHUTTING_DOWN) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        assert!(!destroyer.is_finished(), "a thread is inside of the sub-allocator");
        assert_eq!(pool.destroy(), BFC_ERROR_SHUTTING_DOWN, "another is at it");
        gate.open();
        assert_eq!(slow.join().expect("no panic"), Err(BFC_ERROR_SHUTTING_DOWN));
        destroyer.join().expect("no panic");
        assert_eq!((pool.backend().requests(), pool.backend().held()), (1, 0));
    });
}

/// Held memory is served while another thread waits for the sub-allocator, because no lock is held meanwhile.
#[test]
fn a_slow_region_delays_only_who_needs_it() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let gate = &pool.backend().gate;
    let first = pool.get(256);
    gate.close();
    thread::scope(|scope| {
        let slow = scope.spawn(|| pool.get(100 * MIB));
        gate.wait_for_somebody();
        (0..1000).for_each(|_| pool.put(pool.get(1000)));
        pool.check();
        assert_eq!(pool.stats().pool_bytes, 2 * MIB);
        assert_eq!(pool.allocated_size(first), Ok(256));
        assert_eq!(owner(first), Ok(pool.device()));
        assert_eq!(pool.trim(0), 0);
        assert!(!slow.is_finished());
        gate.open();
        slow.join().expect("no panic");
    });
    pool.check();
    assert_eq!(pool.stats().pool_bytes, 130 * MIB);
}

/// A request that needs a region while another thread obtains one waits for that one instead of obtaining a second.
#[test]
fn one_region_serves_all_who_wait_for_it() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let gate = &pool.backend().gate;
    gate.close();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| pool.get(1000))).collect();
        gate.wait_for_somebody();
        thread::sleep(Duration::from_millis(50));
        gate.open();
        threads.into_iter().for_each(|thread| assert_ne!(thread.join().expect("no panic"), 0));
    });
    assert_eq!((pool.backend().requests(), pool.stats().pool_bytes), (1, 2 * MIB));
    pool.check();
}

/// Calls on one device do not wait for another's.
#[test]
fn two_devices_are_independent() {
    let slow = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let fast = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let gate = &slow.backend().gate;
    gate.close();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| slow.get(1));
        gate.wait_for_somebody();
        let chunks: Vec<u64> = (0..500).map(|_| fast.get(5000)).collect();
        assert!(chunks.iter().all(|&address| owner(address) == Ok(fast.device())));
        chunks.into_iter().for_each(|address| fast.put(address));
        assert!(!waiting.is_finished());
        gate.open();
        let address = waiting.join().expect("no panic");
        assert_eq!((fast.free(address), slow.free(address)), (BFC_ERROR_INVALID_POINTER, BFC_OK));
    });
    // And each counts separately.
    assert_eq!((slow.stats().num_allocs, fast.stats().num_allocs), (1, 500));
}

/// Extensions from many threads at once never take more from the sub-allocator than the limit.
#[test]
fn extensions_never_overrun_the_limit() {
    const LIMIT: u64 = 20 * MIB + 4096;
    for (flags, delay) in [(GROWTH, 2), (GROWTH | COLLECT, 2), (GROWTH | COLLECT, 0)] {
        let mut backend = Backend::new(u64::MAX);
        backend.delay = Duration::from_millis(delay);
        let pool = Pool::custom(backend, LIMIT, |options| {
            (options.flags, options.initial_region_bytes) = (flags, 64 << 10);
        });
        let start = Barrier::new(17);
        thread::scope(|scope| {
            for number in 0..16 {
                let (pool, start) = (&pool, &start);
                scope.spawn(move || {
                    let mut random = Random::new(number);
                    let mut mine = Vec::new();
                    start.wait();
                    for _ in 0..40 {
                        match pool.alloc(random.between(1, 3 * MIB)) {
                            Ok(address) => mine.push(address),
                            Err(status) => assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error()),
                        }
                        if mine.len() > 2 {
                            mine.drain(..).for_each(|address| pool.put(address));
                        }
                    }
                    mine.into_iter().for_each(|address| pool.put(address));
                });
            }
            start.wait();
            for _ in 0..20 {
                pool.trim(0);
                thread::sleep(Duration::from_millis(1));
            }
        });
        pool.check();
        let peak = pool.backend().books(|books| books.peak);
        assert!(peak <= LIMIT, "{peak} bytes were out");
        let stats = pool.stats();
        assert_eq!((stats.pool_bytes, stats.bytes_in_use), (pool.backend().held(), 0));
        assert!(stats.peak_pool_bytes <= LIMIT);
    }
}

/// Twelve threads share room for a few. Waiting threads get memory that others free, and none fails.
#[test]
fn those_who_wait_get_what_others_free() {
    const LIMIT: u64 = MIB;
    let pool = Pool::host(LIMIT, |options| options.retry_timeout_ms = 100_000);
    let shared = Mutex::new(Spans::default());
    thread::scope(|scope| {
        for number in 1..=12u8 {
            let (pool, shared) = (&pool, &shared);
            scope.spawn(move || {
                let mut random = Random::new(number.into());
                for _ in 0..150 {
                    // At most a quarter each, so that three always fit with any fragmentation.
                    let bytes = random.between(1, LIMIT / 4) as usize;
                    let owned = Owned::take(pool, shared, bytes, number).expect("sooner or later");
                    if random.one_in(4) {
                        thread::sleep(Duration::from_micros(200));
                    }
                    owned.give_back(pool, shared);
                }
            });
        }
    });
    pool.check();
    assert_eq!((pool.stats().num_failures, pool.stats().num_allocs), (0, 12 * 150));
}

/// Stamps and the frontier move while threads allocate: requests that wait for the frontier are woken by it.
#[test]
fn the_frontier_wakes_those_who_wait_for_it() {
    let flags = BFC_TIMESTAMPS | BFC_QUARANTINE;
    let pool = Pool::custom(Backend::new(4096), 4096, |options| {
        (options.flags, options.retry_timeout_ms) = (flags, 100_000);
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..500 {
                        pool.put(pool.get(2048));
                    }
                })
            })
            .collect();
        let frontier = scope.spawn(|| {
            while !stop.load(Relaxed) {
                pool.synchronize();
                thread::yield_now();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        stop.store(true, Relaxed);
        frontier.join().expect("no panic");
    });
    pool.check();
    assert_eq!((pool.timestamp(), pool.stats().num_failures), (Ok(2000), 0));
}

/// Each thread has its own last error, and a success does not change it.
#[test]
fn errors_are_each_threads_own() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |_| {});
    assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    let mine = last_error();
    assert!(mine.contains("2097152"), "{mine}");
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(last_error(), "");
            assert_eq!(pool.free(77), BFC_ERROR_INVALID_POINTER);
            assert!(last_error().contains("0x4d"), "{}", last_error());
        });
    });
    pool.put(pool.get(1));
    assert_eq!(last_error(), mine);
}

/// A Rust program frees in destructors while it unwinds from a panic of its own: this is not a panic of the
/// library, and the allocator continues to work.
#[test]
fn a_free_during_a_panic_is_a_free() {
    struct Freed<'a>(&'a Pool, u64, &'a Mutex<Vec<Status>>);
    impl Drop for Freed<'_> {
        fn drop(&mut self) {
            let &mut Freed(pool, address, statuses) = self;
            let calls = [
                pool.free(address),
                pool.free(address),
                pool.alloc(2 * MIB).err().unwrap_or(BFC_OK),
                pool.allocated_size(address).err().unwrap_or(BFC_OK),
                bfc_check(pool.device()),
            ];
            statuses.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(calls);
        }
    }
    let pool = Pool::custom(Backend::new(MIB), MIB, |_| {});
    let statuses = Mutex::new(Vec::new());
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _freed = Freed(&pool, pool.get(1000), &statuses);
        std::panic::resume_unwind(Box::new("the caller's own"));
    }));
    assert!(result.is_err());
    let expected =
        [BFC_OK, BFC_ERROR_DOUBLE_FREE, BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_INVALID_POINTER, BFC_OK];
    assert_eq!(statuses.into_inner().unwrap_or_default(), expected);
    pool.check();
    assert_eq!((pool.stats().num_frees, pool.stats().bytes_in_use), (1, 0));
}
