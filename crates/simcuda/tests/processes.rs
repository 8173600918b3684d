//! What needs another process: IPC, forks, and accesses that are to crash.

mod common;
use common::*;

use std::env;
use std::process::Command;

/// Runs one of the ignored tests below in a process of its own, and gives how it ended and what it said.
fn run(test: &str, word: &str) -> (std::process::ExitStatus, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env("SIMCUDA_WORD", word);
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status, said)
}

fn word() -> String {
    env::var("SIMCUDA_WORD").expect("run by the test above")
}

fn runs_well(test: &str, word: &str) {
    let (status, said) = run(test, word);
    assert!(status.success() && said.contains("1 passed"), "{status}\n{said}");
}

#[test]
fn an_ipc_handle_names_the_whole_allocation() {
    let machine = ready();
    machine.alloc(4096).unwrap();
    let memory = machine.alloc(10_000).unwrap();
    machine.set8(memory, 1, 10_000).unwrap();
    // An address inside loses its offset.
    let handle = machine.ipc_handle(memory + 5000).unwrap();
    assert_eq!(machine.ipc_open(handle, 1), Err(CUDA_ERROR_INVALID_CONTEXT));
    let hex: String = handle.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
    runs_well("the_importer", &hex);
    // It has written at the first byte, and at the last.
    assert_eq!([0, 1, 5000, 9999].map(|at| machine.byte(memory + at)), [2, 1, 1, 2]);

    let pool = machine.alloc_async(512, LEGACY).unwrap();
    let at = machine.address_reserve(2 << 20, 0, 0, 0).unwrap();
    let physical = machine.physical(2 << 20).unwrap();
    machine.map(at, 2 << 20, 0, physical, 0).unwrap();
    machine.allow(at, 2 << 20, 0).unwrap();
    for other in [pool, at, 4096] {
        assert_eq!(machine.ipc_handle(other).map(drop), Err(CUDA_ERROR_INVALID_VALUE));
    }
    machine.was_well_used();
}

