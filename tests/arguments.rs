//! Arguments that no call accepts: NULL results, ordinals, alignments, options. Each is refused with a message, and
//! nothing changes.

mod common;

use common::*;
use std::ffi::c_char;
use std::ptr::{null, null_mut};

const INVALID: Status = BFC_ERROR_INVALID_ARGUMENT;

/// Runs a call that must fail with that status, and with a new message that contains these words.
#[track_caller]
fn refused(expected: Status, words: &str, call: impl FnOnce() -> Status) {
    // A success leaves the message of an earlier failure, which must not be taken for that of this call.
    assert_eq!(bfc_destroy(-4711), INVALID);
    assert_eq!(call(), expected, "{}", last_error());
    let message = last_error();
    assert!(message.contains(words) && !message.contains("-4711"), "{words} is not in {message}");
}

/// Runs a call that must refuse an argument and leave the pool as it is.
#[track_caller]
fn refused_by(pool: &Pool, words: &str, call: impl FnOnce() -> Status) {
    refused(INVALID, words, call);
    pool.check();
}

fn failed<T>(result: Result<T, Status>) -> Status {
    result.err().unwrap_or(BFC_OK)
}

#[test]
fn a_null_result_is_refused_and_the_others_are_written() {
    let pool = Pool::host(MIB, |_| {});
    let (device, live) = (pool.device(), pointer(pool.get(1000)));
    let (wanted, mut text, mut length) = (request(1), [0 as c_char; 8], 7);
    let text = text.as_mut_ptr();
    macro_rules! refused_null {
        ($call:expr) => {
            // SAFETY: NULL is what is tested, and all other pointers are valid.
            refused_by(&pool, "NULL", || unsafe { $call })
        };
    }
    refused_null!(bfc_alloc(device, 1, null_mut()));
    refused_null!(bfc_alloc(device, 0, null_mut()));
    refused_null!(bfc_alloc_aligned(device, 1, 512, null_mut()));
    refused_null!(bfc_alloc_ex(device, &wanted, null_mut()));
    refused_null!(bfc_alloc_async(device, 1, null_mut(), null_mut()));
    refused_null!(bfc_alloc_freed_before(device, 1, 1, null_mut()));
    refused_null!(bfc_timestamp(device, null_mut()));
    refused_null!(bfc_requested_size(device, live, null_mut()));
    refused_null!(bfc_allocated_size(device, live, null_mut()));
    refused_null!(bfc_allocation_id(device, live, null_mut()));
    refused_null!(bfc_owner(live, null_mut()));
    refused_null!(bfc_trim(device, 0, null_mut()));
    refused_null!(bfc_stats(device, null_mut()));
    refused_null!(bfc_scope_begin(null(), 1));
    refused_null!(bfc_resolve_options(device, null(), null_mut(), 1, &mut length));
    refused_null!(bfc_metrics(null_mut(), 1, &mut length));
    refused_null!(bfc_memory_map(device, null_mut(), usize::MAX, &mut length));
    refused_null!(bfc_report(device, null_mut(), 1, &mut length));
    refused_null!(bfc_occupancy(device, null_mut(), 1, &mut length));
    refused_null!(bfc_occupancy(device, text, 8, null_mut()));
    assert_eq!(length, 0);
    let mut out = pointer(7);
    refused_null!(bfc_alloc_ex(device, null(), &mut out));
    assert!(out.is_null());
    for missing in 0..4 {
        let mut written = [7_usize; 4];
        let at = |index: usize| match index == missing {
            true => null_mut(),
            false => (&raw mut written).cast::<usize>().wrapping_add(index),
        };
        let [chunk, chunk_bytes, region, region_bytes] = [0, 1, 2, 3].map(at);
        refused_null!(bfc_address_range(
            device,
            live,
            chunk.cast(),
            chunk_bytes,
            region.cast(),
            region_bytes
        ));
        let expected = [0, 1, 2, 3].map(|index| if index == missing { 7 } else { 0 });
        assert_eq!(written, expected);
    }
}

