//! Messages about refused arguments contain the refused value, and what is accepted.

mod common;

use common::*;

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