#[test]
#[ignore = "run by an_ipc_handle_names_the_whole_allocation"]
fn the_importer() {
    let machine = ready();
    let mut handle = CUipcMemHandle::default();
    for (place, digits) in handle.reserved.iter_mut().zip(word().as_bytes().chunks(2)) {
        *place = u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap() as _;
    }
    assert_eq!(machine.ipc_open(handle, 0), Err(CUDA_ERROR_INVALID_VALUE));
    let memory = machine.ipc_open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).unwrap();
    assert_eq!(machine.ipc_open(handle, 1), Ok(memory));
    assert_eq!((machine.byte(memory), machine.byte(memory + 9999)), (1, 1));
    assert_eq!(machine.steer.used(0), 0);
    machine.set8(memory, 2, 1).unwrap();
    machine.set8(memory + 9999, 2, 1).unwrap();
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
    machine.ipc_close(memory).unwrap();
    machine.expect(LEGACY, memory, 1, 2).unwrap();
    machine.ipc_close(memory).unwrap();
    assert_eq!(machine.ipc_close(memory), Err(CUDA_ERROR_INVALID_VALUE));
    machine.was_well_used();
    let spoilt = CUipcMemHandle::default();
    assert_eq!(machine.ipc_open(spoilt, 1), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn an_ipc_handle_is_opened_by_one_context_of_a_device() {
    let machine = ready();
    let handles = [0; 2].map(|_| machine.ipc_handle(machine.alloc(4096).unwrap()).unwrap());
    let bytes = handles.iter().flat_map(|handle| handle.reserved);
    let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    runs_well("the_importing_contexts", &hex);
    machine.was_well_used();
}

/// "CUipcMemHandles from each CUdevice in a given process may only be opened by one CUcontext per CUdevice per other process."
/// "If the memory handle has already been opened by the current context, the reference count on the handle is incremented".
/// "cuDeviceCanAccessPeer can determine if a mapping is possible."
#[test]
#[ignore = "run by an_ipc_handle_is_opened_by_one_context_of_a_device"]
fn the_importing_contexts() {
    let machine = machine(2);
    let mut handles = [CUipcMemHandle::default(); 2];
    let places = handles.iter_mut().flat_map(|handle| handle.reserved.iter_mut());
    for (place, digits) in places.zip(word().as_bytes().chunks(2)) {
        *place = u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap() as _;
    }
    let [first, second] = handles;
    let context = machine.enter(0);
    let memory = machine.ipc_open(first, 1).unwrap();
    assert_eq!(machine.ipc_open(first, 1), Ok(memory));
    let other = machine.context(0, 0).unwrap();
    assert_eq!(machine.ipc_open(first, 1), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.ipc_open(second, 1), Err(CUDA_ERROR_INVALID_CONTEXT));
    machine.context_destroy(other).unwrap();
    // Another device's context maps it anew, if that device can access the memory.
    machine.enter(1);
    machine.steer.set(steer::PEERS, 0);
    assert_eq!(machine.ipc_open(first, 1), Err(CUDA_ERROR_MAP_FAILED));
    machine.steer.set(steer::PEERS, 1);
    let there = machine.ipc_open(first, 1).unwrap();
    assert_ne!(there, memory);
    machine.fill(LEGACY, there, 8, 5).unwrap();
    machine.set_current(context).unwrap();
    machine.expect(LEGACY, memory, 8, 5).unwrap();
    machine.was_well_used();
    // What the one device has opened is not the other's.
    machine.fill(LEGACY, there, 8, 5).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn physical_memory_is_shared_by_a_file() {
    let machine = ready();
    let properties = machine.properties(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    let handle = machine.create(2 << 20, &raw const properties, 0).unwrap();
    let mut file = -1_i32;
    let export = machine.driver.cuMemExportToShareableHandle().unwrap();
    // SAFETY: the result lives.
    let code = unsafe { export((&raw mut file).cast(), handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) };
    assert_eq!(code, CUDA_SUCCESS);
    let import = machine.driver.cuMemImportFromShareableHandle().unwrap();
    let mut imported = 0;
    // SAFETY: the result lives; the file comes as a number.
    let code = unsafe {
        import(&raw mut imported, file as usize as *mut _, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    };
    assert_eq!(code, CUDA_SUCCESS);
    let at = machine.address_reserve(4 << 20, 0, 0, 0).unwrap();
    machine.map(at, 2 << 20, 0, handle, 0).unwrap();
    machine.map(at + (2 << 20), 2 << 20, 0, imported, 0).unwrap();
    machine.allow(at, 4 << 20, 0).unwrap();
    machine.fill(LEGACY, at, 8, 9).unwrap();
    machine.expect(LEGACY, at + (2 << 20), 8, 9).unwrap();
    machine.was_well_used();
    // Memory of the usual kind cannot be exported.
    let plain = machine.physical(2 << 20).unwrap();
    // SAFETY: the result lives.
    let code = unsafe { export((&raw mut file).cast(), plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) };
    assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_forked_child_can_do_nothing() {
    let machine = ready();
    let memory = machine.alloc(512).unwrap();
    // SAFETY: the child calls what takes no lock that another thread might hold, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answers =
            [machine.free(memory), machine.alloc(512).map(drop), machine.init(), machine.synchronize()];
        let right = answers.iter().all(|answer| *answer == Err(CUDA_ERROR_NOT_INITIALIZED));
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(if right { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the result lives.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    machine.free(memory).unwrap();
}

#[test]
fn a_stray_access_crashes() {
    for place in ["behind", "freed", "unmapped", "no access"] {
        let (status, said) = run("the_crash", place);
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGSEGV), "{place}: {status}\n{said}");
    }
}

#[test]
#[ignore = "run by a_stray_access_crashes"]
fn the_crash() {
    let machine = ready();
    let at = machine.address_reserve(2 << 20, 0, 0, 0).unwrap();
    let memory = machine.alloc(512).unwrap();
    assert_eq!(machine.byte(memory + 511), 0);
    match &*word() {
        "behind" => machine.byte(memory + 512),
        "freed" => {
            machine.free(memory).unwrap();
            machine.byte(memory)
        }
        "unmapped" => machine.byte(at),
        _ => {
            let physical = machine.physical(2 << 20).unwrap();
            machine.map(at, 2 << 20, 0, physical, 0).unwrap();
            machine.byte(at)
        }
    };
}
