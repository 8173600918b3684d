//! A backend that refused is not asked again by the same request before memory was released, and allocators that take
//! their regions from each other never wait for each other.

use crate::common::backend::functions;
use crate::common::gpu::Gpu;
use crate::common::simcuda::simulated_with;
use crate::common::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

const GROWTH: u32 = BFC_ALLOW_GROWTH;
const GRANULE: u64 = 2 * MIB;

/// Returns the sizes requested since `from`, none of which was requested twice.
#[track_caller]
fn asked_once(pool: &Pool, from: usize) -> usize {
    let mut asked = pool.backend().books(|books| books.asked[from..].to_vec());
    let count = asked.len();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), count, "something was asked for again: {asked:?}");
    count
}

#[test]
fn the_end_of_the_wait_is_no_reason_to_ask_again() {
    let pool = Pool::custom(Backend::new(3 * MIB), GIB, |options| {
        (options.flags, options.retry_timeout_ms) = (GROWTH, 20);
    });
    let first = pool.get(2 * MIB);
    let before = pool.backend().requests();
    assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert!(asked_once(&pool, before) > 1);
    pool.put(first);
    pool.check();
}

/// Memory released meanwhile is a reason to ask again.
#[test]
fn what_goes_back_meanwhile_is_asked_for() {
    let pool = Pool::custom(Backend::new(10 * MIB), GIB, |options| {
        (options.flags, options.retry_timeout_ms) = (GROWTH, 100_000);
    });
    pool.put(pool.get(8 * MIB));
    let held = pool.get(3 * MIB);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.get(9 * MIB));
        std::thread::sleep(Duration::from_millis(30));
        pool.put(held);
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished(), "no piece is large enough");
        assert_eq!(pool.trim(0), 8 * MIB);
        pool.put(waiting.join().expect("no panic"));
    });
    assert_eq!(pool.stats().num_failures, 0);
    pool.check();
}

