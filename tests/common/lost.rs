//! Shared by the tests of a lost context: a pool on the simulated device 0, its remains, and a
//! listener for its regions.

use super::gpu::Gpu;
use super::*;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// A pool of at most 1 GiB.
pub fn cuda_pool(device: i32) -> Pool {
    Pool::on_device(device, |_| ())
}

/// Calls `bfc_device_lost`, which must succeed.
#[track_caller]
pub fn lost(device: i32) {
    assert_eq!(bfc_device_lost(device), BFC_OK, "{}", last_error());
}

/// Checks that no function of the library accepts an address.
#[track_caller]
pub fn assert_refused(pool: &Pool, address: u64) {
    let device = pool.device();
    let none = ptr::null_mut();
    assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER);
    assert_eq!(bfc_free_async(device, pointer(address), none), BFC_ERROR_INVALID_POINTER);
    assert_eq!(bfc_record_stream(device, pointer(address), none), BFC_ERROR_INVALID_POINTER);
    assert_eq!(pool.requested_size(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.allocated_size(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.allocation_id(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.range(address), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
}

/// Checks that nothing is left, and that the statistics agree.
#[track_caller]
pub fn assert_empty(pool: &Pool) {
    pool.check();
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.num_regions, stats.num_chunks), (0, 0, 0));
    assert_eq!((stats.bytes_in_use, stats.bytes_requested), (0, 0));
    assert_eq!(stats.num_allocs, stats.num_frees, "what was live counts as freed");
}

/// A listener for regions, with the regions that were obtained and not yet returned.
#[derive(Default)]
pub struct Told {
    /// Starts and bytes.
    pub held: Mutex<Vec<(u64, u64)>>,
    /// The number of calls.
    pub calls: AtomicU64,
    /// Regions consist of granules of so many bytes, which come and go separately.
    granule: Option<u64>,
}

unsafe extern "C" fn told(user_data: *mut c_void, _: i32, base: *mut c_void, bytes: usize, event: i32) {
    // SAFETY: the tests pass a reference that outlives the pool.
    let told = unsafe { &*user_data.cast::<Told>() };
    let (base, bytes) = (base as u64, bytes as u64);
    let mut held = told.held.lock().unwrap();
    told.calls.fetch_add(1, Relaxed);
    let piece = told.granule.unwrap_or(bytes);
    assert!(bytes.is_multiple_of(piece));
    for region in (base..base + bytes).step_by(piece as usize).map(|base| (base, piece)) {
        if event == BFC_REGION_OBTAINED {
            let overlaps = |other: &(u64, u64)| other.0 < region.0 + piece && region.0 < other.0 + other.1;
            assert!(!held.iter().any(overlaps), "{region:x?} is registered already");
            held.push(region);
        } else {
            let place = held.iter().position(|&other| other == region).expect("it is registered");
            held.swap_remove(place);
        }
    }
}

/// Listens to a pool, whose regions may consist of granules.
pub fn listen(pool: &Pool, granule: Option<u64>) -> &'static Told {
    let told_of: &'static Told = Box::leak(Box::new(Told { granule, ..Told::default() }));
    let user_data = ptr::from_ref(told_of).cast_mut().cast();
    // SAFETY: it lives forever, and may be called from any thread.
    let status = unsafe { bfc_set_region_callback(pool.device(), Some(told), user_data) };
    assert_eq!(status, BFC_OK, "{}", last_error());
    told_of
}

/// The work of threads while the device is reset repeatedly.
pub struct Threads {
    pub count: u64,
    pub most_live: usize,
    pub most_bytes: u64,
    /// A trim keeps less than this.
    pub keep: u64,
    /// The possible results of a free of memory that may be lost.
    pub frees: &'static [Status],
    pub resets: u64,
}

/// Runs them, and returns how many requests were answered.
pub fn reset_among_threads(gpu: Gpu, pool: &Pool, threads: &Threads) -> u64 {
    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..threads.count {
            let (over, served) = (&over, &served);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut live: Vec<u64> = Vec::new();
                while !over.load(Relaxed) {
                    if live.len() < threads.most_live && random.below(3) != 0 {
                        match pool.alloc(1 + random.below(threads.most_bytes)) {
                            Ok(address) => live.push(address),
                            Err(status) => assert!(
                                [BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED].contains(&status),
                                "{status}: {}",
                                last_error()
                            ),
                        }
                        served.fetch_add(1, Relaxed);
                    } else if !live.is_empty() {
                        let place = random.below(live.len() as u64) as usize;
                        let status = pool.free(live.swap_remove(place));
                        assert!(threads.frees.contains(&status), "{status}");
                    } else if random.below(4) == 0 {
                        let _ = pool.try_trim(random.below(threads.keep));
                    }
                }
            });
        }
        for round in 0..threads.resets {
            std::thread::sleep(Duration::from_micros(round % 7 * 300));
            gpu.reset(0);
            if round % 3 != 0 {
                lost(0);
            }
            pool.check();
        }
        over.store(true, Relaxed);
    });
    served.into_inner()
}
