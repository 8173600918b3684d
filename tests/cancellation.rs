//! A thread that is cancelled while the library calls one of its callbacks: the call returns, and the thread ends at a
//! cancellation point of the program.

mod common;

use common::child::{expect_success, is_child};
use common::*;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Acts like a callback that writes a file after its thread was cancelled.
fn reach_cancellation_point() {
    CALLS.fetch_add(1, Relaxed);
    // SAFETY: no preconditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread is this one.
    unsafe { libc::pthread_cancel(thread) };
    // SAFETY: the frames up to the library have nothing to drop.
    unsafe { pthread_testcancel() };
}

unsafe extern "C" fn on_region(_: *mut c_void, _: i32, _: *mut c_void, _: usize, _: i32) {
    reach_cancellation_point();
}

extern "C" fn on_message(_: *mut c_void, _: i32, _: *const c_char) {
    reach_cancellation_point();
}

unsafe extern "C" fn on_alloc(_: *mut c_void, alignment: usize, bytes: usize, _: *mut usize) -> *mut c_void {
    reach_cancellation_point();
    // SAFETY: the alignment is a power of two, and the size a multiple of it.
    unsafe { libc::aligned_alloc(alignment, bytes.next_multiple_of(alignment)) }
}

unsafe extern "C" fn on_free(_: *mut c_void, memory: *mut c_void, _: usize) {
    reach_cancellation_point();
    // SAFETY: from `on_alloc`.
    unsafe { libc::free(memory) };
}

/// Runs work in a child, and expects this number of callbacks in it.
fn cancelled_in(test: &str, calls: u32, work: impl FnOnce()) {
    if !is_child(test) {
        // A variable that the library warns about.
        expect_success(test, &[("BFC_RETRY_TIMEOUT_MS", "soon")]);
        return;
    }
    work();
    let mut before = -1;
    // The request is still pending. It must not end the test's own thread.
    // SAFETY: the state, which is "disabled", is valid, and the place is writable.
    unsafe { pthread_setcancelstate(1, &mut before) };
    assert_eq!((before, CALLS.load(Relaxed)), (0, calls), "cancellation is enabled again");
}

#[test]
fn the_region_callback_returns() {
    cancelled_in("the_region_callback_returns", 2, || {
        let pool = Pool::host(4 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
        let nothing = std::ptr::null_mut();
        // SAFETY: the function uses no pointer.
        assert_eq!(unsafe { bfc_set_region_callback(pool.device(), Some(on_region), nothing) }, BFC_OK);
        pool.put(pool.get(MIB));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}

#[test]
fn the_log_callback_returns() {
    cancelled_in("the_log_callback_returns", 1, || {
        assert_eq!(bfc_set_log_callback(Some(on_message), std::ptr::null_mut()), BFC_OK);
        assert_eq!(Pool::host(MIB, |_| {}).destroy(), BFC_OK);
    });
}

#[test]
fn the_functions_of_a_suballocator_return() {
    cancelled_in("the_functions_of_a_suballocator_return", 2, || {
        let functions = bfc_suballocator_t {
            struct_size: size_of::<bfc_suballocator_t>(),
            user_data: std::ptr::null_mut(),
            alloc: Some(on_alloc),
            free: Some(on_free),
            supports_coalescing: 0,
            reserved: 0,
        };
        let mut wanted = options();
        (wanted.backend, wanted.suballocator) = (BFC_BACKEND_CUSTOM, &functions);
        (wanted.flags, wanted.memory_limit) = (BFC_ALLOW_GROWTH, 4 * MIB);
        let pool = Pool::create(fresh_device(), &wanted, None).expect("a pool");
        pool.put(pool.get(MIB));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}
