//! Messages about refused arguments contain the refused value, and what is accepted.

use crate::common::*;
use std::ffi::CStr;

#[track_caller]
fn refused(status: Status, parts: &[&str]) {
    assert_eq!(status, BFC_ERROR_INVALID_ARGUMENT);
    let message = last_error();
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn options_that_are_refused_are_shown() {
    let created = |change: &dyn Fn(&mut bfc_options_t)| {
        let mut options = bfc_options_t { backend: BFC_BACKEND_HOST, ..options() };
        change(&mut options);
        create(700, Some(&options))
    };
    refused(created(&|options| options.backend = 77), &["unknown backend 77", "BFC_BACKEND_..."]);
    refused(created(&|options| options.growth_policy = 78), &["unknown growth_policy 78", "BFC_GROWTH_..."]);
    refused(created(&|options| options.reserved = 79), &["reserved", "79", "BFC_OPTIONS_INIT"]);
    refused(created(&|options| options.flags = 1 << 30), &["unknown flags 0x40000000", "newer libbfc"]);
    let custom = |options: &mut bfc_options_t| options.backend = BFC_BACKEND_CUSTOM;
    refused(created(&custom), &["BFC_BACKEND_CUSTOM needs", "bfc_suballocator_t"]);
    assert_eq!(bfc_check(700), BFC_ERROR_NO_ALLOCATOR, "nothing was created");
}

#[test]
fn requests_that_are_refused_are_shown() {
    let alloc = |flags, reserved| {
        let request = bfc_request_t { flags, reserved, ..request(1) };
        let mut out = std::ptr::null_mut();
        // SAFETY: both pointers are valid.
        unsafe { bfc_alloc_ex(700, &request, &mut out) }
    };
    refused(alloc(1 << 29, 0), &["unknown flags 0x20000000"]);
    refused(alloc(0, 5), &["reserved", "5", "BFC_REQUEST_INIT"]);
}

/// Each thread-specific value needs a key, and a process has 1,024 of them.
#[test]
fn without_thread_keys_an_error_has_a_message() {
    const NAME: &str = "without_thread_keys_an_error_has_a_message";
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[]);
        return;
    }
    let mut key = 0;
    // SAFETY: the place is writable.
    while unsafe { libc::pthread_key_create(&mut key, None) } == 0 {}
    assert_eq!(free(256, 4096), BFC_ERROR_NO_ALLOCATOR);
    assert!(last_error().contains("no thread-specific key"), "{}", last_error());
}

#[test]
fn each_status_has_a_text_of_its_own() {
    let text = |status| {
        let text = bfc_status_string(status);
        assert_eq!(text, bfc_status_string(status), "static");
        // SAFETY: a text of the library ends with a NUL.
        unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned()
    };
    let texts: Vec<String> = (BFC_OK..=BFC_ERROR_INTERNAL).map(text).collect();
    let different: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert!(different.len() == texts.len() && texts.iter().all(|text| text.len() > 3), "{texts:?}");
    for unknown in [-1, BFC_ERROR_INTERNAL + 1, 1000, i32::MAX, i32::MIN] {
        assert!(!text(unknown).is_empty(), "{unknown}");
    }
}

/// Whichever call it was.
#[test]
fn without_an_allocator_the_message_names_the_device() {
    let (device, out) = (321, std::mem::ManuallyDrop::new(Pool::unowned(321)));
    let here = std::ptr::from_ref(&device) as u64;
    let (mut number, mut length, mut all) = (0, 0, stats());
    let calls: [&mut dyn FnMut() -> Status; 13] = [
        &mut || out.alloc(1).unwrap_err(),
        &mut || out.alloc_aligned(1, 512).unwrap_err(),
        &mut || out.alloc_freed_before(1, 1).unwrap_err(),
        &mut || out.free(here),
        &mut || out.requested_size(here).unwrap_err(),
        // SAFETY: a valid out-pointer.
        &mut || unsafe { bfc_trim(device, 0, &mut number) },
        &mut || bfc_set_memory_limit(device, 1),
        &mut || out.timestamp().unwrap_err(),
        // SAFETY: a whole struct.
        &mut || unsafe { bfc_stats(device, &mut all) },
        // SAFETY: no buffer, and a length.
        &mut || unsafe { bfc_report(device, std::ptr::null_mut(), 0, &mut length) },
        &mut || bfc_check(device),
        &mut || bfc_destroy(device),
        &mut || bfc_destroy_forced(device),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(bfc_destroy(-4711), BFC_ERROR_INVALID_ARGUMENT, "an older message");
        assert_eq!(call(), BFC_ERROR_NO_ALLOCATOR, "{number}");
        assert!(last_error().contains("device 321"), "{number}: {}", last_error());
    }
}

/// It looks at devices whose allocators were destroyed, which is no failure.
#[test]
fn bfc_owner_leaves_the_message() {
    let pools = [(); 5].map(|()| Pool::host(MIB, |_| {}));
    pools[..4].iter().for_each(|pool| assert_eq!(pool.destroy(), BFC_OK));
    let address = pools[4].get(1000);
    assert_eq!(pools[4].free(address + 1), BFC_ERROR_INVALID_POINTER);
    let message = last_error();
    assert_eq!((owner(address), last_error()), (Ok(pools[4].device()), message));
}

/// A piece that is large enough, but was freed too late or lies in the wrong place, is not called fragmentation.
#[test]
fn a_free_piece_that_does_not_serve_is_explained() {
    let said = |words: &str| {
        let message = last_error();
        assert!(message.contains(words) && !message.contains("fragmentation"), "{message}");
    };
    let stamped = Pool::host(25_600, |options| options.flags = BFC_ALLOW_GROWTH | BFC_TIMESTAMPS);
    (0..2).for_each(|_| stamped.put(stamped.get(25_600)));
    assert_eq!(stamped.alloc_freed_before(7680, 1), Err(BFC_ERROR_OUT_OF_MEMORY), "its stamp is 2");
    said("later stamp than the request accepts");
    assert!(stamped.alloc_freed_before(7680, 2).is_ok(), "{}", last_error());
    let aligned = Pool::custom(Backend::starting_at(1 << 43, GIB), 25_600, |_| {});
    let pieces = [1, 31, 68].map(|units| aligned.get(256 * units));
    aligned.put(pieces[1]);
    assert_eq!(aligned.alloc_aligned(2560, 8192), Err(BFC_ERROR_OUT_OF_MEMORY));
    said("alignment");
    assert_eq!(aligned.alloc_aligned(2560, 512), Ok(pieces[1] + 256));
}
