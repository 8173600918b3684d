//! Arrays, copies of rectangles, and the values that streams write and wait for.

mod common;
use common::*;

use std::ffi::c_void;

/// "The CUDA array can contain up to three dimensions"; here the memory counts, as much as the elements need.
#[test]
fn arrays_count_until_they_are_destroyed() {
    let machine = ready();
    let flat = CUDA_ARRAY_DESCRIPTOR { Width: 1024, Height: 512, Format: CU_AD_FORMAT_FLOAT, NumChannels: 4 };
    let array = machine.array(&raw const flat).unwrap();
    assert_eq!(machine.steer.used(0), 8 * MIB);
    let mut solid = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 256,
        Height: 256,
        Depth: 16,
        Format: CU_AD_FORMAT_UNSIGNED_INT8,
        NumChannels: 1,
        Flags: 0,
    };
    let levels = machine.mipmapped(&raw const solid, 2).unwrap();
    assert_eq!(machine.steer.used(0), 8 * MIB + MIB + MIB / 8);
    solid.Depth = 4096;
    assert_eq!(machine.array_3d(&raw const solid), Err(CUDA_ERROR_OUT_OF_MEMORY));
    solid.Width = 0;
    assert_eq!(machine.array_3d(&raw const solid), Err(CUDA_ERROR_INVALID_VALUE));
    machine.mipmapped_destroy(levels).unwrap();
    machine.array_destroy(array).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.array(&raw const flat).unwrap();
    machine.primary_reset(0).unwrap();
    assert_eq!(machine.steer.used(0), 0, "it ends with its context");
    machine.was_well_used();
    machine.enter(0);
    assert_eq!(machine.array_destroy(array), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.steer.misuses(), 1);
}

/// "For device pointers, the starting address is srcDevice+srcY*srcPitch+srcXInBytes" (cuMemcpy2DAsync).
#[test]
fn a_rectangle_is_copied_row_by_row_as_one_item() {
    let machine = ready();
    let (stream, memory) = (stream(&machine), machine.alloc(4096).unwrap());
    machine.hold(stream);
    let host: Vec<u8> = (0..64).collect();
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 1,
        srcY: 1,
        srcMemoryType: CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast::<c_void>(),
        srcPitch: 8,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstDevice: memory,
        dstPitch: 512,
        WidthInBytes: 3,
        Height: 2,
        ..CUDA_MEMCPY2D::default()
    };
    let narrow = CUDA_MEMCPY2D { dstPitch: 2, ..copy };
    assert_eq!(machine.copy_2d(&raw const narrow, stream), Err(CUDA_ERROR_INVALID_VALUE));
    machine.copy_2d(&raw const copy, stream).unwrap();
    assert_eq!(machine.steer.pending(stream.cast()), 1);
    machine.release(stream);
    let row = |at: u64| [0, 1, 2, 3].map(|byte| machine.byte(memory + at + byte));
    assert_eq!([row(0), row(512)], [[9, 10, 11, 0], [17, 18, 19, 0]]);
    machine.was_well_used();
}

/// "Work ordered after the operation will block until the given condition on the memory is satisfied. By default, the
/// condition is to wait for (int32_t)(*addr - value) >= 0, a cyclic greater-or-equal" (cuStreamWaitValue32).
#[test]
fn a_stream_waits_for_a_value_that_another_writes() {
    let machine = ready();
    let (first, second) = (stream(&machine), stream(&machine));
    let memory = machine.alloc(512).unwrap();
    let pending = || machine.steer.pending(second.cast());
    for (condition, below, enough) in [
        (CU_STREAM_WAIT_VALUE_GEQ, u32::MAX, 6),
        (CU_STREAM_WAIT_VALUE_EQ, 6, 5),
        (CU_STREAM_WAIT_VALUE_AND, 2, 1),
        (CU_STREAM_WAIT_VALUE_NOR, !5, 2),
    ] {
        machine.write_value(first, memory, below, 0).unwrap();
        machine.wait_value(second, memory, 5, condition).unwrap();
        assert_eq!(pending(), 1, "condition {condition}");
        machine.write_value(first, memory, enough, 0).unwrap();
        assert_eq!(pending(), 0, "condition {condition}");
    }
    machine.wait_value_64(second, memory + 8, 1 << 40, CU_STREAM_WAIT_VALUE_EQ).unwrap();
    machine.hold(first);
    machine.write_value_64(first, memory + 8, 1 << 40, 0).unwrap();
    assert_eq!(pending(), 1);
    machine.stream_synchronize(second).unwrap();
    assert_eq!(machine.write_value(first, memory + 2, 0, 0), Err(CUDA_ERROR_INVALID_VALUE));
    let managed = machine.managed(512, CU_MEM_ATTACH_GLOBAL).unwrap();
    assert_eq!(machine.write_value(first, managed, 0, 0), Err(CUDA_ERROR_INVALID_VALUE));
    machine.was_well_used();
}

/// A value that the program stores itself is found while a call waits for it; one that is never stored is a deadlock.
#[test]
fn the_program_may_store_the_value() {
    let machine = ready();
    let stream = stream(&machine);
    let flag = machine.pinned(512, 0).unwrap().addr() as u64;
    machine.wait_value(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // SAFETY: pinned memory, aligned.
            unsafe { (flag as *mut u32).write_volatile(1) };
        });
        machine.stream_synchronize(stream).unwrap();
    });
    machine.was_well_used();
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 0);
    machine.wait_value(stream, flag, 2, CU_STREAM_WAIT_VALUE_EQ).unwrap();
    assert_eq!(machine.stream_synchronize(stream), Err(CUDA_ERROR_LAUNCH_TIMEOUT));
    assert_eq!(machine.steer.misuses(), 1);
}
