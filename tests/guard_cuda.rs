//! `BFC_DEBUG=guard` on the simulated driver: a simulation, which shows what is asked of the driver and in which
//! order, and not how a device behaves.

mod common;

use common::simcuda::{Simulation, simulated_with};
use common::*;
use cuda_sys::*;
use std::ffi::c_void;
use std::ptr;

const FRESH: u64 = u64::MAX;
const POISON: u64 = 0xDBDB_DBDB_DBDB_DBDB;

#[track_caller]
fn guarded(test: &str, body: impl FnOnce(Simulation, &log::Collected)) {
    simulated_with(test, &[("BFC_DEBUG", "guard"), ("BFC_LOG", "debug")], |sim| {
        body(sim, &log::Collected::start());
    });
}

fn pool() -> Pool {
    let mut wanted = options();
    wanted.backend = BFC_BACKEND_CUDA;
    (wanted.flags, wanted.memory_limit) = (BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION, 64 * MIB);
    Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

/// A call of the driver as a program makes it.
macro_rules! cu {
    ($driver:expr, $function:ident($($argument:expr),*)) => {{
        let call = $driver.$function().unwrap();
        // SAFETY: the arguments are what the driver's manual asks for.
        unsafe { call($($argument),*) }
    }};
}

/// A stream of the primary context, which is current from now on, as the CUDA runtime makes it.
fn stream(driver: Driver, flags: CUstream_flags) -> *mut c_void {
    let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(cu!(driver, cuInit(0)), CUDA_SUCCESS);
    assert_eq!(cu!(driver, cuDevicePrimaryCtxRetain(&mut context, 0)), CUDA_SUCCESS);
    assert_eq!(cu!(driver, cuCtxSetCurrent(context)), CUDA_SUCCESS);
    assert_eq!(cu!(driver, cuStreamCreate(&mut stream, flags)), CUDA_SUCCESS);
    stream.cast()
}

/// The end of the program's part, after that of its pools.
fn leave(sim: Simulation, streams: &[*mut c_void]) {
    let driver = sim.driver();
    for &stream in streams {
        assert_eq!(cu!(driver, cuStreamDestroy_v2(stream.cast())), CUDA_SUCCESS);
        assert_eq!(cu!(driver, cuDevicePrimaryCtxRelease_v2(0)), CUDA_SUCCESS);
    }
    assert_eq!(sim.mismatches(), 0);
    sim.assert_clean();
}

fn alloc_on(pool: &Pool, size: u64, stream: *mut c_void) -> Result<u64, Status> {
    let mut out = ptr::null_mut();
    // SAFETY: a valid out-pointer.
    match unsafe { bfc_alloc_async(pool.device(), size as usize, stream, &mut out) } {
        BFC_OK => Ok(out as u64),
        status => Err(status),
    }
}

#[track_caller]
fn put_on(pool: &Pool, address: u64, stream: *mut c_void) {
    assert_eq!(bfc_free_async(pool.device(), pointer(address), stream), BFC_OK, "{}", last_error());
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    map["counters"][name].as_u64().expect("in the map")
}

fn errors(log: &log::Collected) -> Vec<String> {
    let errors = log.messages().into_iter().filter(|&(level, _)| level <= BFC_LOG_WARN);
    errors.map(|(_, words)| words).collect()
}

/// The work is queued and held; the free waits for it, and finds what it did.
#[test]
fn a_kernel_that_overruns_is_found_at_the_free() {
    guarded("a_kernel_that_overruns_is_found_at_the_free", |sim, log| {
        let pool = pool();
        let stream = stream(sim.driver(), CU_STREAM_NON_BLOCKING);
        scope_begin("softmax", 42);
        let address = alloc_on(&pool, 1024, stream).unwrap();
        bfc_scope_end();
        sim.hold(stream);
        sim.fill(stream, address, 1024 + 16, 7);
        assert_eq!((sim.pending(stream), errors(log)), (1, vec![]));
        put_on(&pool, address, stream);
        assert_eq!(sim.pending(stream), 0, "the device was synchronised");
        let words = errors(log).pop().expect("found");
        let who = format!(
            "{address:#x} (allocation 1, 1024 bytes in a chunk of 1280, operation \"softmax\", step 42)"
        );
        for part in [&*who, "behind the end of", "16 of 256 guard bytes", "07 00 00 00 00 00 00 00 07 00"] {
            // Patterns are of 8 bytes, little-endian; zeros are damage too.
            assert!(words.contains(part), "{part:?} in {words:?}");
        }
        assert_eq!((counter(&pool, "guard_violations"), counter(&pool, "guards_unchecked")), (1, 0));
        sim.expect(stream, address, 1280, POISON);
        sim.release(stream);
        assert_eq!((sim.mismatches(), pool.stats().bytes_in_use), (0, 0));

        // In front, into what was freed there; and by the plain calls.
        let (first, second) = (pool.get(100), pool.get(1000));
        pool.put(first);
        sim.fill(stream, second - 8, 16, 9);
        pool.put(second);
        let words = errors(log).pop().unwrap();
        assert!(words.contains(&format!("in front of {second:#x}")), "{words}");
        assert_eq!(counter(&pool, "guard_violations"), 2);
        let last = pool.get(512);
        sim.fill(stream, last, 512 + 8, 9);
        assert_eq!(bfc_check(0), BFC_OK);
        assert_eq!(counter(&pool, "guard_violations"), 3);
        pool.put(last);
        assert_eq!(errors(log).len(), 3);
        drop(pool);
        leave(sim, &[stream]);
    });
}

#[test]
fn new_memory_is_nan_and_freed_memory_is_poison() {
    guarded("new_memory_is_nan_and_freed_memory_is_poison", |sim, log| {
        let pool = pool();
        let stream = stream(sim.driver(), CU_STREAM_NON_BLOCKING);
        let (address, next) = (pool.get(1000), pool.get(8));
        sim.expect(stream, address, 1000, FRESH);
        sim.fill(stream, address, 1000, 5);
        pool.put(address);
        // But for what is the next one's guard.
        sim.expect(stream, address, 1280 - 64, POISON);
        let again = pool.get(1000);
        assert_eq!(again, address);
        sim.expect(stream, again, 1000, FRESH);
        [again, next].into_iter().for_each(|address| pool.put(address));
        sim.expect(stream, address, 1280 + 256, POISON);
        assert_eq!((sim.mismatches(), errors(log)), (0, vec![]));
        drop(pool);
        leave(sim, &[stream]);
    });
}

/// Nothing but the order of the calls: before anything is read or written, and before it counts as written.
#[test]
fn the_device_is_idle_before_it_is_looked_at() {
    guarded("the_device_is_idle_before_it_is_looked_at", |sim, _| {
        let pool = pool();
        let held = stream(sim.driver(), CU_STREAM_NON_BLOCKING);
        pool.put(pool.get(1000));
        let of = |work: &dyn Fn()| {
            sim.clear_log();
            work();
            let names = ["cuCtxSynchronize", "cuMemsetD8_v2", "cuMemcpyDtoH_v2", "cuStreamSynchronize"];
            let log = sim.log_text();
            let found = log.lines().filter_map(|line| names.into_iter().find(|name| line.contains(name)));
            found.collect::<Vec<_>>()
        };
        let address = std::cell::Cell::new(0);
        let allocation = of(&|| address.set(pool.get(1000)));
        let (sync, set, done, read) =
            ("cuCtxSynchronize", "cuMemsetD8_v2", "cuStreamSynchronize", "cuMemcpyDtoH_v2");
        assert_eq!(allocation, [sync, set, done, set, done]);
        let free = of(&|| pool.put(address.get()));
        assert_eq!(free, [sync, read, set, done]);
        drop(pool);
        leave(sim, &[held]);
    });
}

/// Begins a capture, does some work, and ends it; the capture must be whole.
fn captured(sim: Simulation, stream: *mut c_void, work: impl FnOnce()) {
    let driver = sim.driver();
    let begun = cu!(driver, cuStreamBeginCapture_v2(stream.cast(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_eq!(begun, CUDA_SUCCESS);
    work();
    let mut graph = ptr::null_mut();
    assert_eq!(
        cu!(driver, cuStreamEndCapture(stream.cast(), &mut graph)),
        CUDA_SUCCESS,
        "the capture is whole"
    );
    assert_eq!(cu!(driver, cuGraphDestroy(graph)), CUDA_SUCCESS);
}

#[test]
fn a_capture_is_left_alone() {
    guarded("a_capture_is_left_alone", |sim, log| {
        let pool = pool();
        for flags in [CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT] {
            let stream = stream(sim.driver(), flags);
            let known = alloc_on(&pool, 1000, stream).unwrap();
            let neighbour = pool.get(1000);
            let unchecked = counter(&pool, "guards_unchecked");
            let mut inside = 0;
            captured(sim, stream, || {
                let calls = ["cuCtxSynchronize", "cuMemsetD8", "cuMemcpyDtoH"].map(|name| sim.calls(name));
                inside = alloc_on(&pool, 1000, stream).unwrap();
                put_on(&pool, known, stream);
                assert_eq!(bfc_check(0), BFC_OK);
                assert_eq!(
                    ["cuCtxSynchronize", "cuMemsetD8", "cuMemcpyDtoH"].map(|name| sim.calls(name)),
                    calls
                );
            });
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 1);
            let said = log.with("guards were not checked: a stream is captured").len();
            assert!(said >= 2, "{:#?}", log.messages());
            // What has no guards is accused of nothing, nor are its neighbours.
            sim.fill(stream, inside, 1032, 3);
            pool.put(neighbour);
            put_on(&pool, inside, stream);
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 2);
            // And everything is guarded again.
            let address = alloc_on(&pool, 1000, stream).unwrap();
            sim.expect(stream, address, 1000, FRESH);
            put_on(&pool, address, stream);
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 2);
            assert_eq!(bfc_forget_stream(0, stream), BFC_OK);
            assert_eq!(cu!(sim.driver(), cuStreamDestroy_v2(stream.cast())), CUDA_SUCCESS);
            assert_eq!(cu!(sim.driver(), cuDevicePrimaryCtxRelease_v2(0)), CUDA_SUCCESS);
        }
        assert_eq!((counter(&pool, "guard_violations"), errors(log)), (0, vec![]));
        drop(pool);
        leave(sim, &[]);
    });
}

/// A graph uses the memory of its private pool whenever it is launched: nothing is written there.
#[test]
fn private_pools_are_left_alone() {
    guarded("private_pools_are_left_alone", |sim, log| {
        let pool = pool();
        let stream = stream(sim.driver(), CU_STREAM_NON_BLOCKING);
        let common = pool.get(1000);
        assert_eq!(bfc_pool_begin(0, 1, stream), BFC_OK, "{}", last_error());
        let [one, two, three] = [0; 3].map(|_| alloc_on(&pool, 1024, stream).unwrap());
        assert_eq!(bfc_pool_end(0, 1, stream), BFC_OK);
        for address in [one, two, three] {
            sim.fill(stream, address, 1280, 7);
        }
        put_on(&pool, one, stream);
        put_on(&pool, two, stream);
        let after = pool.get(1000);
        pool.put(common);
        for address in [one, two, three] {
            sim.expect(stream, address, 1280, 7);
        }
        pool.put(after);
        assert_eq!(bfc_check(0), BFC_OK);
        assert_eq!((sim.mismatches(), errors(log)), (0, vec![]));
        assert_eq!(bfc_pool_release(0, 1), BFC_OK);
        put_on(&pool, three, stream);
        assert_eq!(counter(&pool, "guards_unchecked"), 3);
        let address = pool.get(1000);
        sim.expect(stream, address, 1000, FRESH);
        pool.put(address);
        assert_eq!((counter(&pool, "guard_violations"), errors(log)), (0, vec![]));
        drop(pool);
        leave(sim, &[stream]);
    });
}

/// Programs on streams whose work is held: what is live is never written to, and nobody is accused.
#[test]
fn no_false_alarm_in_random_programs_of_streams() {
    guarded("no_false_alarm_in_random_programs_of_streams", |sim, log| {
        // Some that do not block, and one that does: for it the default stream waits, on which the library fills.
        let flags = [CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT];
        let streams = flags.map(|flags| stream(sim.driver(), flags));
        for seed in 0..12 {
            let pool = pool();
            streams.iter().for_each(|&stream| assert_eq!(sim.hold(stream), 0));
            let mut random = Random::new(seed);
            let mut live: Vec<(u64, u64, usize)> = Vec::new();
            for round in 0..400 {
                let which = random.index(3);
                match random.below(16) {
                    0 => drop(sim.step(streams[which], random.below(4))),
                    1 => assert_eq!(bfc_check(0), BFC_OK),
                    2 => drop(pool.trim(0)),
                    3..=8 if live.len() < 30 => {
                        let size = 8 * random.between(1, 8_000);
                        let Ok(address) = alloc_on(&pool, size, streams[which]) else { continue };
                        sim.expect(streams[which], address, size, FRESH);
                        sim.fill(streams[which], address, size, address ^ size);
                        live.push((address, size, which));
                    }
                    _ if !live.is_empty() => {
                        let (address, size, which) = live.swap_remove(random.index(live.len()));
                        sim.expect(streams[which], address, size, address ^ size);
                        match round % 3 {
                            0 => pool.put(address),
                            _ => put_on(&pool, address, streams[which]),
                        }
                    }
                    _ => {}
                }
            }
            streams.iter().for_each(|&stream| assert_eq!(sim.release(stream), 0));
            assert_eq!(
                (sim.mismatches(), counter(&pool, "guard_violations")),
                (0, 0),
                "{seed}: {:?}",
                errors(log)
            );
            assert_eq!((counter(&pool, "guards_unchecked"), errors(log)), (0, vec![]));
        }
        leave(sim, &streams);
    });
}

/// Any call of the driver may fail: every call of the library's answers as it does without the debug mode, and the
/// memory is back.
#[test]
fn a_failing_driver_loses_nothing() {
    guarded("a_failing_driver_loses_nothing", |sim, log| {
        let pool = pool();
        let wall = pool.get(100);
        let program = || {
            let before = pool.stats();
            let addresses = [1000, 5000, 300].map(|size| pool.get(size));
            pool.put(addresses[1]);
            assert_eq!(bfc_check(0), BFC_OK);
            pool.put(addresses[0]);
            pool.put(addresses[2]);
            let after = pool.stats();
            assert_eq!((after.bytes_in_use, after.num_failures), (before.bytes_in_use, 0));
            assert_eq!(after.num_allocs - before.num_allocs, 3);
        };
        program();
        for code in [CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE] {
            for nth in 1.. {
                let struck = sim.struck();
                sim.fail(None, nth, code);
                program();
                if sim.struck() == struck {
                    assert!(nth > 60, "only {nth} calls were made to fail");
                    break;
                }
                let unchecked = counter(&pool, "guards_unchecked");
                program();
                assert_eq!(
                    counter(&pool, "guards_unchecked"),
                    unchecked,
                    "all is as before after call {nth}"
                );
            }
            sim.clear_faults();
        }
        assert_eq!(counter(&pool, "guard_violations"), 0, "{:#?}", errors(log));
        let said = errors(log);
        assert_eq!(said.len(), 1, "said aloud once: {said:#?}");
        assert!(said[0].contains("guards were not") && said[0].contains("(999)"), "{said:?}");
        assert!(counter(&pool, "guards_unchecked") > 10);
        // A success leaves the words of the last failure alone.
        assert_eq!(pool.free(1), BFC_ERROR_INVALID_POINTER);
        let words = last_error();
        sim.fail(Some("cuCtxSynchronize"), 1, CUDA_ERROR_UNKNOWN);
        pool.put(pool.get(10));
        assert_eq!(last_error(), words);
        pool.put(wall);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_driver_past_its_end_is_no_error() {
    guarded("a_driver_past_its_end_is_no_error", |sim, log| {
        let pool = pool();
        let address = pool.get(1000);
        sim.shutdown();
        pool.put(address);
        assert_eq!((errors(log), pool.stats().bytes_in_use), (vec![], 0));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}
