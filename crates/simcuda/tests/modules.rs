//! Modules of PTX, and launches of the kernels that the simulation knows. Nothing is compiled. The comments quote
//! cuda.h of CUDA 13.

mod common;
use common::*;

use std::ffi::{CString, c_char};

const PTX: &str = "// by hand
.version 6.4
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 at, .param .u32 words, .param .u32 value) { ret; }
.visible .entry expect(.param .u64 at, .param .u32 words, .param .u32 value, .param .u64 wrong) { ret; }
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u32 words) { ret; }
.visible .entry delay(.param .u64 nanoseconds) { ret; }
.visible .entry own(.param .u64 at) { ret; }";

fn load(machine: &Machine, text: &[u8]) -> Answer<CUmodule> {
    let mut module = std::ptr::null_mut();
    let text = CString::new(text).unwrap();
    let function = machine.driver.cuModuleLoadData().unwrap();
    // SAFETY: the result and the text live.
    answer(unsafe { function(&raw mut module, text.as_ptr().cast()) })?;
    Ok(module)
}

fn function(machine: &Machine, module: CUmodule, name: &str) -> Answer<CUfunction> {
    let mut found = std::ptr::null_mut();
    let name = CString::new(name).unwrap();
    let get = machine.driver.cuModuleGetFunction().unwrap();
    // SAFETY: the result and the name live.
    answer(unsafe { get(&raw mut found, module, name.as_ptr().cast::<c_char>()) })?;
    Ok(found)
}

/// One block of one thread.
fn launch(machine: &Machine, kernel: CUfunction, stream: CUstream, arguments: &[u64]) -> Answer {
    launch_as(machine, kernel, stream, [1; 6], arguments, false)
}

fn launch_as(
    machine: &Machine,
    kernel: CUfunction,
    stream: CUstream,
    [x, y, z, of_x, of_y, of_z]: [u32; 6],
    arguments: &[u64],
    extra: bool,
) -> Answer {
    let launch = machine.driver.cuLaunchKernel().unwrap();
    let mut places: Vec<_> =
        arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect();
    let parameters = if places.is_empty() { std::ptr::null_mut() } else { places.as_mut_ptr() };
    let mut none = [std::ptr::null_mut()];
    let extra = if extra { none.as_mut_ptr() } else { std::ptr::null_mut() };
    // SAFETY: the arguments live, and each is at least as long as the parameter.
    answer(unsafe { launch(kernel, x, y, z, of_x, of_y, of_z, 0, stream, parameters, extra) })
}

fn kernels<const COUNT: usize>(machine: &Machine, names: [&str; COUNT]) -> [CUfunction; COUNT] {
    let module = load(machine, PTX.as_bytes()).unwrap();
    names.map(|name| function(machine, module, name).unwrap())
}

fn word(machine: &Machine, at: CUdeviceptr) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|byte| machine.byte(at + byte)))
}

