//! Virtual memory management.

mod common;
use common::*;

const GRANULE: u64 = 2 << 20;
const A: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const B: u64 = 0xbbbb_bbbb_bbbb_bbbb;

fn reserve(machine: &Machine, bytes: u64) -> u64 {
    machine.address_reserve(bytes as usize, 0, 0, 0).unwrap()
}

fn map(machine: &Machine, at: u64, handle: u64) -> Answer {
    machine.map(at, GRANULE as usize, 0, handle, 0)
}

fn unmap(machine: &Machine, at: u64, bytes: u64) -> Answer {
    machine.unmap(at, bytes as usize)
}

#[test]
fn contents_follow_the_handle() {
    let machine = ready();
    let at = reserve(&machine, 4 * GRANULE);
    let [first, second] = [0, 0].map(|_| machine.physical(GRANULE).unwrap());
    map(&machine, at, first).unwrap();
    map(&machine, at + GRANULE, second).unwrap();
    machine.allow(at, 2 * GRANULE, 0).unwrap();
    machine.fill(LEGACY, at, GRANULE, A).unwrap();
    machine.fill(LEGACY, at + GRANULE, GRANULE, B).unwrap();
    machine.expect(LEGACY, at + GRANULE - 8, 8, A).unwrap();
    // A remapping, and one physical memory at two addresses.
    unmap(&machine, at, GRANULE).unwrap();
    map(&machine, at + 2 * GRANULE, first).unwrap();
    map(&machine, at + 3 * GRANULE, second).unwrap();
    machine.allow(at + 2 * GRANULE, 2 * GRANULE, 0).unwrap();
    machine.expect(LEGACY, at + 2 * GRANULE, GRANULE, A).unwrap();
    machine.expect(LEGACY, at + 3 * GRANULE, GRANULE, B).unwrap();
    machine.fill(LEGACY, at + GRANULE, 8, A).unwrap();
    machine.expect(LEGACY, at + 3 * GRANULE, 8, A).unwrap();
    // A range over several mappings is one range to a kernel.
    machine.fill(LEGACY, at + GRANULE, 3 * GRANULE, 7).unwrap();
    machine.was_well_used();
}