/// A backend that ignores alignments provides a region that does not help, and has no larger one.
#[test]
fn what_was_refused_on_the_way_to_a_region_is_not_asked_for_again() {
    let mut next = (1u64 << 40) + 256;
    let backend = Backend::scripted(move |books, _, bytes| {
        next += 16 * MIB;
        (books.held + bytes <= 7 * MIB).then_some((next, bytes))
    });
    let pool = Pool::custom(backend, GIB, |options| {
        (options.flags, options.initial_region_bytes) = (GROWTH, 64 * MIB);
    });
    assert_eq!(pool.alloc_aligned(4 * MIB, 16 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    let asked = pool.backend().books(|books| books.asked.clone());
    assert!(pool.stats().num_regions != 0 && asked.windows(2).all(|pair| pair[1] < pair[0]), "{asked:?}");
    pool.check();
}

/// With granules as well: the device is asked once for what the request needs, and provides what it has.
#[test]
fn a_device_without_memory_is_asked_once() {
    let environment = [("SIMCUDA_MEMORY", "67108864")];
    simulated_with("a_device_without_memory_is_asked_once", &environment, |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let mut wanted = options();
        (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUDA_VMM, GROWTH, GIB);
        let pool = Pool::create(0, &wanted, None).unwrap();
        let first = pool.get(20 * GRANULE);
        let free = || (64 * MIB - sim.used(0)) / GRANULE;
        let (before, left) = (sim.calls("cuMemCreate"), free());
        assert_eq!(pool.alloc(20 * GRANULE), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(sim.calls("cuMemCreate") - before, left + 1, "up to the first refusal");
        pool.check();
        pool.put(first);
        pool.trim(0);
        // The device's remaining memory and the idle pieces are sufficient together.
        let chunks: Vec<u64> = (0..8).map(|_| pool.get(GRANULE)).collect();
        let idle: Vec<u64> = chunks.iter().copied().step_by(2).collect();
        idle.iter().for_each(|&address| pool.put(address));
        let whole = pool.alloc((free() + idle.len() as u64) * GRANULE);
        assert!(whole.is_ok(), "{}", last_error());
        pool.check();
        pool.put(whole.unwrap());
        chunks.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
        assert_eq!(pool.destroy(), BFC_OK);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A suballocator over another pool. Its first call waits until others are in their calls.
struct Over {
    device: AtomicI32,
    calls: AtomicUsize,
    met: Arc<Barrier>,
}

unsafe extern "C" fn from_another(
    user_data: *mut c_void,
    alignment: usize,
    bytes: usize,
    _: *mut usize,
) -> *mut c_void {
    // SAFETY: the pointer is to an object that the test has leaked.
    let over = unsafe { &*user_data.cast::<Over>() };
    if over.calls.fetch_add(1, SeqCst) == 0 {
        over.met.wait();
    }
    let served = alloc_aligned(over.device.load(SeqCst), bytes, alignment);
    assert!(matches!(served, Ok(_) | Err(BFC_ERROR_OUT_OF_MEMORY | BFC_ERROR_BUSY)), "{served:?}");
    served.map_or(std::ptr::null_mut(), pointer)
}

unsafe extern "C" fn to_another(user_data: *mut c_void, region: *mut c_void, _: usize) {
    // SAFETY: as above.
    let over = unsafe { &*user_data.cast::<Over>() };
    bfc_free(over.device.load(SeqCst), region);
}

fn over(device: i32, met: &Arc<Barrier>) -> &'static Over {
    let (device, calls) = (AtomicI32::new(device), AtomicUsize::new(0));
    Box::leak(Box::new(Over { device, calls, met: Arc::clone(met) }))
}

fn pool_over(over: &Over, initial_region_bytes: u64, retry_timeout_ms: u32) -> i32 {
    let functions = functions(over, Some(from_another), Some(to_another), false);
    let (mut wanted, device) = (options(), fresh_device());
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUSTOM, GROWTH, GIB);
    (wanted.retry_timeout_ms, wanted.suballocator) = (retry_timeout_ms, &functions);
    wanted.initial_region_bytes = initial_region_bytes;
    assert_eq!(create(device, Some(&wanted)), BFC_OK, "{}", last_error());
    device
}

/// Each of several pools takes its regions from the next, the last from the first. One thread requests from each of
/// them.
fn circle(count: usize, initial_region_bytes: u64, retry_timeout_ms: u32) {
    let met = Arc::new(Barrier::new(count));
    let links: Vec<&Over> = (0..count).map(|_| over(-1, &met)).collect();
    let devices: Vec<i32> =
        links.iter().map(|link| pool_over(link, initial_region_bytes, retry_timeout_ms)).collect();
    for (at, link) in links.iter().enumerate() {
        link.device.store(devices[(at + 1) % count], SeqCst);
    }
    let (said, answers) = mpsc::channel();
    for &device in &devices {
        let said = said.clone();
        std::thread::spawn(move || said.send(alloc(device, 1000)));
    }
    for _ in 0..count {
        // Not a measurement: without an answer the threads wait for each other forever.
        let answer = answers.recv_timeout(Duration::from_secs(60)).expect("the threads wait for each other");
        assert!(matches!(answer, Err(BFC_ERROR_OUT_OF_MEMORY | BFC_ERROR_BUSY)), "{answer:?}");
    }
    for device in devices {
        assert_eq!(bfc_check(device), BFC_OK);
        assert_eq!(bfc_destroy(device), BFC_OK, "{}", last_error());
    }
}

#[test]
fn pools_that_take_regions_from_each_other_end_in_an_error() {
    // With 2 MiB at first each pool requests about eighty sizes before it gives up, each of which the next requests
    // too.
    for (count, initial_region_bytes) in [(2, 0), (3, 0), (3, 1024), (5, 1024)] {
        for retry_timeout_ms in [0, 2000] {
            circle(count, initial_region_bytes, retry_timeout_ms);
        }
    }
}

/// In one direction nothing is refused, however many threads wait for the pool below.
#[test]
fn pools_over_a_common_one_share_it() {
    let below = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let met = Arc::new(Barrier::new(1));
    let middle = pool_over(over(below.device(), &met), 0, 0);
    let above: Vec<i32> = (0..3).map(|_| pool_over(over(middle, &met), 0, 0)).collect();
    std::thread::scope(|scope| {
        for number in 0..12 {
            let device = [above[number % 3], middle, below.device()][number / 3 % 3];
            scope.spawn(move || {
                for bytes in (1..60).map(|step| step * 40_000) {
                    let address = alloc(device, bytes).unwrap_or_else(|_| panic!("{}", last_error()));
                    assert_eq!(free(device, address), BFC_OK);
                    let mut released = 0;
                    // SAFETY: the out-pointer is valid for writing.
                    assert_eq!(unsafe { bfc_trim(device, 0, &mut released) }, BFC_OK, "{}", last_error());
                }
            });
        }
    });
    for device in above.into_iter().chain([middle]) {
        assert_eq!((bfc_check(device), bfc_destroy(device)), (BFC_OK, BFC_OK), "{}", last_error());
    }
    below.check();
}

/// The destruction of an allocator waits for calls too.
#[test]
fn ends_in_callbacks_do_not_wait_for_each_other() {
    struct Ends {
        other: AtomicI32,
        calls: AtomicUsize,
        met: Arc<Barrier>,
        statuses: mpsc::Sender<Status>,
    }
    unsafe extern "C" fn give(at: *mut c_void, _: usize, _: usize, _: *mut usize) -> *mut c_void {
        // SAFETY: the pointer is to an object that the test has leaked.
        let ends = unsafe { &*at.cast::<Ends>() };
        if ends.calls.fetch_add(1, SeqCst) == 0 {
            ends.met.wait();
            ends.statuses.send(bfc_destroy(ends.other.load(SeqCst))).unwrap();
        }
        std::ptr::null_mut()
    }
    unsafe extern "C" fn take(_: *mut c_void, _: *mut c_void, _: usize) {}
    let (met, (statuses, said)) = (Arc::new(Barrier::new(2)), mpsc::channel());
    let make = || {
        let ends: &Ends = Box::leak(Box::new(Ends {
            other: AtomicI32::new(-1),
            calls: AtomicUsize::new(0),
            met: Arc::clone(&met),
            statuses: statuses.clone(),
        }));
        let functions = functions(ends, Some(give), Some(take), false);
        let (mut wanted, device) = (options(), fresh_device());
        (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUSTOM, GROWTH, GIB);
        wanted.suballocator = &functions;
        assert_eq!(create(device, Some(&wanted)), BFC_OK);
        (ends, device)
    };
    let [(one, first), (other, second)] = [make(), make()];
    one.other.store(second, SeqCst);
    other.other.store(first, SeqCst);
    for device in [first, second] {
        std::thread::spawn(move || alloc(device, 1));
    }
    let mut answers =
        [(); 2].map(|()| said.recv_timeout(Duration::from_secs(60)).expect("they wait for each other"));
    answers.sort_unstable();
    assert_eq!(answers, [BFC_OK, BFC_ERROR_BUSY], "one ends the other, which is told");
}