#[test]
fn known_kernels_work_on_memory_when_their_turn_comes() {
    let machine = ready();
    let [fill, expect, copy] = kernels(&machine, ["fill", "expect", "copy"]);
    let (stream, memory, wrong) = (stream(&machine), machine.alloc(8192).unwrap(), machine.alloc(4).unwrap());
    machine.hold(stream);
    // Only as many bytes are taken of an argument as its parameter has.
    launch(&machine, fill, stream, &[memory, 7 << 32 | 1000, 9 << 32 | 0x1234_5678]).unwrap();
    launch(&machine, copy, stream, &[memory + 4000, memory, 10]).unwrap();
    launch(&machine, expect, stream, &[memory, 1012, 0x1234_5678, wrong]).unwrap();
    launch(&machine, expect, stream, &[memory, 1010, 0x1234_5678, wrong]).unwrap();
    assert_eq!((word(&machine, memory), machine.steer.pending(stream.cast())), (0, 4));
    machine.stream_synchronize(stream).unwrap();
    assert_eq!((word(&machine, memory + 3996), word(&machine, memory + 4040)), (0x1234_5678, 0));
    assert_eq!(word(&machine, wrong), 2);
    machine.was_well_used();
    // "Any further CUDA work will return the same error" (CUDA_ERROR_ILLEGAL_ADDRESS).
    launch(&machine, fill, stream, &[memory, 4096, 0]).unwrap();
    assert_eq!(machine.stream_synchronize(stream), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_kernel_is_captured() {
    let machine = ready();
    let [fill] = kernels(&machine, ["fill"]);
    let (stream, memory) = (stream(&machine), machine.alloc(512).unwrap());
    machine.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    launch(&machine, fill, stream, &[memory, 1, 5]).unwrap();
    let executable = machine.instantiate(machine.end_capture(stream).unwrap(), 0).unwrap();
    assert_eq!(word(&machine, memory), 0);
    machine.graph_launch(executable, stream).unwrap();
    assert_eq!(word(&machine, memory), 5);
}

/// Two streams that are busy at the same time, of simulated time: what each does stands in the order of that time,
/// and a race between them is one at every run.
#[test]
fn delays_put_the_work_of_streams_in_an_order() {
    let machine = ready();
    let [fill, expect, delay] = kernels(&machine, ["fill", "expect", "delay"]);
    let (memory, wrong) = (machine.alloc(512).unwrap(), machine.alloc(4).unwrap());
    let [one, other] = [(); 2].map(|()| stream(&machine));
    let use_it = |stream, value, before: u64| {
        launch(&machine, delay, stream, &[before]).unwrap();
        launch(&machine, fill, stream, &[memory, 10, value]).unwrap();
        launch(&machine, delay, stream, &[1000]).unwrap();
        launch(&machine, expect, stream, &[memory, 10, value, wrong]).unwrap();
    };
    // In between: the second fill comes before the first one's expectation.
    use_it(one, 1, 1000);
    use_it(other, 2, 1500);
    assert_eq!(
        (machine.steer.pending(one.cast()), machine.stream_query(one)),
        (4, Err(CUDA_ERROR_NOT_READY))
    );
    machine.synchronize().unwrap();
    assert_eq!(word(&machine, wrong), 10);
    // One after the other by time, and by an event.
    use_it(one, 3, 1000);
    use_it(other, 4, 3000);
    machine.synchronize().unwrap();
    let event = machine.event(0).unwrap();
    use_it(one, 5, 5000);
    machine.record(event, one).unwrap();
    machine.stream_wait(other, event, 0).unwrap();
    use_it(other, 6, 0);
    machine.synchronize().unwrap();
    assert_eq!((word(&machine, wrong), word(&machine, memory)), (10, 6));
    // Repeated queries succeed in the end, and waiting for one stream waits for no other.
    launch(&machine, delay, one, &[10_000]).unwrap();
    launch(&machine, delay, other, &[1_000_000]).unwrap();
    let asked = (0..100).take_while(|_| machine.stream_query(one).is_err()).count();
    assert!((10..=11).contains(&asked), "{asked} microseconds");
    launch(&machine, delay, one, &[1000]).unwrap();
    machine.stream_synchronize(one).unwrap();
    assert_eq!(machine.stream_query(other), Err(CUDA_ERROR_NOT_READY));
    // A held stream is stepped through them.
    machine.hold(one);
    use_it(one, 7, 1 << 60);
    assert_eq!((machine.steer.step(one.cast(), 2), word(&machine, memory)), (2, 7));
    machine.release(one);
    machine.synchronize().unwrap();
    machine.was_well_used();
}

#[test]
fn what_is_no_module_and_no_kernel() {
    let machine = ready();
    assert_eq!(load(&machine, b"hello"), Err(CUDA_ERROR_INVALID_PTX));
    for binary in [&b"\x7fELF and more"[..], &[0x50, 0xed, 0x55, 0xba, 1]] {
        assert_eq!(load(&machine, binary), Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    let module = load(&machine, PTX.as_bytes()).unwrap();
    // "If no function of that name exists, cuModuleGetFunction() returns CUDA_ERROR_NOT_FOUND."
    assert_eq!(function(&machine, module, "missing"), Err(CUDA_ERROR_NOT_FOUND));
    let [own, delay] = ["own", "delay"].map(|name| function(&machine, module, name).unwrap());
    assert_eq!(function(&machine, module, "own"), Ok(own));
    let stream = stream(&machine);
    assert_eq!(launch(&machine, own, stream, &[0]), Err(CUDA_ERROR_NOT_SUPPORTED), "nothing runs its body");
    for shape in [[0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 1], [1, 1, 1, 1024, 2, 1]] {
        assert_eq!(launch_as(&machine, delay, stream, shape, &[0], false), Err(CUDA_ERROR_INVALID_VALUE));
    }
    // "If kernel parameters are specified with both kernelParams and extra".
    let both = launch_as(&machine, delay, stream, [1; 6], &[0], true);
    assert_eq!(
        (both, launch(&machine, delay, stream, &[])),
        (Err(CUDA_ERROR_INVALID_VALUE), Err(CUDA_ERROR_INVALID_VALUE))
    );
    machine.was_well_used();
    // Gone with the module, and with the context.
    machine.module_unload(module).unwrap();
    assert_eq!(machine.module_unload(module), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(launch(&machine, delay, stream, &[0]), Err(CUDA_ERROR_INVALID_HANDLE));
    let [delay] = kernels(&machine, ["delay"]);
    machine.primary_reset(0).unwrap();
    machine.enter(0);
    assert_eq!(launch(&machine, delay, LEGACY, &[0]), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.steer.misuses(), 3);
}

#[test]
fn a_kernel_belongs_to_its_context() {
    let machine = ready();
    let [delay] = kernels(&machine, ["delay"]);
    machine.context(0, 0).unwrap();
    assert_eq!(launch(&machine, delay, LEGACY, &[0]), Err(CUDA_ERROR_INVALID_HANDLE));
}
