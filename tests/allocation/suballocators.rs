//! Sub-allocators that violate their contract, that are slow, or that call back: each causes a
//! specific error, and afterwards the pool is unchanged.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

const GROWTH: u32 = BFC_ALLOW_GROWTH;
/// The address of the valid region of the violations below.
const HONEST: u64 = 1 << 44;

/// First a valid region of 2 MiB at [`HONEST`] with an odd tail of 200 bytes, then always `cheat`.
fn first_honest(mut cheat: impl FnMut(u64) -> (u64, u64) + Send + 'static) -> Pool {
    let mut first = true;
    let backend = Backend::scripted(move |_, _, bytes| {
        if std::mem::take(&mut first) { Some((HONEST, bytes + 200)) } else { Some(cheat(bytes)) }
    });
    Pool::custom(backend.cheating(), GIB, |options| options.flags = GROWTH)
}

/// The violation is refused with a specific error, none of its memory is handed out, and existing memory still serves.
#[track_caller]
fn refused(pool: &Pool, words: &str, told_to_free: bool) {
    let kept = pool.get(MIB);
    pool.check();
    let returned = || pool.backend().books(|books| books.returned.len());
    for round in 1..=3 {
        assert_eq!(pool.alloc(4 * MIB), Err(BFC_ERROR_BACKEND_FAILED), "{}", last_error());
        assert!(last_error().contains(words), "{}", last_error());
        assert_eq!(returned(), if told_to_free { round } else { 0 }, "given back");
        if told_to_free {
            pool.backend().assert_sound();
        }
        pool.check();
    }
    let stats = pool.stats();
    assert_eq!((stats.num_regions, stats.pool_bytes, stats.num_failures), (1, 2 * MIB + 200, 3));
    assert_eq!(pool.get(MIB / 2), kept + MIB);
    assert_eq!(pool.allocated_size(kept), Ok(MIB));
    pool.check();
}

#[test]
fn a_custom_backend_needs_a_limit_only_without_growth_or_with_a_fraction() {
    let backend = Backend::new(64 * MIB);
    let functions = backend.functions();
    let created = |flags, fraction| {
        let mut wanted = options();
        (wanted.backend, wanted.suballocator) = (BFC_BACKEND_CUSTOM, &functions);
        (wanted.flags, wanted.memory_fraction) = (flags, fraction);
        Pool::create(fresh_device(), &wanted, None).map(drop)
    };
    assert_eq!(created(GROWTH, 0.0), Ok(()));
    assert_eq!(created(0, 0.0), Err(BFC_ERROR_INVALID_ARGUMENT));
    assert!(last_error().contains("memory_limit"), "{}", last_error());
    assert_eq!(created(GROWTH, 0.5), Err(BFC_ERROR_INVALID_ARGUMENT));
    assert!(last_error().contains("memory_limit"), "{}", last_error());
}

#[test]
fn too_little() {
    refused(&first_honest(|_| (HONEST << 1, 255)), "are required", true);
    refused(&first_honest(|_| (HONEST << 1, 0)), "are required", true);
    refused(&first_honest(|_| (HONEST << 1, 4 * MIB - 1)), "are required", true);
}

#[test]
fn misaligned() {
    for by in [1, 8, 128, 255] {
        refused(&first_honest(move |bytes| ((HONEST << 1) + by, bytes)), "multiple of 256", true);
    }
}

#[test]
fn behind_the_end_of_the_address_space() {
    refused(&first_honest(|bytes| (u64::MAX - 255, bytes)), "address space", false);
    refused(&first_honest(|_| (HONEST << 1, u64::MAX)), "address space", false);
}

#[test]
fn overlapping() {
    let span = 2 * MIB + 200;
    let cheats: [fn(u64) -> (u64, u64); 6] = [
        |bytes| (HONEST, bytes),
        |bytes| (HONEST + 256, bytes),
        |bytes| (HONEST + 2 * MIB - 256, bytes),
        |bytes| (HONEST - 256, bytes),
        |bytes| (HONEST + 256 - bytes, bytes),
        |bytes| (HONEST - MIB, bytes + 4 * MIB),
    ];
    for cheat in cheats {
        refused(&first_honest(cheat), "overlap", false);
    }
    // The tail of less than a unit is held as well, although no chunk can use it.
    refused(&first_honest(move |bytes| (HONEST + span / 256 * 256, bytes)), "overlap", false);
}

#[test]
fn touching_is_not_overlapping() {
    let above = first_honest(|bytes| (HONEST + 2 * MIB + 256, bytes));
    let below = first_honest(|bytes| (HONEST - bytes, bytes));
    for pool in [above, below] {
        pool.get(MIB);
        pool.get(4 * MIB);
        assert_eq!(pool.stats().num_regions, 2);
        pool.check();
    }
}

