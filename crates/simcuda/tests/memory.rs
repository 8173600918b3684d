//! Device memory, pools, pointers, and what the host sees of them.

mod common;
use common::*;

#[test]
fn memory_is_aligned_to_512_and_counts() {
    let machine = ready();
    assert_eq!(machine.mem_info().unwrap(), (256 << 20, 256 << 20));
    assert_eq!(machine.alloc(0), Err(CUDA_ERROR_INVALID_VALUE));
    let small = machine.alloc(1).unwrap();
    let large = machine.alloc((100 << 20) + 512).unwrap();
    assert_eq!((small % 512, large % 512), (0, 0));
    // No better than promised.
    assert_ne!((small % 4096, large % 4096), (0, 0));
    assert_eq!(machine.steer.used(0), 512 + (100 << 20) + 512);
    assert_eq!(machine.alloc(156 << 20), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(machine.alloc(usize::MAX), Err(CUDA_ERROR_OUT_OF_MEMORY));
    machine.free(small).unwrap();
    assert_eq!(machine.free(small), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.free(large + 512), Err(CUDA_ERROR_INVALID_VALUE));
    machine.free(0).unwrap();
    machine.free(large).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::ALLOCATIONS)), (0, 0));
    let all = machine.alloc(256 << 20).unwrap();
    machine.free(all).unwrap();
    machine.was_well_used();
}

#[test]
fn addresses_come_again_or_not() {
    let machine = ready();
    let again = |machine: &Machine| {
        let first = machine.alloc(4096).unwrap();
        machine.free(first).unwrap();
        let second = machine.alloc(4096).unwrap();
        machine.free(second).unwrap();
        first == second
    };
    assert!(again(&machine));
    machine.steer.set(steer::REUSE_ADDRESSES, 0);
    assert!(!again(&machine));
}

#[test]
fn freed_memory_is_poison_where_a_test_wants_to_read_it() {
    let machine = ready();
    machine.steer.set(steer::POISON, 1);
    let memory = machine.alloc(64 << 10).unwrap();
    machine.set8(memory, 7, 64 << 10).unwrap();
    machine.free(memory).unwrap();
    assert_eq!((machine.byte(memory), machine.byte(memory + 65535)), (0xdd, 0xdd));
}

#[test]
fn each_device_has_addresses_of_its_own_and_peers_must_be_enabled() {
    let machine = machine(2);
    let first = machine.enter(0);
    let here = machine.alloc(4096).unwrap();
    machine.enter(1);
    let there = machine.alloc(4096).unwrap();
    assert!(here.abs_diff(there) > 1 << 30);
    assert_eq!((machine.steer.used(0), machine.steer.used(1)), (4096, 4096));
    machine.enable_peer(first, 0).unwrap();
    assert_eq!(machine.enable_peer(first, 0), Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
    machine.fill(LEGACY, here, 8, 5).unwrap();
    machine.was_well_used();
    machine.set_current(first).unwrap();
    // Copies need no access.
    machine.copy_async(there, here, 8, LEGACY).unwrap();
    machine.was_well_used();
    machine.fill(LEGACY, there, 8, 5).unwrap();
    assert!(machine.steer.misuse_texts()[0].contains("no peer"));
}

#[test]
fn copies_block_as_documented() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc(4096).unwrap();
    machine.hold(stream);
    // From pageable memory: staged at the call.
    let mut pageable = vec![9_u8; 64];
    machine.copy_async(memory, pageable.as_ptr().addr() as u64, 64, stream).unwrap();
    pageable.fill(1);
    assert_eq!(machine.steer.pending(stream.cast()), 1);
    // To pageable memory: returns when it is done.
    machine.copy_async(pageable.as_mut_ptr().addr() as u64, memory, 64, stream).unwrap();
    assert_eq!((pageable[63], machine.steer.pending(stream.cast())), (9, 0));
    // Pinned memory is read when the copy's turn comes.
    let pinned = machine.pinned(64, 0).unwrap() as u64;
    machine.copy_async(memory, pinned, 64, stream).unwrap();
    // SAFETY: the memory was just allocated.
    unsafe { (pinned as *mut u8).write(4) };
    machine.stream_synchronize(stream).unwrap();
    assert_eq!(machine.byte(memory), 4);
    machine.pinned_free(pinned as *mut _).unwrap();
    // Within the host: returns when it is done. A fill of pinned memory, too.
    let pinned = machine.pinned(64, 0).unwrap() as u64;
    machine.copy_async(pinned, pageable.as_ptr().addr() as u64, 64, stream).unwrap();
    assert_eq!((machine.byte(pinned), machine.steer.pending(stream.cast())), (9, 0));
    machine.hold(CU_STREAM_LEGACY);
    machine.set8(pinned, 3, 1).unwrap();
    machine.set8(memory, 3, 1).unwrap();
    assert_eq!((machine.byte(pinned), machine.byte(memory)), (3, 4));
    machine.release(CU_STREAM_LEGACY);
    machine.pinned_free(pinned as *mut _).unwrap();
    // Synchronous, on the legacy default stream, which waits for a blocking one.
    let blocking = machine.stream(CU_STREAM_DEFAULT).unwrap();
    machine.hold(blocking);
    machine.set8_async(memory, 5, 64, blocking).unwrap();
    machine.copy(pageable.as_mut_ptr().addr() as u64, memory, 64).unwrap();
    assert_eq!((pageable[63], machine.steer.pending(blocking.cast())), (5, 0));
    // But within a device the host does not wait.
    machine.set8_async(memory, 6, 64, blocking).unwrap();
    machine.copy(memory + 64, memory, 64).unwrap();
    assert_eq!((machine.byte(memory + 64), machine.steer.pending(blocking.cast())), (0, 1));
    machine.synchronize().unwrap();
    assert_eq!(machine.byte(memory + 64), 6);
    machine.was_well_used();
}

