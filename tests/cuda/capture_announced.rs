//! Captures that are announced for the whole process by `bfc_capture_begin`, on the simulated driver (a simulation, and no
//! device). No allocator knows the stream: it does not block, and with timestamps there are no streams.

use crate::common::gpu::{Gpu, LEGACY};
use crate::common::simcuda::{simulated, simulated_with};
use crate::common::*;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const KINDS: [(u32, u32); 4] = [
    (BFC_BACKEND_CUDA, GROWING),
    (BFC_BACKEND_CUDA, GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE),
    (BFC_BACKEND_CUDA_VMM, GROWING),
    (BFC_BACKEND_CUDA_VMM, GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE),
];

/// A request that only releasing or moving memory would serve, a trim, and the destruction of the allocator.
#[test]
fn nothing_is_synchronized_or_given_back() {
    simulated("nothing_is_synchronized_or_given_back", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, flags) in KINDS {
            let stream = gpu.stream(false);
            let pool = Pool::in_small_regions(backend, 0, 20 * MIB, flags);
            // Free memory on both sides of a live chunk.
            let chunks = [6, 2, 6].map(|size| pool.get(size * MIB));
            [chunks[0], chunks[2]].into_iter().for_each(|chunk| pool.put(chunk));
            if flags & BFC_TIMESTAMPS != 0 {
                // SAFETY: the pointer is valid for writing.
                let safe = |count: &mut u64| unsafe { bfc_timestamp(0, count) };
                let mut count = 0;
                assert_eq!(safe(&mut count), BFC_OK);
                assert_eq!(bfc_set_safe_frontier(0, count + 1), BFC_OK);
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(stream);
            let before = ["cuCtxSynchronize", "cuMemFree", "cuMemUnmap"].map(|name| sim.calls(name));
            assert_eq!(pool.alloc(13 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            assert!(last_error().contains("bfc_capture_begin"), "{}", last_error());
            assert_eq!(pool.destroy_forced(), BFC_ERROR_BACKEND_FAILED);
            // Growth and free memory are available.
            let more = [6, 4].map(|size| pool.get(size * MIB));
            assert_eq!(["cuCtxSynchronize", "cuMemFree", "cuMemUnmap"].map(|name| sim.calls(name)), before);
            gpu.destroy_graph(gpu.end_capture(stream));
            assert_eq!(bfc_capture_end(), BFC_OK);
            more.into_iter().for_each(|chunk| pool.put(chunk));
            pool.put(chunks[1]);
            pool.check();
            assert!(pool.try_trim(0).is_ok(), "{}", last_error());
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// An announcement waits a second for a request that is about to wait for the device. One that maps memory for longer
/// checks again before it waits.
#[test]
fn a_request_that_maps_for_long_breaks_no_capture() {
    simulated("a_request_that_maps_for_long_breaks_no_capture", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let stream = gpu.stream(false);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA_VMM, 0, 20 * MIB, GROWING);
        let chunks = [6, 2, 6].map(|size| pool.get(size * MIB));
        [chunks[0], chunks[2]].into_iter().for_each(|chunk| pool.put(chunk));
        sim.delay(c"cuMemCreate".as_ptr(), 1_500_000_000);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                gpu.set_current(context);
                pool.alloc(13 * MIB)
            });
            let calls = sim.calls("cuMemCreate");
            while sim.calls("cuMemCreate") == calls {
                std::thread::yield_now();
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(stream);
            let refused = served.join().expect("no panic");
            assert!(refused.is_err(), "it had to move memory");
        });
        gpu.destroy_graph(gpu.end_capture(stream));
        assert_eq!(bfc_capture_end(), BFC_OK);
        pool.check();
        pool.put(chunks[1]);
        let whole = pool.get(20 * MIB);
        pool.put(whole);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        gpu.destroy_stream(stream);
        gpu.leave(0);
        sim.assert_clean();
    });
}

static RETURNING: AtomicBool = AtomicBool::new(false);
static ANNOUNCED: AtomicBool = AtomicBool::new(false);

/// When the first memory is released, another thread announces a capture. With `user_data` this takes longer than an
/// announcement waits.
extern "C" fn announced_meanwhile(user_data: *mut c_void, _: i32, _: *mut c_void, _: usize, event: i32) {
    if event != BFC_REGION_RETURNING || RETURNING.swap(true, SeqCst) {
        return;
    }
    if !user_data.is_null() {
        return std::thread::sleep(LONG);
    }
    while !ANNOUNCED.load(SeqCst) {
        std::thread::yield_now();
    }
}