#[test]
fn nothing_is_accessible_before_cu_mem_set_access() {
    let machine = ready();
    let at = reserve(&machine, 2 * GRANULE);
    let handle = machine.physical(GRANULE).unwrap();
    map(&machine, at, handle).unwrap();
    assert_eq!(machine.allow(at, 2 * GRANULE, 0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.allow(at, GRANULE / 2, 0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.allow(at, GRANULE, 1), Err(CUDA_ERROR_INVALID_DEVICE));
    machine.fill(LEGACY, at, 8, A).unwrap();
    assert!(machine.steer.misuse_texts()[0].contains("access None"));
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn mapping_again_needs_access_again() {
    let machine = ready();
    let at = reserve(&machine, GRANULE);
    let handle = machine.physical(GRANULE).unwrap();
    map(&machine, at, handle).unwrap();
    machine.allow(at, GRANULE, 0).unwrap();
    unmap(&machine, at, GRANULE).unwrap();
    map(&machine, at, handle).unwrap();
    machine.fill(LEGACY, at, 8, A).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn what_is_documented_as_an_error_is_one() {
    let machine = ready();
    let invalid = Err(CUDA_ERROR_INVALID_VALUE);
    let at = reserve(&machine, 4 * GRANULE);
    assert_eq!(at % GRANULE, 0);
    assert_eq!(machine.physical(GRANULE + 4096), invalid.map(|()| 0));
    let handle = machine.physical(2 * GRANULE).unwrap();
    // Beyond the handle, at an offset, outside of the reservation, not at a granule.
    assert_eq!(machine.map(at, 3 * GRANULE as usize, 0, handle, 0), invalid);
    assert_eq!(machine.map(at, GRANULE as usize, GRANULE as usize, handle, 0), invalid);
    assert_eq!(machine.map(at + 3 * GRANULE, 2 * GRANULE as usize, 0, handle, 0), invalid);
    assert_eq!(machine.map(at + 4096, GRANULE as usize, 0, handle, 0), invalid);
    machine.map(at, 2 * GRANULE as usize, 0, handle, 0).unwrap();
    // Over a mapping; a part of one; what is not mapped; a range that is still mapped.
    assert_eq!(map(&machine, at + GRANULE, handle), invalid);
    assert_eq!(unmap(&machine, at, GRANULE), invalid);
    assert_eq!(unmap(&machine, at + GRANULE, GRANULE), invalid);
    assert_eq!(unmap(&machine, at, 3 * GRANULE), invalid);
    assert_eq!(unmap(&machine, at + 2 * GRANULE, GRANULE), invalid);
    assert_eq!(machine.address_free(at, 4 * GRANULE as usize), invalid);
    unmap(&machine, at, 2 * GRANULE).unwrap();
    assert_eq!(machine.address_free(at, GRANULE as usize), invalid);
    machine.address_free(at, 4 * GRANULE as usize).unwrap();
    machine.handle_release(handle).unwrap();
    machine.was_well_used();
    assert_eq!(machine.handle_release(handle), invalid);
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn physical_memory_counts_until_it_is_released_and_unmapped() {
    let machine = ready();
    let at = reserve(&machine, GRANULE);
    let handle = machine.physical(GRANULE).unwrap();
    assert_eq!(machine.steer.used(0), GRANULE);
    map(&machine, at, handle).unwrap();
    machine.allow(at, GRANULE, 0).unwrap();
    machine.handle_release(handle).unwrap();
    machine.fill(LEGACY, at, GRANULE, A).unwrap();
    assert_eq!(machine.steer.used(0), GRANULE);
    unmap(&machine, at, GRANULE).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::PHYSICAL)), (0, 0));
    machine.was_well_used();
    // The capacity holds for both kinds of memory together.
    let half = machine.alloc(128 << 20).unwrap();
    let handles: Vec<_> = (0..64).map(|_| machine.physical(GRANULE).unwrap()).collect();
    assert_eq!(machine.physical(GRANULE), Err(CUDA_ERROR_OUT_OF_MEMORY));
    machine.free(half).unwrap();
    machine.physical(GRANULE).unwrap();
    // A context's end does not touch them: cuCtxDestroy in cuda.h. For a reset that is believed.
    machine.primary_reset(0).unwrap();
    assert_eq!(machine.steer.live(steer::PHYSICAL), handles.len() as u64 + 1);
}

/// The manual leaves open what a reset does to it: three ways to see that.
#[test]
fn what_a_reset_ends_is_an_option() {
    for ends in 0..=2 {
        let machine = ready();
        machine.steer.set(steer::RESET_ENDS, ends);
        let at = reserve(&machine, 4 * GRANULE);
        let [mapped, released, kept] = [0; 3].map(|_| machine.physical(GRANULE).unwrap());
        map(&machine, at, mapped).unwrap();
        map(&machine, at + 2 * GRANULE, released).unwrap();
        machine.handle_release(released).unwrap();
        machine.primary_reset(0).unwrap();
        let [physical, mappings, reservations] =
            [steer::PHYSICAL, steer::MAPPINGS, steer::RESERVATIONS].map(|kind| machine.steer.live(kind));
        assert_eq!([physical, mappings], if ends == 0 { [3, 2] } else { [0, 0] });
        assert_eq!((reservations, machine.steer.used(0)), (u64::from(ends < 2), physical * GRANULE));
        machine.was_well_used();
        assert_eq!(machine.handle_release(kept).is_ok(), ends == 0);
        assert_eq!(machine.steer.misuses(), u64::from(ends != 0));
        assert_eq!(unmap(&machine, at, GRANULE).is_ok(), ends == 0);
    }
}

#[test]
fn memory_that_queued_work_uses_is_missed_when_it_is_unmapped() {
    let machine = ready();
    let stream = machine.stream(CU_STREAM_NON_BLOCKING).unwrap();
    let at = reserve(&machine, GRANULE);
    let handle = machine.physical(GRANULE).unwrap();
    map(&machine, at, handle).unwrap();
    machine.allow(at, GRANULE, 0).unwrap();
    machine.hold(stream);
    machine.fill(stream, at, 8, A).unwrap();
    unmap(&machine, at, GRANULE).unwrap();
    machine.was_well_used();
    machine.release(stream);
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_device_without_it_says_so() {
    let machine = ready();
    machine.steer.set(steer::VMM, 0);
    assert_eq!(machine.physical(GRANULE), Err(CUDA_ERROR_NOT_SUPPORTED));
    let mut value = 9;
    let function = machine.driver.cuDeviceGetAttribute().unwrap();
    let which = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    // SAFETY: the result lives.
    assert_eq!(unsafe { function(&raw mut value, which, 0) }, CUDA_SUCCESS);
    assert_eq!(value, 0);
}