#[test]
fn a_pool_s_memory_is_freed_in_stream_order() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let memory = machine.alloc_async(200 << 20, stream).unwrap();
    machine.hold(stream);
    machine.fill(stream, memory, 8, 3).unwrap();
    machine.free_async(memory, stream).unwrap();
    assert_eq!(machine.free_async(memory, stream), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.steer.used(0), 200 << 20);
    // What is freed and not yet done is waited for where there is nothing else.
    let next = machine.alloc_async(200 << 20, stream).unwrap();
    assert_eq!(machine.steer.used(0), 200 << 20);
    machine.free_async(next, stream).unwrap();
    machine.synchronize().unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.was_well_used();
    machine.steer.set(steer::POOLS, 0);
    machine.steer.reset();
    machine.init().unwrap();
    machine.enter(0);
    assert_eq!(machine.alloc_async(512, LEGACY), Err(CUDA_ERROR_NOT_SUPPORTED));
}

#[test]
fn pointers_tell_what_they_are() {
    let machine = ready();
    let memory = machine.alloc(5000).unwrap();
    let function = machine.driver.cuMemGetAddressRange_v2().unwrap();
    let (mut base, mut size) = (0, 0);
    // SAFETY: the results live.
    let code = unsafe { function(&raw mut base, &raw mut size, memory + 4999) };
    assert_eq!((code, base, size), (CUDA_SUCCESS, memory, 5000));
    // SAFETY: the results live.
    let code = unsafe { function(&raw mut base, &raw mut size, memory + 5000) };
    assert_eq!(code, CUDA_ERROR_NOT_FOUND);

    let attribute = |address: u64, attribute: u32| -> Answer<u64> {
        let mut value = 0_u64;
        let function = machine.driver.cuPointerGetAttribute().unwrap();
        // SAFETY: no attribute here is longer than 8 bytes.
        answer(unsafe { function((&raw mut value).cast(), attribute, address) })?;
        Ok(value)
    };
    let context = machine.current().unwrap() as u64;
    assert_eq!(attribute(memory + 1, CU_POINTER_ATTRIBUTE_CONTEXT), Ok(context));
    assert_eq!(attribute(memory, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), Ok(CU_MEMORYTYPE_DEVICE.into()));
    assert_eq!(attribute(memory, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), Ok(1));
    assert_eq!(attribute(memory, CU_POINTER_ATTRIBUTE_HOST_POINTER), Err(CUDA_ERROR_INVALID_VALUE));
    let managed = machine.managed(64, CU_MEM_ATTACH_GLOBAL).unwrap();
    assert_eq!(attribute(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED), Ok(1));
    let local = 0_u8;
    let local = (&raw const local).addr() as u64;
    assert_eq!(attribute(local, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), Err(CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn the_device_says_that_it_is_simulated() {
    let machine = machine(3);
    assert_eq!(machine.device_count(), Ok(3));
    let mut name = [0_u8; 64];
    let function = machine.driver.cuDeviceGetName().unwrap();
    // SAFETY: the buffer has that many bytes.
    assert_eq!(unsafe { function(name.as_mut_ptr().cast(), 64, 2) }, CUDA_SUCCESS);
    assert!(name.starts_with(b"simcuda (simulated device)\0"));
    // SAFETY: the buffer has that many bytes.
    assert_eq!(unsafe { function(name.as_mut_ptr().cast(), 64, 3) }, CUDA_ERROR_INVALID_DEVICE);
    assert!(machine.steer.log_text().contains("cuDeviceGetName("));
    // Numbers of CUdevice_attribute: what a kernel's launch is made of may not be 0.
    let function = machine.driver.cuDeviceGetAttribute().unwrap();
    for (attribute, wanted) in [(1, 1024), (4, 64), (5, i32::MAX), (7, 65535), (10, 32), (12, 65536), (75, 9)]
    {
        let mut value = 0;
        // SAFETY: the result lives.
        assert_eq!(unsafe { function(&raw mut value, attribute, 1) }, CUDA_SUCCESS);
        assert_eq!(value, wanted, "attribute {attribute}");
    }
    let without = machine.steer;
    without.configure(0, 0);
    assert_eq!(machine.init(), Err(CUDA_ERROR_NO_DEVICE));
}