#[test]
fn ordinals_out_of_range() {
    let pool = Pool::host(MIB, |_| {});
    let live = pool.get(1000);
    for device in [-1, 1024, 1025, 65536, i32::MAX, i32::MIN] {
        let there = std::mem::ManuallyDrop::new(Pool::unowned(device));
        let (mut out, mut length) = (stats(), 0);
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
        let calls: [&mut dyn FnMut() -> Status; 12] = [
            &mut || create(device, Some(&wanted)),
            &mut || create(device, None),
            &mut || bfc_destroy(device),
            &mut || bfc_destroy_forced(device),
            &mut || failed(there.alloc(1)),
            &mut || failed(there.alloc(0)),
            &mut || there.free(live),
            &mut || there.free(0),
            &mut || failed(there.requested_size(live)),
            // SAFETY: a whole struct.
            &mut || unsafe { bfc_stats(device, &mut out) },
            &mut || bfc_check(device),
            // SAFETY: no buffer, and a length.
            &mut || unsafe { bfc_report(device, null_mut(), 0, &mut length) },
        ];
        calls.into_iter().for_each(|call| refused_by(&pool, "ordinals are 0 to 1023", call));
    }
    assert_eq!(pool.requested_size(live), Ok(1000));
}

/// A backend that is not CUDA may be on any ordinal.
#[test]
fn ordinals_at_the_edges() {
    for device in [0, 255, 256, 257, 1023] {
        refused(BFC_ERROR_NO_ALLOCATOR, "create one first", || failed(alloc(device, 1)));
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
        let pool = Pool::create(device, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
        let address = pool.get(1);
        assert_eq!(owner(address), Ok(device));
        pool.put(address);
        assert_eq!(pool.destroy(), BFC_OK);
        refused(BFC_ERROR_NO_ALLOCATOR, "create one first", || bfc_check(device));
    }
}

/// The existing allocator can be shared, whatever the caller would have created. Only invalid options come first.
#[test]
fn a_second_allocator_of_a_device_is_refused() {
    let pool = Pool::host(16 * MIB, |_| {});
    let device = pool.device();
    let existing = BFC_ERROR_ALREADY_EXISTS;
    refused(existing, "share it", || create(device, None));
    let mut wanted = options();
    wanted.memory_limit = MIB;
    // Where there is no driver, that is no reason yet.
    let others = [BFC_BACKEND_AUTO, BFC_BACKEND_HOST_VMM, BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM];
    for backend in [BFC_BACKEND_HOST].into_iter().chain(others) {
        wanted.backend = backend;
        refused(existing, "share it", || create(device, Some(&wanted)));
    }
    wanted.flags = u32::MAX;
    refused_by(&pool, "flags", || create(device, Some(&wanted)));
    assert_eq!(pool.stats().bytes_limit, 16 * MIB);
    pool.get(1000);
    refused(BFC_ERROR_BUSY, "1 allocation is live", || pool.destroy());
    pool.put(pool.get(5000));
}

#[test]
fn alignments_that_are_no_power_of_two() {
    let pool = Pool::host(MIB, |_| {});
    refused_by(&pool, "alignment 0", || failed(pool.alloc_aligned(1, 0)));
    for alignment in [3, 5, 24, 255, 257, 4097, u64::MAX, u64::MAX - 255, (1 << 63) + 1] {
        let wanted = bfc_request_t { alignment: alignment as usize, ..request(1) };
        refused_by(&pool, "power of two", || failed(pool.alloc_aligned(1, alignment)));
        refused_by(&pool, "power of two", || failed(pool.alloc_ex(&wanted)));
    }
    assert_eq!(pool.stats().num_allocs, 0);
}

/// The only region is at an address that is a multiple of every alignment. A request does not depend on such luck.
#[test]
fn an_alignment_above_the_limit_is_out_of_memory_wherever_the_region_is() {
    let backend = Backend::scripted(|_, _, bytes| Some((1 << 46, bytes)));
    let pool = Pool::custom(backend, MIB, |_| {});
    pool.put(pool.get(1));
    for shift in 0..64 {
        if shift <= 20 {
            let address = pool.alloc_aligned(1, 1 << shift).expect("up to the limit");
            assert!(address.is_multiple_of(1 << shift), "{address:#x}");
            pool.put(address);
        } else {
            refused(BFC_ERROR_OUT_OF_MEMORY, "alignment", || failed(pool.alloc_aligned(1, 1 << shift)));
        }
        pool.check();
    }
}

#[test]
fn without_stamps_nothing_about_them_is_served() {
    let pool = Pool::host(MIB, |_| {});
    let wanted = bfc_request_t { freed_before: 1, ..request(1) };
    let (unsupported, words) = (BFC_ERROR_UNSUPPORTED, "needs BFC_TIMESTAMPS");
    refused(unsupported, "BFC_TIMESTAMPS", || failed(pool.alloc_ex(&wanted)));
    refused(unsupported, &format!("bfc_alloc_freed_before {words}"), || {
        failed(pool.alloc_freed_before(1, 1))
    });
    refused(unsupported, "BFC_TIMESTAMPS", || failed(pool.alloc_freed_before(1, 0)));
    refused(unsupported, "BFC_TIMESTAMPS", || failed(pool.timestamp()));
    refused(unsupported, "BFC_TIMESTAMPS", || bfc_set_safe_frontier(pool.device(), 1));
}

#[test]
fn every_unknown_flag_of_a_request_is_refused() {
    let pool = Pool::host(MIB, |_| {});
    let known = BFC_REQUEST_ON_STREAM
        | BFC_REQUEST_NO_GROWTH
        | BFC_REQUEST_SIZE_512
        | BFC_REQUEST_SHORT_LIVED
        | BFC_REQUEST_ATTEMPT;
    for bit in (0..32).map(|shift| 1 << shift) {
        let reserved = bfc_request_t { reserved: bit, ..request(1) };
        refused_by(&pool, "reserved", || failed(pool.alloc_ex(&reserved)));
        if known & bit == 0 {
            let flagged = bfc_request_t { flags: bit, ..request(1) };
            refused_by(&pool, "flags", || failed(pool.alloc_ex(&flagged)));
        }
    }
}

/// Creates and uses an allocator of host memory.
fn try_options(change: impl FnOnce(&mut bfc_options_t)) -> Status {
    let created = Pool::try_host(MIB, |options| {
        options.flags = BFC_ALLOW_GROWTH;
        change(options);
    });
    failed(created.map(|pool| {
        pool.put(pool.get(1));
        pool.check();
    }))
}

#[test]
fn options_that_no_version_has_are_refused() {
    for bit in (0..32).map(|shift| 1 << shift) {
        let known =
            BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_TIMESTAMPS | BFC_SPLIT_ALWAYS | BFC_TWO_ENDS;
        if known & bit != 0 {
            assert_eq!(try_options(|options| options.flags = bit), BFC_OK, "{}", last_error());
        } else {
            let words = if bit == BFC_QUARANTINE { "BFC_TIMESTAMPS" } else { "flags" };
            refused(INVALID, words, || try_options(|options| options.flags = bit));
        }
    }
    for number in [7, 8, 255, 1 << 16, u32::MAX] {
        refused(INVALID, "backend", || try_options(|options| options.backend = number));
        refused(INVALID, "growth_policy", || try_options(|options| options.growth_policy = number));
    }
    refused(INVALID, "growth_policy", || try_options(|options| options.growth_policy = 4));
    for policy in 0..=BFC_GROWTH_PREFER_NEED {
        assert_eq!(try_options(|options| options.growth_policy = policy), BFC_OK);
    }
    refused(INVALID, "reserved", || try_options(|options| options.reserved = 1));
    refused(INVALID, "reserved", || try_options(|options| options.reserved2 = 1));
}

#[test]
fn fractions() {
    let wrong = [f64::NAN, -f64::NAN, -0.5, -1e-300, 1.0000001, 2.0, 1e300, f64::INFINITY, -f64::INFINITY];
    for fraction in wrong {
        for limit in [0, MIB] {
            refused(INVALID, "memory_fraction", || {
                try_options(|options| (options.memory_fraction, options.memory_limit) = (fraction, limit))
            });
        }
        refused(INVALID, "fragmentation_fraction", || {
            try_options(|options| options.fragmentation_fraction = fraction)
        });
    }
    for fraction in [0.0, -0.0, 1e-12, 0.001, 0.5, 1.0] {
        let both = |options: &mut bfc_options_t| {
            (options.memory_fraction, options.fragmentation_fraction) = (fraction, fraction);
        };
        assert_eq!(try_options(both), BFC_OK, "{fraction}: {}", last_error());
    }
}

#[test]
fn limits_of_less_than_a_few_units_and_of_everything() {
    let (device, mut wanted) = (fresh_device(), options());
    wanted.backend = BFC_BACKEND_HOST;
    for (limit, flags) in (1..=513).flat_map(|limit| (0..4).map(move |flags| (limit, flags))) {
        (wanted.memory_limit, wanted.flags) = (limit, flags);
        let pool = Pool::create(device, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
        assert_eq!(pool.stats().bytes_limit, limit);
        if limit < 256 {
            refused(BFC_ERROR_OUT_OF_MEMORY, "no memory for 1 B (rounded up to 256)", || {
                failed(pool.alloc(1))
            });
            assert_eq!(pool.stats().pool_bytes, 0);
        } else {
            pool.put(pool.get(1));
            assert!(pool.stats().pool_bytes <= limit);
        }
        refused(BFC_ERROR_OUT_OF_MEMORY, "no memory for 514 B (rounded up to 768)", || {
            failed(pool.alloc(514))
        });
        pool.check();
    }
    // The backend refuses until the region is small enough for it.
    let all = |options: &mut bfc_options_t| {
        (options.memory_limit, options.initial_region_bytes) = (u64::MAX, u64::MAX);
    };
    assert_eq!(try_options(all), BFC_OK, "{}", last_error());
}

/// A custom backend needs both functions, and no other backend takes any.
#[test]
fn functions_that_are_missing_or_not_wanted() {
    let backend = Backend::new(MIB);
    let with = |backend: u32, functions: *const bfc_suballocator_t| {
        try_options(|options| (options.backend, options.suballocator) = (backend, functions))
    };
    let whole = backend.functions();
    refused(INVALID, "suballocator", || with(BFC_BACKEND_CUSTOM, null()));
    refused(INVALID, "BFC_BACKEND_CUSTOM", || with(BFC_BACKEND_HOST, &whole));
    refused(INVALID, "NULL", || {
        with(BFC_BACKEND_CUSTOM, &bfc_suballocator_t { alloc: None, ..backend.functions() })
    });
    refused(INVALID, "NULL", || {
        with(BFC_BACKEND_CUSTOM, &bfc_suballocator_t { free: None, ..backend.functions() })
    });
    refused(INVALID, "reserved", || {
        with(BFC_BACKEND_CUSTOM, &bfc_suballocator_t { reserved: 1, ..backend.functions() })
    });
    assert_eq!((with(BFC_BACKEND_CUSTOM, &whole), backend.held()), (BFC_OK, 0), "{}", last_error());
}

#[test]
fn a_name_is_utf_8_and_copied_and_of_any_length() {
    refused(INVALID, "UTF-8", || try_options(|options| options.name = c"\xc3\x28".as_ptr()));
    assert_eq!(try_options(|options| options.name = c"".as_ptr()), BFC_OK);
    let longest = std::ffi::CString::new("n".repeat(1 << 20)).expect("no NUL");
    let pool = Pool::host(MIB, |options| options.name = longest.as_ptr());
    drop(longest);
    assert!(pool.memory_map().contains(&"n".repeat(1 << 20)));
    pool.get(1);
    assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
    assert!((100..2047).contains(&last_error().len()), "cut: {}", last_error());
}

/// Without a device no backend of devices is served, least of all by host memory, and the message says what to do.
#[test]
fn devices_without_a_driver() {
    const NAME: &str = "devices_without_a_driver";
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[("CUDA_VISIBLE_DEVICES", "-1")]);
        return;
    }
    for device in (0..1024).step_by(51) {
        for backend in [BFC_BACKEND_AUTO, BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            let mut wanted = options();
            (wanted.backend, wanted.memory_limit) = (backend, MIB);
            let (status, words) = match (device, backend) {
                (..=255, _) => (BFC_ERROR_BACKEND_UNAVAILABLE, "BFC_BACKEND_HOST"),
                (_, BFC_BACKEND_AUTO) => (INVALID, "name a backend"),
                _ => (INVALID, "0 to 255"),
            };
            refused(status, words, || create(device, Some(&wanted)));
            assert_eq!(bfc_check(device), BFC_ERROR_NO_ALLOCATOR, "nothing was created");
        }
    }
}
