//! Callbacks of the log that call the library, and what is printed with and without them.

mod common;

use common::*;
use std::ffi::{c_char, c_void};
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Does everything that might tempt a library to print.
fn provoke() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    (0..100).for_each(|_| assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY)));
    let address = pool.get(1000);
    assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
    pool.put(address);
    assert_eq!(pool.free(address), BFC_ERROR_DOUBLE_FREE);
    assert_eq!(create(pool.device(), None), BFC_ERROR_ALREADY_EXISTS);
    pool.check();
    assert_eq!(pool.destroy(), BFC_OK);
    assert_eq!((create(256, None), bfc_destroy(256)), (BFC_OK, BFC_OK));
}

/// The child of the tests of silence.
#[test]
fn provoked() {
    if !child::is_child("provoked") {
        return;
    }
    if std::env::var_os("TEST_CALLBACK").is_some() {
        let collected = log::Collected::start();
        provoke();
        assert!(!collected.messages().is_empty());
        eprintln!("the callback is removed");
        drop(collected);
    }
    provoke();
}

/// Returns what the library printed: all that is not the test harness's.
fn printed(variables: &[(&str, &str)]) -> String {
    let text = child::expect_success("provoked", variables).text;
    let harness =
        |line: &&str| line.is_empty() || line.starts_with("test ") || line.starts_with("running 1 ");
    text.lines().filter(|line| !harness(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_is_printed_unless_it_is_asked_for() {
    let wrong = [("BFC_MEMORY_LIMIT", "a lot"), ("BFC_BACKEND", "abacus"), ("BFC_REPORT_ON_FAILURE", "1")];
    assert_eq!(printed(&wrong), "");
    assert_eq!(printed(&[&wrong[..], &[("BFC_LOG", "off")]].concat()), "");
    assert!(printed(&[("BFC_LOG", "debug")]).contains("libbfc info"), "otherwise nothing would be seen");
}

#[test]
fn a_callback_receives_messages_until_it_is_removed() {
    let text = printed(&[("BFC_LOG", "debug"), ("TEST_CALLBACK", "1")]);
    let (before, after) = text.split_once("the callback is removed").expect("both parts");
    assert!(!before.contains("libbfc") && after.contains("libbfc info"), "{text}");
}

/// The devices of the callbacks below.
const FIRST: i32 = 300;
const SECOND: i32 = 301;

fn pair(device: i32) {
    let address = alloc(device, 1000).unwrap_or_else(|_| panic!("{}", last_error()));
    assert_eq!(free(device, address), BFC_OK);
}

fn host_on(device: i32) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_HOST, BFC_ALLOW_GROWTH, 8 * MIB);
    Pool::create(device, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()))
}

static REGIONS: AtomicU32 = AtomicU32::new(0);

/// Calls on the device that a message is about, and on another one.
extern "C" fn ask(_: *mut c_void, _: i32, message: *const c_char) {
    // SAFETY: the library passes a NUL-terminated text.
    let message = unsafe { std::ffi::CStr::from_ptr(message) }.to_str().expect("UTF-8");
    let mut out = stats();
    // SAFETY: a whole struct.
    let status = unsafe { bfc_stats(FIRST, &mut out) };
    assert!([BFC_OK, BFC_ERROR_BUSY, BFC_ERROR_NO_ALLOCATOR].contains(&status), "{status}");
    if message.contains(" a region of ") {
        assert_eq!(status, BFC_ERROR_BUSY, "{message}");
        REGIONS.fetch_add(1, Relaxed);
    }
    pair(SECOND);
}

/// On the device that it hears about a call may be refused, but never hangs.
#[test]
fn a_callback_may_call_the_library() {
    const NAME: &str = "a_callback_may_call_the_library";
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[("BFC_LOG", "debug"), ("BFC_REPORT_ON_FAILURE", "1")]);
        return;
    }
    let _other = host_on(SECOND);
    pair(SECOND);
    assert_eq!(bfc_set_log_callback(Some(ask), std::ptr::null_mut()), BFC_OK);
    let pool = host_on(FIRST);
    pair(FIRST);
    assert_eq!(pool.alloc(16 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!((pool.trim(0), pool.destroy()), (2 * MIB, BFC_OK));
    assert_eq!(bfc_set_log_callback(None, std::ptr::null_mut()), BFC_OK);
    assert!(REGIONS.load(Relaxed) >= 2, "{REGIONS:?}");
}

static MET: std::sync::LazyLock<Barrier> = std::sync::LazyLock::new(|| Barrier::new(2));

/// Allocates on the device of the other thread's message while that thread is in its callback, once for each.
extern "C" fn cross_over(other: *mut c_void, _: i32, message: *const c_char) {
    // SAFETY: the library passes a NUL-terminated text.
    let message = unsafe { std::ffi::CStr::from_ptr(message) }.to_str().expect("UTF-8");
    // SAFETY: the pointer is to the test's static.
    let waiting = unsafe { &*other.cast::<AtomicI32>() };
    let here = if message.contains("device 300: ") { FIRST } else { SECOND };
    if !message.contains("gave a region") || waiting.fetch_sub(1, Relaxed) <= 0 {
        return;
    }
    MET.wait();
    pair(FIRST + SECOND - here);
    MET.wait();
}

/// No callback waits for a message that is being delivered to another thread.
#[test]
fn callbacks_of_two_threads_do_not_wait_for_each_other() {
    const NAME: &str = "callbacks_of_two_threads_do_not_wait_for_each_other";
    static WAITING: AtomicI32 = AtomicI32::new(2);
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[("BFC_LOG", "info")]);
        return;
    }
    let pools = [FIRST, SECOND].map(host_on);
    [FIRST, SECOND].into_iter().for_each(pair);
    let place = std::ptr::from_ref(&WAITING).cast_mut().cast();
    assert_eq!(bfc_set_log_callback(Some(cross_over), place), BFC_OK);
    std::thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(move || assert_eq!(pool.trim(0), 2 * MIB));
        }
    });
    assert_eq!(bfc_set_log_callback(None, std::ptr::null_mut()), BFC_OK);
    assert!(WAITING.load(Relaxed) <= 0, "both were told");
}