/// Longer than an announcement waits.
const LONG: Duration = Duration::from_millis(1200);

/// Announces a capture of a stream, for its pool or for the process, and begins it.
fn begin(gpu: Gpu, pool: &Pool, stream: u64, by_pool: bool) {
    let begun = if by_pool { pool.begin_private(1, stream) } else { bfc_capture_begin() };
    assert_eq!(begun, BFC_OK, "{}", last_error());
    gpu.begin_capture(stream);
    ANNOUNCED.store(true, SeqCst);
}

/// Ends it. Nothing has broken it.
#[track_caller]
fn end(gpu: Gpu, pool: &Pool, stream: u64, by_pool: bool) {
    gpu.destroy_graph(gpu.end_capture(stream));
    assert_eq!(if by_pool { pool.end_private(1, stream) } else { bfc_capture_end() }, BFC_OK);
}

/// A capture is announced while the callback is called for a release. The memory stays.
fn announced_in_a_callback(
    test: &str,
    (backend, unit): (u32, u64),
    (by_pool, is_long): (bool, bool),
    gives_back: impl Fn(&Pool) -> Status + Sync,
) {
    simulated(test, |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, other) = (gpu.stream(false), gpu.stream(false));
        let pool = Pool::in_small_regions(backend, 0, 1024 * unit, GROWING);
        let user_data = if is_long { pointer(1) } else { std::ptr::null_mut() };
        // SAFETY: the function accepts any value.
        assert_eq!(unsafe { bfc_set_region_callback(0, Some(announced_meanwhile), user_data) }, BFC_OK);
        let chunks = [60, 120, 250].map(|size| pool.get_on(size * unit, other));
        chunks.into_iter().for_each(|chunk| pool.put_on(chunk, other));
        let held = pool.stats().pool_bytes;
        std::thread::scope(|scope| {
            let returning = scope.spawn(|| {
                gpu.set_current(context);
                (gives_back(&pool), last_error())
            });
            while !RETURNING.load(SeqCst) {
                std::thread::yield_now();
            }
            begin(gpu, &pool, captured, by_pool);
            let (status, text) = returning.join().expect("no panic");
            assert_eq!(status, BFC_ERROR_BACKEND_FAILED);
            assert!(text.contains("bfc_capture_begin"), "{text}");
            end(gpu, &pool, captured, by_pool);
        });
        assert_eq!(pool.stats().pool_bytes, held);
        pool.check();
        pool.put_on(pool.get_on(200 * unit, other), other);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

const REGIONS: (u32, u64) = (BFC_BACKEND_CUDA, KIB);
const GRANULES: (u32, u64) = (BFC_BACKEND_CUDA_VMM, 64 * KIB);

fn trim(pool: &Pool) -> Status {
    pool.try_trim(0).err().unwrap_or(BFC_OK)
}

#[test]
fn nothing_goes_back_after_a_long_callback() {
    announced_in_a_callback("nothing_goes_back_after_a_long_callback", REGIONS, (false, true), trim);
}

#[test]
fn nothing_goes_back_after_a_long_callback_for_a_pool() {
    announced_in_a_callback(
        "nothing_goes_back_after_a_long_callback_for_a_pool",
        REGIONS,
        (true, true),
        trim,
    );
}

#[test]
fn no_granules_go_back_after_a_long_callback_for_a_pool() {
    let test = "no_granules_go_back_after_a_long_callback_for_a_pool";
    announced_in_a_callback(test, GRANULES, (true, true), trim);
}

#[test]
fn an_allocator_that_is_destroyed_meanwhile_stays() {
    let test = "an_allocator_that_is_destroyed_meanwhile_stays";
    announced_in_a_callback(test, REGIONS, (false, false), Pool::destroy);
}

#[test]
fn an_allocator_of_granules_that_is_destroyed_meanwhile_stays() {
    let test = "an_allocator_of_granules_that_is_destroyed_meanwhile_stays";
    announced_in_a_callback(test, GRANULES, (false, false), Pool::destroy);
}

/// A trim waits for the device for longer than an announcement waits for it.
fn announced_in_a_wait(test: &str, (backend, unit): (u32, u64), by_pool: bool) {
    simulated_with(test, &[("SIMCUDA_SYNCHRONIZE_WAITS", "1")], |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, other) = (gpu.stream(false), gpu.stream(false));
        let pool = Pool::in_small_regions(backend, 0, 1024 * unit, GROWING);
        let kept = pool.get_on(unit, other);
        pool.put_on(pool.get_on(200 * unit, other), other);
        gpu.hold(other);
        gpu.fill(other, kept, unit, 1);
        let returns = || ["cuMemFree_v2", "cuMemUnmap"].map(|name| sim.calls(name));
        std::thread::scope(|scope| {
            let trimmer = scope.spawn(|| {
                gpu.set_current(context);
                pool.try_trim(0)
            });
            gpu.await_call("cuCtxSynchronize");
            let before = returns();
            begin(gpu, &pool, captured, by_pool);
            sim.release_all();
            // The pool's own capture may use the free memory.
            let trimmed = trimmer.join().expect("no panic");
            assert!(matches!(trimmed, Ok(0) | Err(BFC_ERROR_BACKEND_FAILED)), "{trimmed:?}");
            assert_eq!(returns(), before);
            end(gpu, &pool, captured, by_pool);
        });
        pool.put_on(kept, other);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

#[test]
fn nothing_goes_back_after_a_long_wait() {
    announced_in_a_wait("nothing_goes_back_after_a_long_wait", REGIONS, true);
}

#[test]
fn no_granules_go_back_after_a_long_wait() {
    announced_in_a_wait("no_granules_go_back_after_a_long_wait", GRANULES, false);
}

/// A trim waits for the device twice: before it looks for releasable memory, and before the release. In between the
/// pool announces a capture, and begins it while the second call is about to enter the driver.
#[test]
fn a_trim_waits_no_second_time_after_an_announcement() {
    simulated("a_trim_waits_no_second_time_after_an_announcement", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, other) = (gpu.stream(false), gpu.stream(false));
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, MIB, GROWING);
        let kept = [captured, other].map(|stream| pool.get_on(KIB, stream));
        pool.put_on(pool.get_on(200 * KIB, other), other);
        let calls = sim.calls("cuCtxSynchronize");
        sim.delay(c"cuCtxSynchronize".as_ptr(), 100_000_000);
        std::thread::scope(|scope| {
            let trimmer = scope.spawn(|| {
                gpu.set_current(context);
                pool.try_trim(0)
            });
            gpu.await_call("cuCtxSynchronize");
            begin(gpu, &pool, captured, true);
            let trimmed = trimmer.join().expect("no panic");
            assert!(matches!(trimmed, Ok(0) | Err(BFC_ERROR_BACKEND_FAILED)), "{trimmed:?}");
        });
        sim.clear_faults();
        assert_eq!(sim.calls("cuCtxSynchronize"), calls + 1);
        end(gpu, &pool, captured, true);
        kept.into_iter().for_each(|chunk| pool.put(chunk));
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Announcements are counted, and an end without a beginning is an error. Host memory is not affected.
#[test]
fn announcements_are_counted() {
    assert_eq!(bfc_capture_end(), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("bfc_capture_begin"), "{}", last_error());
    let pool = Pool::in_small_regions(BFC_BACKEND_HOST, 300, 20 * MIB, GROWING);
    pool.put(pool.get(4 * MIB));
    assert_eq!((bfc_capture_begin(), bfc_capture_begin()), (BFC_OK, BFC_OK));
    assert_eq!(pool.try_trim(0), Ok(4 * MIB), "{}", last_error());
    assert_eq!([bfc_capture_end(), bfc_capture_end(), bfc_capture_end()], [0, 0, BFC_ERROR_INVALID_ARGUMENT]);
}

/// An event on the legacy stream breaks the capture of a blocking stream: it is recorded before the announcement returns, or
/// not before the capture ends.
#[test]
fn no_event_is_recorded_on_the_legacy_stream_in_an_announced_capture() {
    simulated("no_event_is_recorded_on_the_legacy_stream_in_an_announced_capture", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, third) = (gpu.stream(true), gpu.stream(false));
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, MIB, GROWING);
        // Freed while its stream is the only one, so that its event comes late.
        pool.put_on(pool.get_on(40 * KIB, LEGACY), LEGACY);
        let late = || pool.put_on(pool.get_on(100 * KIB, third), third);
        // None is recorded meanwhile.
        let meanwhile = || pool.put_on(pool.get_on(200 * KIB, third), third);
        begun_during(gpu, context, captured, c"cuEventRecord", late, meanwhile);
        drop(pool);
        [captured, third].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Runs `work` with a pool, the current context, which the program has created, and a blocking stream of it.
fn in_created_context(test: &str, work: impl FnOnce(Gpu, &Pool, u64, u64)) {
    simulated(test, |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, MIB, GROWING);
        let created = gpu.own_context(0);
        let captured = gpu.stream(true);
        work(gpu, &pool, created, captured);
        gpu.destroy_stream(captured);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        gpu.destroy_context(created);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// No event is recorded on the legacy stream of a context that the program has created.
#[test]
fn no_event_is_recorded_on_another_context_s_legacy_stream_in_an_announced_capture() {
    let test = "no_event_is_recorded_on_another_context_s_legacy_stream_in_an_announced_capture";
    in_created_context(test, |gpu, pool, created, captured| {
        let chunk = pool.get_on(40 * KIB, LEGACY);
        begun_during(gpu, created, captured, c"cuEventRecord", || pool.put_on(chunk, LEGACY), || ());
    });
}

/// The end of an allocator waits for that stream while memory in use has it. It comes before the capture, or is refused.
#[test]
fn the_end_of_an_allocator_records_nothing_on_a_legacy_stream_in_an_announced_capture() {
    let test = "the_end_of_an_allocator_records_nothing_on_a_legacy_stream_in_an_announced_capture";
    in_created_context(test, |gpu, pool, created, captured| {
        let chunk = pool.get_on(40 * KIB, LEGACY);
        let ending = || assert_eq!(pool.destroy_forced(), BFC_ERROR_BACKEND_FAILED);
        begun_during(gpu, created, captured, c"cuEventCreate", ending, || ());
        // Nothing was lost.
        pool.put_on(chunk, LEGACY);
        pool.put_on(pool.get_on(40 * KIB, LEGACY), LEGACY);
    });
}

/// A wait there breaks the capture like an event.
#[test]
fn the_legacy_stream_does_not_wait_in_an_announced_capture() {
    simulated("the_legacy_stream_does_not_wait_in_an_announced_capture", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, other) = (gpu.stream(true), gpu.stream(false));
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 128 * KIB, 0);
        let chunks = [(KIB, LEGACY), (100 * KIB, other)].map(|(bytes, stream)| pool.get_on(bytes, stream));
        gpu.hold(other);
        gpu.fill(other, chunks[1], KIB, 1);
        pool.put_on(chunks[1], other);
        let waiting = || {
            if let Ok(chunk) = pool.alloc_on(100 * KIB, LEGACY) {
                pool.put_on(chunk, LEGACY);
            }
        };
        begun_during(gpu, context, captured, c"cuStreamWaitEvent", waiting, || ());
        sim.release_all();
        pool.put_on(pool.get_on(100 * KIB, LEGACY), LEGACY);
        pool.put_on(chunks[0], LEGACY);
        drop(pool);
        [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Announces and begins a capture while another thread is in a call of that function, and does more before its end.
/// Nothing breaks it.
#[track_caller]
fn begun_during(
    gpu: Gpu,
    context: u64,
    captured: u64,
    function: &CStr,
    work: impl FnOnce() + Send,
    meanwhile: impl FnOnce(),
) {
    gpu.sim.delay(function.as_ptr(), 100_000_000);
    let before = gpu.sim.calls_of(function);
    let ended = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            gpu.set_current(context);
            work();
        });
        while gpu.sim.calls_of(function) == before {
            std::thread::yield_now();
        }
        assert_eq!(bfc_capture_begin(), BFC_OK);
        gpu.begin_capture(captured);
        other.join().expect("no panic");
        meanwhile();
        let ended = gpu.try_end_capture(captured);
        assert_eq!(bfc_capture_end(), BFC_OK);
        ended
    });
    gpu.sim.clear_faults();
    gpu.destroy_graph(ended.unwrap_or_else(|code| panic!("the capture is broken: {code}")));
}
