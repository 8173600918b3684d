//! Failures, latencies, versions, and the end.

mod common;
use common::*;
use std::ffi::{CStr, CString, c_int, c_void};

fn order(machine: &Machine, function: Option<&CStr>, nth: u64, code: c_int) {
    let name = function.map_or(std::ptr::null(), CStr::as_ptr);
    assert_eq!(machine.steer.fail(name, nth, code), 0);
}

#[test]
fn the_nth_call_fails_and_does_nothing() {
    let machine = ready();
    order(&machine, Some(c"cuMemAlloc"), 2, CUDA_ERROR_OUT_OF_MEMORY);
    let first = machine.alloc(512).unwrap();
    assert_eq!(machine.alloc(512), Err(CUDA_ERROR_OUT_OF_MEMORY));
    let third = machine.alloc(512).unwrap();
    assert_eq!((machine.steer.struck(), machine.steer.live(steer::ALLOCATIONS)), (1, 2));
    // Any function.
    order(&machine, None, 2, CUDA_ERROR_UNKNOWN);
    machine.free(first).unwrap();
    assert_eq!(machine.free(third), Err(CUDA_ERROR_UNKNOWN));
    machine.free(third).unwrap();
    order(&machine, Some(c"cuMemFree_v2"), 1, CUDA_ERROR_UNKNOWN);
    machine.steer.clear_faults();
    let last = machine.alloc(512).unwrap();
    machine.free(last).unwrap();
    assert_eq!(machine.steer.fail(c"cuNoSuchFunction".as_ptr(), 1, 1), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn some_failures_stay() {
    let machine = machine(2);
    let first = machine.enter(0);
    machine.enter(1);
    order(&machine, Some(c"cuMemAlloc"), 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    let stream = machine.stream(0).unwrap();
    assert_eq!(machine.alloc(512), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(machine.mem_info(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(machine.stream_query(stream), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    // Another context is not concerned.
    machine.set_current(first).unwrap();
    machine.alloc(512).unwrap();
    machine.primary_reset(1).unwrap();
    machine.enter(1);
    machine.alloc(512).unwrap();
}

#[test]
fn calls_are_counted_logged_and_can_take_long() {
    let machine = ready();
    machine.steer.clear_log();
    assert_eq!(machine.steer.all_calls(), 0);
    let memory = machine.alloc(0x1234).unwrap();
    machine.free(memory).unwrap();
    assert_eq!(machine.alloc(0), Err(CUDA_ERROR_INVALID_VALUE));
    let calls = [c"cuMemAlloc", c"cuMemAlloc_v2", c"cuMemFree_v2"].map(|name| machine.steer.calls_of(name));
    assert_eq!((calls, machine.steer.all_calls()), ([2, 2, 1], 3));
    let log = machine.steer.log_text();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 4, "{log}");
    assert!(lines[1].contains("cuMemAlloc_v2(") && lines[1].contains("0x1234) = 0"), "{log}");
    assert!(lines[2].ends_with(&format!("cuMemFree_v2({memory:#x}) = 0")), "{log}");
    assert!(lines[3].ends_with(" = 1"), "{log}");

    machine.steer.delay(c"cuMemAlloc".as_ptr(), 30_000_000);
    let start = std::time::Instant::now();
    let memory = machine.alloc(512).unwrap();
    assert!(start.elapsed().as_millis() >= 30);
    machine.steer.delay(c"cuMemAlloc".as_ptr(), 0);
    machine.free(memory).unwrap();
}

/// A name without a version that is a symbol too, of the oldest version, means all versions: for counts as for failures.
#[test]
fn a_name_without_a_version_means_all_versions() {
    let machine = ready();
    let context = machine.current().unwrap();
    machine.steer.clear_log();
    machine.push(context).unwrap();
    machine.pop().unwrap();
    let event = machine.event(0).unwrap();
    machine.event_destroy(event).unwrap();
    let names = [c"cuCtxPushCurrent", c"cuCtxPopCurrent", c"cuEventDestroy", c"cuEventDestroy_v2"];
    assert_eq!(names.map(|name| machine.steer.calls_of(name)), [1; 4]);
    let old = machine.driver.cuCtxPushCurrent().unwrap();
    // SAFETY: a context that lives.
    assert_eq!(unsafe { old(context) }, CUDA_SUCCESS);
    machine.pop().unwrap();
    let names = [c"cuCtxPushCurrent", c"cuCtxPushCurrent_v2"];
    assert_eq!(names.map(|name| machine.steer.calls_of(name)), [2, 1]);
    order(&machine, Some(c"cuCtxPushCurrent"), 1, CUDA_ERROR_UNKNOWN);
    assert_eq!(machine.push(context), Err(CUDA_ERROR_UNKNOWN));
}

#[test]
fn after_the_end_every_call_says_so() {
    let machine = ready();
    let memory = machine.alloc(512).unwrap();
    machine.steer.shutdown();
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_DEINITIALIZED));
    assert_eq!(machine.init(), Err(CUDA_ERROR_DEINITIALIZED));
    assert_eq!(machine.current(), Err(CUDA_ERROR_DEINITIALIZED));
    machine.steer.reset();
    machine.init().unwrap();
}

/// Asks for a function: with five arguments, and with four.
fn ask(machine: &Machine, name: &str, version: c_int, flags: u64) -> (CUresult, usize, u32, CUresult) {
    let (five, four) = (machine.driver.cuGetProcAddress_v2(), machine.driver.cuGetProcAddress());
    let name = CString::new(name).unwrap();
    let (mut address, mut again, mut status) = (std::ptr::null_mut::<c_void>(), std::ptr::null_mut(), 9);
    // SAFETY: a C string, and results that live.
    let code = unsafe { five.unwrap()(name.as_ptr(), &raw mut address, version, flags, &raw mut status) };
    // SAFETY: a C string, and a result that lives.
    let fourth = unsafe { four.unwrap()(name.as_ptr(), &raw mut again, version, flags) };
    assert_eq!(address, again);
    // SAFETY: a C string, and a result that lives; the status may be NULL.
    unsafe { five.unwrap()(name.as_ptr(), &raw mut again, version, flags, std::ptr::null_mut()) };
    assert_eq!(address, again);
    (code, address.addr(), status, fourth)
}

#[test]
fn functions_are_found_by_name_and_version() {
    let machine = ready();
    let twins = u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    let (code, release, status, fourth) = ask(&machine, "cuDevicePrimaryCtxRelease", 12000, 0);
    assert_eq!((code, status, fourth), (CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS, CUDA_SUCCESS));
    assert_eq!(release, machine.driver.cuDevicePrimaryCtxRelease_v2().unwrap() as usize);
    let (_, before, ..) = ask(&machine, "cuDevicePrimaryCtxRelease", 10000, 0);
    assert_eq!(before, machine.driver.cuDevicePrimaryCtxRelease().unwrap() as usize);
    // The lookup itself, by the two numbers of arguments.
    let (_, five, ..) = ask(&machine, "cuGetProcAddress", 12000, 0);
    assert_eq!(five, machine.driver.cuGetProcAddress_v2().unwrap() as usize);
    let (_, four, ..) = ask(&machine, "cuGetProcAddress", 11030, 0);
    assert_eq!(four, machine.driver.cuGetProcAddress().unwrap() as usize);
    // Per-thread twins, only where they are asked for.
    let (_, plain, ..) = ask(&machine, "cuMemAllocAsync", 12000, 0);
    assert_eq!(plain, machine.driver.cuMemAllocAsync().unwrap() as usize);
    let (_, twin, ..) = ask(&machine, "cuMemAllocAsync", 12000, twins);
    assert!(twin != plain && twin != 0);
    assert_eq!(ask(&machine, "cuMemAlloc", 12000, twins).1, ask(&machine, "cuMemAlloc", 12000, 0).1);
    // What is not there.
    let missing = (CUDA_SUCCESS, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
    assert_eq!(ask(&machine, "cuNoSuchFunction", 12000, 0), missing);
    assert_eq!(ask(&machine, "", 12000, 0), missing);
    let too_old = (CUDA_SUCCESS, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, CUDA_ERROR_NOT_FOUND);
    assert_eq!(ask(&machine, "cuMemCreate", 10010, 0), too_old);
}

#[test]
fn an_old_driver_has_no_virtual_memory_management() {
    let machine = ready();
    machine.steer.set(steer::DRIVER_VERSION, 10010);
    let mut version = 0;
    let function = machine.driver.cuDriverGetVersion().unwrap();
    // SAFETY: the result lives.
    assert_eq!(unsafe { function(&raw mut version) }, CUDA_SUCCESS);
    assert_eq!(version, 10010);
    machine.alloc(512).unwrap();
    // The symbol is in the library; a driver of that age would not have it.
    assert_eq!(machine.physical(2 << 20), Err(CUDA_ERROR_NOT_SUPPORTED));
    machine.steer.set(steer::DRIVER_VERSION, 12000);
    let (_, address, status, _) = ask(&machine, "cuCtxGetDevice", 13000, 0);
    assert_eq!((address, status), (machine.driver.cuCtxGetDevice().unwrap() as usize, 0));
}

#[test]
fn a_twin_s_null_stream_is_the_calling_thread_s() {
    let machine = ready();
    let twins = u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    let (_, address, ..) = ask(&machine, "cuMemsetD8Async", 12000, twins);
    // SAFETY: the twin has the function's type.
    let twin = unsafe { std::mem::transmute::<usize, fns::cuMemsetD8Async>(address) };
    let memory = machine.alloc(4096).unwrap();
    machine.hold(CU_STREAM_PER_THREAD);
    // SAFETY: it takes numbers.
    assert_eq!(unsafe { twin(memory, 1, 1, LEGACY) }, CUDA_SUCCESS);
    assert_eq!(machine.steer.pending(CU_STREAM_PER_THREAD.cast()), 1);
    assert_eq!(machine.steer.pending(LEGACY.cast()), 0);
    assert_eq!(machine.steer.calls_of(c"cuMemsetD8Async_ptsz"), 1);
    machine.release(CU_STREAM_PER_THREAD);
    assert_eq!(machine.byte(memory), 1);
}

#[test]
fn a_function_that_is_not_simulated_says_so() {
    let machine = ready();
    let function = machine.driver.cuMemPoolExportPointer().unwrap();
    let mut data = CUmemPoolPtrExportData::default();
    // SAFETY: the result lives, and the address is not examined.
    let code = unsafe { function(&raw mut data, 0) };
    assert_eq!((code, machine.steer.calls_of(c"cuMemPoolExportPointer")), (CUDA_ERROR_NOT_SUPPORTED, 1));
}

#[test]
fn handles_come_again_where_a_test_wants_it() {
    let machine = ready();
    machine.steer.set(steer::RECYCLE_HANDLES, 1);
    let stream = machine.stream(0).unwrap();
    machine.hold(stream);
    let memory = machine.alloc(64).unwrap();
    machine.fill(stream, memory, 8, 0x0101).unwrap();
    machine.stream_destroy(stream).unwrap();
    let again = machine.stream(0).unwrap();
    assert_eq!(again, stream);
    // It is another stream: the first one's work is not in it.
    assert_eq!(machine.steer.pending(again.cast()), 0);
    machine.stream_synchronize(again).unwrap();
    assert_eq!(machine.byte(memory), 0);
    machine.steer.release_all();
    assert_eq!(machine.byte(memory), 1);
}
