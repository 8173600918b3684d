//! Which copies have arrived when they return: "API synchronization behavior" in the CUDA Driver API manual.

mod common;
use common::*;

const BYTES: usize = 64;

/// What a synchronous copy to the device answers, and whether it has arrived, while the default stream is held with work of
/// its own before it and with a blocking stream's.
fn arrives(machine: &Machine, from: u64, prepare: impl Fn(u64)) -> (bool, u64) {
    let to = machine.alloc(512).unwrap();
    prepare(to);
    let blocking = machine.stream(CU_STREAM_DEFAULT).unwrap();
    for stream in [blocking, LEGACY] {
        machine.hold(stream);
        machine.set8_async(to, 1, 1, stream).unwrap();
    }
    machine.copy(to, from, BYTES).unwrap();
    assert_eq!(machine.steer.pending(blocking.cast()), 0, "it synchronizes the stream first");
    let result = (machine.byte(to) == 0x77, machine.steer.pending(LEGACY.cast()));
    machine.steer.release_all();
    assert_eq!(machine.byte(to), 0x77);
    machine.free(to).unwrap();
    machine.stream_destroy(blocking).unwrap();
    result
}

/// "For transfers from pageable host memory to device memory, a stream sync is performed before the copy is initiated. The
/// function will return once the pageable buffer has been copied to the staging memory for DMA transfer to device memory, but
/// the DMA to final destination may not have completed. For transfers from pinned host memory to device memory, the function
/// is synchronous with respect to the host."
#[test]
fn a_copy_from_pageable_memory_may_return_before_it_has_arrived() {
    let machine = ready();
    let mut pageable = [0x77_u8; BYTES];
    let at = pageable.as_mut_ptr().addr() as u64;
    assert_eq!(arrives(&machine, at, |_| ()), (false, 1));
    // It was staged: what the buffer holds later does not count.
    let to = machine.alloc(512).unwrap();
    machine.hold(LEGACY);
    machine.copy(to, at, BYTES).unwrap();
    pageable.fill(0);
    machine.steer.release_all();
    assert_eq!(machine.byte(to), 0x77);
    let pinned = machine.pinned(BYTES, 0).unwrap();
    // SAFETY: it has as many bytes.
    unsafe { pinned.cast::<u8>().write_bytes(0x77, BYTES) };
    assert_eq!(arrives(&machine, pinned.addr() as u64, |_| ()), (true, 0));
    machine.was_well_used();
}

/// "When set, the region of memory that ptr points to is guaranteed to always synchronize memory operations that are
/// synchronous" (cuPointerSetAttribute).
#[test]
fn memory_that_always_synchronizes_has_its_copies_when_they_return() {
    let machine = ready();
    let pageable = [0x77_u8; BYTES];
    let synchronizes = |at: u64| {
        let function = machine.driver.cuPointerSetAttribute().unwrap();
        let on = 1_u32;
        // SAFETY: the value lives.
        let code = unsafe { function((&raw const on).cast(), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) };
        assert_eq!(code, CUDA_SUCCESS);
    };
    assert_eq!(arrives(&machine, pageable.as_ptr().addr() as u64, synchronizes), (true, 0));
    machine.was_well_used();
}
