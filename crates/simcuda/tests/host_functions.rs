//! Host functions, callbacks and simulated kernels: what they may not do, and what becomes of them when a context fails.

mod common;
use common::*;

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// What the driver answered to the function, and how often it was called.
static ANSWER: AtomicI32 = AtomicI32::new(-1);
static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn allocates(_: *mut c_void) {
    let function = Driver::load().unwrap().cuMemAlloc_v2().unwrap();
    let mut at = 0;
    // SAFETY: the result lives.
    ANSWER.store(unsafe { function(&raw mut at, 512) }, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn called_back(_: CUstream, code: CUresult, argument: *mut c_void) {
    ANSWER.store(code, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
    if !argument.is_null() {
        // SAFETY: takes nothing.
        unsafe { allocates(argument) };
    }
}

impl Machine {
    fn callback(&self, stream: CUstream, calls_driver: bool) {
        let function = self.driver.cuStreamAddCallback().unwrap();
        let argument = if calls_driver { std::ptr::dangling_mut() } else { std::ptr::null_mut() };
        // SAFETY: the argument is only compared.
        assert_eq!(unsafe { function(stream, Some(called_back), argument, 0) }, CUDA_SUCCESS);
    }
}

fn fresh() -> Machine {
    let machine = ready();
    ANSWER.store(-1, Ordering::SeqCst);
    CALLS.store(0, Ordering::SeqCst);
    machine
}

/// "The host function must not make any CUDA API calls. Attempting to use a CUDA API may result in
/// CUDA_ERROR_NOT_PERMITTED" (cuLaunchHostFunc).
#[test]
fn a_host_function_may_not_call_the_driver() {
    let machine = fresh();
    let stream = stream(&machine);
    let calls: [(&str, &dyn Fn()); 3] = [
        ("host function", &|| {
            machine.host_function(stream, Some(allocates), std::ptr::null_mut()).unwrap();
        }),
        ("kernel", &|| {
            assert_eq!(machine.steer.launch(stream.cast(), allocates, std::ptr::null_mut()), 0);
        }),
        ("callback", &|| machine.callback(stream, true)),
    ];
    for (count, (name, launch)) in (1..).zip(calls) {
        launch();
        assert_eq!(ANSWER.swap(-1, Ordering::SeqCst), CUDA_ERROR_NOT_PERMITTED, "{name}");
        let texts = machine.steer.misuse_texts();
        assert_eq!(texts.len(), count, "{name}: {texts:?}");
        assert!(texts[count - 1].ends_with("calls cuMemAlloc_v2"), "{}", texts[count - 1]);
    }
    assert_eq!(machine.steer.live(steer::ALLOCATIONS), 0);
    // Afterwards the thread may call again.
    machine.alloc(512).unwrap();
}

unsafe extern "C" fn synchronizes(stream: *mut c_void) {
    let function = Driver::load().unwrap().cuStreamSynchronize().unwrap();
    // SAFETY: the stream exists.
    ANSWER.store(unsafe { function(stream.cast()) }, Ordering::SeqCst);
}

/// "[...] but this is not required" (cuLaunchHostFunc).
#[test]
fn a_host_function_may_be_let_call_the_driver() {
    let machine = fresh();
    machine.steer.set(steer::HOST_FUNCTIONS_CALL, 1);
    let (own, other) = (stream(&machine), stream(&machine));
    machine.host_function(own, Some(allocates), std::ptr::null_mut()).unwrap();
    assert_eq!(ANSWER.swap(-1, Ordering::SeqCst), CUDA_SUCCESS);
    assert_eq!(machine.steer.live(steer::ALLOCATIONS), 1);
    machine.host_function(own, Some(synchronizes), other.cast()).unwrap();
    assert_eq!(ANSWER.swap(-1, Ordering::SeqCst), CUDA_SUCCESS);
    assert_eq!(machine.steer.misuse_texts(), [""; 0]);
    machine.host_function(own, Some(synchronizes), own.cast()).unwrap();
    assert_eq!(ANSWER.swap(-1, Ordering::SeqCst), CUDA_ERROR_NOT_PERMITTED);
    assert_eq!(
        machine.steer.misuse_texts(),
        ["a host function or simulated kernel waits for its own stream"]
    );
}

/// "The function will not be called in the event of an error in the CUDA context" (cuLaunchHostFunc); "In the event of a
/// device error, all subsequently executed callbacks will receive an appropriate CUresult" (cuStreamAddCallback).
#[test]
fn a_failed_context_calls_callbacks_only() {
    let machine = fresh();
    let stream = stream(&machine);
    machine.hold(stream);
    machine.host_function(stream, Some(allocates), std::ptr::null_mut()).unwrap();
    machine.callback(stream, false);
    machine.steer.make_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
    machine.steer.release_all();
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    assert_eq!(ANSWER.load(Ordering::SeqCst), CUDA_ERROR_ILLEGAL_ADDRESS);
}