/// After refusals smaller sizes are requested, and then the result is out of memory, not a failure of the backend.
#[test]
fn refusing() {
    let pool = Pool::custom(Backend::new(3 * MIB), GIB, |options| options.flags = GROWTH);
    let first = pool.get(2 * MIB);
    // The next region would have 4 MiB, and the backend has one more.
    let second = pool.get(MIB / 2);
    assert!(pool.stats().pool_bytes <= 3 * MIB && pool.stats().num_regions == 2);
    let asked = pool.backend().books(|books| books.asked.clone());
    assert_eq!(asked[..2], [2 * MIB, 4 * MIB]);
    assert!(asked[1..].windows(2).all(|pair| pair[1] < pair[0]), "{asked:?}");
    assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.stats().num_failures, 1);
    pool.check();
    [first, second].into_iter().for_each(|address| pool.put(address));
    assert_eq!(pool.get(2 * MIB), first);
}

/// Makes every call about a device from a callback, and returns those that were not refused as busy.
fn not_busy(device: i32) -> Vec<&'static str> {
    let (mut out, mut released, mut length) = (stats(), 7, 7);
    out.pool_bytes = 7;
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
    let (null, stream, ptr) = (pointer(0), pointer(0x1000), pointer(HONEST));
    let failed = |found: Result<u64, Status>| found.err().unwrap_or(BFC_OK);
    let here = Pool::unowned(device);
    macro_rules! status {
        ($call:expr) => {
            // SAFETY: whole structs, writable out-pointers, and no buffers.
            unsafe { $call }
        };
    }
    let with_pointers = [
        ("bfc_trim", status!(bfc_trim(device, 0, &mut released))),
        ("bfc_stats", status!(bfc_stats(device, &mut out))),
        ("bfc_occupancy", status!(bfc_occupancy(device, null.cast(), 0, &mut length))),
        ("bfc_memory_map", status!(bfc_memory_map(device, null.cast(), 0, &mut length))),
        ("bfc_report", status!(bfc_report(device, null.cast(), 0, &mut length))),
        ("bfc_set_region_callback", status!(bfc_set_region_callback(device, None, null))),
    ];
    assert_eq!((released, length, out.pool_bytes), (0, 0, 0), "a refused call writes its results");
    assert!(last_error().contains("callback"), "{}", last_error());
    let calls = [
        ("bfc_create", create(device, Some(&wanted))),
        ("bfc_destroy", bfc_destroy(device)),
        ("bfc_destroy_forced", bfc_destroy_forced(device)),
        ("bfc_alloc", failed(alloc(device, 1))),
        ("bfc_alloc of nothing", failed(alloc(device, 0))),
        ("bfc_alloc_aligned", failed(alloc_aligned(device, 1, 512))),
        ("bfc_alloc_ex", failed(alloc_ex(device, &request(1)))),
        ("bfc_alloc_freed_before", failed(alloc_freed_before(device, 1, 1))),
        ("bfc_free", free(device, HONEST)),
        ("bfc_alloc_async", failed(alloc_async(device, 1, 0x1000))),
        ("bfc_free_async", free_async(device, HONEST, 0x1000)),
        ("bfc_record_stream", bfc_record_stream(device, ptr, stream)),
        ("bfc_forget_stream", bfc_forget_stream(device, stream)),
        ("bfc_stream_synchronized", bfc_stream_synchronized(device, stream)),
        ("bfc_timestamp", failed(here.timestamp())),
        ("bfc_set_safe_frontier", bfc_set_safe_frontier(device, 1)),
        ("bfc_requested_size", failed(here.requested_size(HONEST))),
        ("bfc_allocated_size", failed(here.allocated_size(HONEST))),
        ("bfc_allocation_id", failed(here.allocation_id(HONEST))),
        ("bfc_address_range", here.range(HONEST).err().unwrap_or(BFC_OK)),
        ("bfc_reset_stats", bfc_reset_stats(device)),
        ("bfc_check", bfc_check(device)),
        ("bfc_set_memory_limit", bfc_set_memory_limit(device, 0)),
        ("bfc_device_lost", bfc_device_lost(device)),
        ("bfc_pool_begin", bfc_pool_begin(device, 1, stream)),
        ("bfc_pool_end", bfc_pool_end(device, 1, stream)),
        ("bfc_pool_release", bfc_pool_release(device, 1)),
    ];
    std::mem::forget(here);
    let all = calls.into_iter().chain(with_pointers);
    all.filter(|&(_, status)| status != BFC_ERROR_BUSY).map(|(name, _)| name).collect()
}

