//! Sub-allocators that violate their contract, that are slow, or that call back: each causes a
//! specific error, and afterwards the pool is unchanged.

mod common;

use common::*;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

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
fn refused(pool: &Pool, told_to_free: bool) {
    let kept = pool.get(MIB);
    pool.check();
    let returned = || pool.backend().books(|books| books.returned.len());
    for round in 1..=3 {
        assert_eq!(pool.alloc(4 * MIB), Err(BFC_ERROR_BACKEND_FAILED), "{}", last_error());
        assert!(last_error().contains("backend"), "{}", last_error());
        assert_eq!(returned(), if told_to_free { round } else { 0 }, "given back");
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
    refused(&first_honest(|_| (HONEST << 1, 255)), true);
    refused(&first_honest(|_| (HONEST << 1, 0)), true);
    refused(&first_honest(|_| (HONEST << 1, 4 * MIB - 1)), true);
}

#[test]
fn misaligned() {
    for by in [1, 8, 128, 255] {
        refused(&first_honest(move |bytes| ((HONEST << 1) + by, bytes)), true);
    }
}

#[test]
fn behind_the_end_of_the_address_space() {
    refused(&first_honest(|bytes| (u64::MAX - 255, bytes)), false);
    refused(&first_honest(|_| (HONEST << 1, u64::MAX)), false);
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
        refused(&first_honest(cheat), false);
    }
    // The tail of less than a unit is held as well, although no chunk can use it.
    refused(&first_honest(move |bytes| (HONEST + span / 256 * 256, bytes)), false);
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

/// The results of library calls from the callbacks.
type Found = Arc<Mutex<Vec<[Status; 8]>>>;

fn call_everything(device: i32) -> [Status; 8] {
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    let asked = unsafe { bfc_stats(device, &mut out) };
    let mut released = 0;
    // SAFETY: the out-pointer is valid for writing.
    let trimmed = unsafe { bfc_trim(device, 0, &mut released) };
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
    [
        alloc(device, 1).err().unwrap_or(BFC_OK),
        free(device, HONEST),
        asked,
        trimmed,
        bfc_check(device),
        bfc_destroy(device),
        bfc_destroy_forced(device),
        create(device, Some(&wanted)),
    ]
}

#[test]
fn re_entry_is_busy_and_other_devices_are_open() {
    let other = Pool::host(MIB, |_| {});
    let (found, here) = (Found::default(), Arc::new(AtomicI32::new(-1)));
    let (results, device, elsewhere) = (Arc::clone(&found), Arc::clone(&here), other.device());
    let backend = Backend::scripted(move |_, _, bytes| {
        results.lock().unwrap().push(call_everything(device.load(Relaxed)));
        let address = alloc(elsewhere, 100).expect("another device is not busy");
        assert_eq!(free(elsewhere, address), BFC_OK);
        Some((HONEST, bytes))
    });
    let pool = Pool::custom(backend, MIB, |_| {});
    here.store(pool.device(), Relaxed);
    let address = pool.get(1000);
    assert_eq!(*found.lock().unwrap(), [[BFC_ERROR_BUSY; 8]]);
    assert_eq!((address, pool.allocated_size(address)), (HONEST, Ok(1024)), "as if nothing had been");
    pool.check();
    other.check();
    assert_eq!((other.stats().num_allocs, pool.stats().num_allocs), (1, 1));
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