/// In the function that provides a region, whatever it then answers, and in the one that takes it back.
#[test]
fn re_entry_is_busy_and_other_devices_are_open() {
    // No other test has memory here, so that it has one owner.
    const HERE: u64 = 3 << 45;
    let other = Pool::host(MIB, |_| {});
    let held = other.get(1000);
    let here = Arc::new(AtomicI32::new(-1));
    let calls = Arc::new(AtomicI32::new(0));
    let call_everything = {
        let (here, calls, elsewhere) = (Arc::clone(&here), Arc::clone(&calls), other.device());
        move || {
            let device = here.load(Relaxed);
            assert_eq!(not_busy(device), [""; 0]);
            assert_eq!(free(device, 0), BFC_OK, "NULL is not looked up");
            let address = alloc(elsewhere, 100).expect("another device is not busy");
            assert_eq!((free(elsewhere, address), bfc_check(elsewhere)), (BFC_OK, BFC_OK));
            // The owner is known in callbacks too.
            assert_eq!((owner(held + 999), owner(64)), (Ok(elsewhere), Err(BFC_ERROR_INVALID_POINTER)));
            // Its own memory has no owner before it is obtained and while it is destroyed.
            assert!([Ok(device), Err(BFC_ERROR_INVALID_POINTER)].contains(&owner(HERE + 700)));
            calls.fetch_add(1, Relaxed);
            assert_eq!((scope_begin("inside", 1), bfc_scope_end()), (BFC_OK, BFC_OK));
        }
    };
    let (in_give, mut round) = (call_everything.clone(), 0);
    let backend = Backend::scripted(move |_, _, bytes| {
        in_give();
        round += 1;
        match round {
            1 => Some((HERE, bytes)),
            2 => Some((HERE << 1 | 1, bytes)),
            3 => Some((HERE << 1, bytes)),
            _ => None,
        }
    });
    let backend = backend.on_return(call_everything).cheating();
    let pool = Pool::custom(backend, GIB, |options| options.flags = GROWTH);
    here.store(pool.device(), Relaxed);
    let address = pool.get(2 * MIB);
    assert_eq!((address, pool.allocated_size(address)), (HERE, Ok(2 * MIB)), "as if nothing had been");
    assert_eq!(pool.alloc(4 * MIB), Err(BFC_ERROR_BACKEND_FAILED), "misaligned, and taken back");
    pool.put(pool.get(4 * MIB));
    assert_eq!(pool.alloc(64 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY), "refused");
    assert_eq!(pool.trim(0), 4 * MIB);
    pool.check();
    other.check();
    assert!(calls.load(Relaxed) >= 6, "{calls:?}");
    assert_eq!((pool.stats().num_allocs, pool.stats().num_failures), (2, 2));
    pool.put(address);
    assert_eq!(pool.destroy(), BFC_OK);
}

/// Sizes that no machine has cannot be recognized as wrong. Whatever the result, the allocator stays sound.
#[test]
fn more_than_any_machine_has() {
    for shift in 40..64 {
        let mut first = true;
        let backend = Backend::scripted(move |_, _, bytes| match std::mem::take(&mut first) {
            true => Some((HONEST, bytes)),
            false => Some((HONEST + 2 * MIB, 1 << shift)),
        });
        let pool = Pool::custom(backend.cheating(), GIB, |options| options.flags = GROWTH);
        let live = pool.get(2 * MIB);
        if let Ok(address) = pool.alloc(2 * MIB) {
            assert_eq!((address, pool.stats().pool_bytes), (HONEST + 2 * MIB, 2 * MIB + (1 << shift)));
            // Sizes at the edges of what a chunk can have.
            match pool.alloc(1 << (shift - 1)) {
                Ok(huge) => pool.put(huge),
                Err(status) => assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY),
            }
            pool.check();
            pool.put(address);
        }
        pool.check();
        pool.put(live);
        assert_eq!(pool.destroy(), BFC_OK);
    }
}

/// While one thread is in the sub-allocator another uses the device. Only calls from the callback are busy.
#[test]
fn only_the_calling_thread_is_re_entrant() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let first = pool.get(1);
    pool.backend().gate.close();
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| pool.get(10 * MIB));
        pool.backend().gate.wait_for_somebody();
        pool.put(first);
        assert_eq!(pool.get(1), first);
        assert_eq!(pool.destroy(), BFC_ERROR_BUSY, "an allocation lives");
        pool.backend().gate.open();
        inside.join().expect("no panic");
    });
    pool.check();
}

/// Both callbacks receive the requested and granted values, even for merged regions.
#[test]
fn every_region_comes_back_once() {
    for backend in
        [Backend::new(GIB), Backend::new(GIB).layout(Layout::Falling), Backend::new(GIB).coalescing()]
    {
        let pool = Pool::custom(backend, GIB, |options| options.flags = GROWTH | BFC_GARBAGE_COLLECTION);
        let mut random = Random::new(8);
        for _ in 0..20 {
            let chunks: Vec<u64> = (0..30).map(|_| pool.get(random.between(1, 3 * MIB))).collect();
            chunks.into_iter().for_each(|address| pool.put(address));
            pool.trim(random.below(64) * MIB);
            pool.check();
            pool.backend().assert_sound();
            assert_eq!(pool.stats().pool_bytes, pool.backend().held());
        }
        assert_eq!(pool.destroy(), BFC_OK);
        pool.backend().assert_all_returned();
    }
}
