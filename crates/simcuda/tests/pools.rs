//! Memory pools: what they keep, when it goes back, and who gets what another stream freed. The comments quote cuda.h
//! of CUDA 13 (CUmemPool_attribute, cuMemPoolTrimTo) and the CUDA Programming Guide (Stream-Ordered Memory Allocator).

mod common;
use common::*;

const KEEP_ALL: u64 = u64::MAX;

fn set(machine: &Machine, pool: CUmemoryPool, attribute: CUmemPool_attribute, mut value: u64) -> Answer {
    let function = machine.driver.cuMemPoolSetAttribute().unwrap();
    // SAFETY: no attribute here is longer than 8 bytes; the shorter ones are at the beginning, as the machine is.
    answer(unsafe { function(pool, attribute, (&raw mut value).cast()) })
}

fn attribute(machine: &Machine, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    let function = machine.driver.cuMemPoolGetAttribute().unwrap();
    // SAFETY: as above.
    answer(unsafe { function(pool, attribute, (&raw mut value).cast()) }).unwrap();
    value
}

/// Held and handed out.
fn levels(machine: &Machine, pool: CUmemoryPool) -> (u64, u64) {
    let of = |wanted| attribute(machine, pool, wanted) / MIB;
    (of(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), of(CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
}

fn highest(machine: &Machine, pool: CUmemoryPool) -> (u64, u64) {
    let of = |wanted| attribute(machine, pool, wanted) / MIB;
    (of(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), of(CU_MEMPOOL_ATTR_USED_MEM_HIGH))
}

const MIB_10: usize = 10 << 20;

/// "When more than the release threshold bytes of memory are held by the memory pool, the allocator will try to
/// release memory back to the OS on the next call to stream, event or context synchronize."
#[test]
fn what_is_freed_is_kept_up_to_the_threshold() {
    let machine = ready();
    let (stream, pool) = (stream(&machine), machine.default_pool(0).unwrap());
    let event = machine.event(0).unwrap();
    let synchronise: [&dyn Fn(); 3] =
        [&|| machine.stream_synchronize(stream).unwrap(), &|| machine.synchronize().unwrap(), &|| {
            machine.record(event, stream).unwrap();
            machine.event_synchronize(event).unwrap();
        }];
    for (threshold, kept) in [(0, 0), (15 * MIB, 10), (25 * MIB, 20), (30 * MIB, 30), (KEEP_ALL, 30)] {
        for synchronise in synchronise {
            set(&machine, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold).unwrap();
            assert_eq!(attribute(&machine, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), threshold);
            let pieces = [0; 3].map(|_| machine.alloc_async(MIB_10, stream).unwrap());
            assert_eq!((levels(&machine, pool), machine.steer.used(0)), ((30, 30), 30 * MIB));
            pieces.iter().for_each(|at| machine.free_async(*at, stream).unwrap());
            // All of it is done, but the host has not synchronized.
            assert_eq!((levels(&machine, pool), machine.steer.used(0)), ((30, 0), 30 * MIB));
            synchronise();
            assert_eq!((levels(&machine, pool), machine.steer.used(0)), ((kept, 0), kept * MIB));
            machine.pool_trim(pool, 0).unwrap();
            assert_eq!((levels(&machine, pool), machine.steer.used(0)), ((0, 0), 0));
        }
    }
    machine.was_well_used();
}

/// "High watermark can only be reset to zero."
#[test]
fn the_highest_levels_are_remembered() {
    let machine = ready();
    let (stream, pool) = (stream(&machine), machine.default_pool(0).unwrap());
    let pieces = [0; 3].map(|_| machine.alloc_async(MIB_10, stream).unwrap());
    pieces[1..].iter().for_each(|at| machine.free_async(*at, stream).unwrap());
    machine.synchronize().unwrap();
    assert_eq!((levels(&machine, pool), highest(&machine, pool)), ((10, 10), (30, 30)));
    for high in [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH] {
        assert_eq!(set(&machine, pool, high, 1), Err(CUDA_ERROR_INVALID_VALUE));
        set(&machine, pool, high, 0).unwrap();
    }
    assert_eq!(highest(&machine, pool), (10, 10));
    for current in [CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 99] {
        assert_eq!(set(&machine, pool, current, 0), Err(CUDA_ERROR_INVALID_VALUE));
    }
}

/// "Otherwise the pool will be guaranteed to have at least minBytesToKeep bytes reserved after the operation."
#[test]
fn a_trim_keeps_what_it_is_told() {
    let machine = ready();
    let (stream, pool) = (stream(&machine), machine.default_pool(0).unwrap());
    set(&machine, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, KEEP_ALL).unwrap();
    let pieces = [0; 4].map(|_| machine.alloc_async(MIB_10, stream).unwrap());
    pieces[1..].iter().for_each(|at| machine.free_async(*at, stream).unwrap());
    // "Allocations that have been asynchronously freed but whose completion has not been observed on the host [...]
    // can count as outstanding": here they do.
    machine.pool_trim(pool, 0).unwrap();
    assert_eq!(levels(&machine, pool), (40, 10));
    machine.synchronize().unwrap();
    for (keep, held) in [(50, 40), (35, 40), (25, 30), (20, 20), (0, 10), (0, 10)] {
        machine.pool_trim(pool, keep << 20).unwrap();
        assert_eq!((levels(&machine, pool).0, machine.steer.used(0)), (held, held * MIB), "{keep} MiB");
    }
    // The host has synchronised, but before it was done.
    let other = common::stream(&machine);
    let piece = machine.alloc_async(MIB_10, other).unwrap();
    machine.hold(other);
    machine.free_async(piece, other).unwrap();
    machine.stream_synchronize(stream).unwrap();
    machine.release(other);
    machine.pool_trim(pool, 0).unwrap();
    assert_eq!(levels(&machine, pool), (20, 10));
    machine.synchronize().unwrap();
    machine.free(pieces[0]).unwrap();
    machine.pool_trim(pool, 0).unwrap();
    assert_eq!(machine.steer.used(0), 0, "cuMemFree frees at once, and the host knows");
}

/// A stream gets its own memory again while its work is under way, and a test that breaks the order sees the race.
#[test]
fn memory_comes_again_in_the_order_of_its_stream() {
    let machine = ready();
    let (one, other) = (stream(&machine), stream(&machine));
    machine.hold(one);
    let first = machine.alloc_async(MIB_10, one).unwrap();
    machine.fill(one, first, MIB_10 as u64, 1).unwrap();
    machine.expect(one, first, MIB_10 as u64, 1).unwrap();
    machine.free_async(first, one).unwrap();
    let second = machine.alloc_async(MIB_10 / 2, one).unwrap();
    let third = machine.alloc_async(MIB_10 / 2, one).unwrap();
    assert_eq!((second, third), (first, first + MIB_10 as u64 / 2));
    machine.fill(one, second, MIB_10 as u64 / 2, 2).unwrap();
    machine.expect(one, second, MIB_10 as u64 / 2, 2).unwrap();
    machine.stream_synchronize(one).unwrap();
    machine.was_well_used();
    // The same, but the other stream is not told to wait for the first.
    machine.fill(one, second, 4096, 3).unwrap();
    machine.expect(one, second, 4096, 3).unwrap();
    machine.steer.step(one.cast(), 1);
    machine.fill(other, second, 4096, 4).unwrap();
    machine.stream_synchronize(one).unwrap();
    assert_eq!(machine.steer.mismatches(), 1, "the race is seen");
}

/// What may be touched is what lives when the turn of the work comes: "The allocation must not be accessed until the
/// the allocation operation completes", and "must not be accessed after stream execution reaches the free".
#[test]
fn an_allocation_lives_from_its_turn_to_that_of_its_free() {
    for late in [false, true] {
        let machine = ready();
        let (one, other) = (stream(&machine), stream(&machine));
        set(&machine, machine.default_pool(0).unwrap(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, KEEP_ALL).unwrap();
        machine.hold(one);
        machine.hold(other);
        let memory = machine.alloc_async(4096, one).unwrap();
        // Launched before the free is queued, and run before its turn.
        machine.fill(other, memory, 4096, 1).unwrap();
        machine.free_async(memory, one).unwrap();
        assert_eq!(machine.steer.step(one.cast(), 1), 1);
        machine.release(other);
        machine.was_well_used();
        let again = machine.alloc_async(4096, one).unwrap();
        assert_eq!(again, memory);
        machine.steer.step(one.cast(), if late { 2 } else { 1 });
        machine.fill(other, memory, 4096, 1).unwrap();
        assert_eq!(machine.steer.misuses(), u64::from(!late), "between the free and the next allocation");
    }
}

/// Which of the policies gives a stream what another one freed, where its work stands so.
fn other_stream_gets_it(
    machine: &Machine,
    policies: [bool; 3],
    done: bool,
    ordered: bool,
    observed: bool,
) -> bool {
    let pool = machine.default_pool(0).unwrap();
    set(machine, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, KEEP_ALL).unwrap();
    for (policy, on) in (1..).zip(policies) {
        set(machine, pool, policy, on.into()).unwrap();
        assert_eq!(attribute(machine, pool, policy), on.into());
    }
    let (one, other, event) = (stream(machine), stream(machine), machine.event(0).unwrap());
    machine.hold(one);
    let memory = machine.alloc_async(MIB_10, one).unwrap();
    machine.fill(one, memory, MIB_10 as u64, 1).unwrap();
    machine.expect(one, memory, MIB_10 as u64, 1).unwrap();
    machine.free_async(memory, one).unwrap();
    if ordered {
        machine.record(event, one).unwrap();
        machine.stream_wait(other, event, 0).unwrap();
    }
    if done {
        machine.release(one);
    }
    if observed {
        machine.stream_synchronize(one).unwrap();
    }
    // Most of the device is in use by another allocation: there is no room for another 10 MiB.
    let rest = machine.alloc(256 * MIB as usize - MIB_10 - 4096).unwrap();
    let got = machine.alloc_async(MIB_10, other);
    assert!(got == Ok(memory) || got == Err(CUDA_ERROR_OUT_OF_MEMORY));
    if got.is_ok() {
        machine.fill(other, memory, MIB_10 as u64, 2).unwrap();
        machine.expect(other, memory, MIB_10 as u64, 2).unwrap();
        machine.free_async(memory, other).unwrap();
    }
    // In order, whatever made it so.
    machine.synchronize().unwrap();
    machine.was_well_used();
    machine.free(rest).unwrap();
    got.is_ok()
}

#[test]
fn the_policies_say_who_gets_what_another_stream_freed() {
    let [none, follow, opportunistic, internal] =
        [[false; 3], [true, false, false], [false, true, false], [false, false, true]];
    let gets = |policies, done, ordered, observed| {
        let machine = ready();
        other_stream_gets_it(&machine, policies, done, ordered, observed)
    };
    // "Cuda events [...] can create the required stream ordered dependencies."
    assert!(gets(follow, false, true, false) && !gets(follow, false, false, false));
    // "Allow reuse of already completed frees when there is no dependency between the free and allocation."
    assert!(gets(opportunistic, true, false, false) && !gets(opportunistic, false, true, false));
    // "Allow cuMemAllocAsync to insert new stream dependencies".
    assert!(gets(internal, false, false, false));
    // "When this is disabled, the allocator will still reuse memory made available when a stream is synchronized with
    // the CPU" (guide). That memory could also go back and be taken anew.
    assert!(
        gets(none, true, false, true) && !gets(none, false, false, false) && !gets(none, false, true, false)
    );
}

/// Dependencies are the last resort: while the device has memory a stream waits for no other.
#[test]
fn a_stream_waits_for_another_only_where_there_is_nothing_else() {
    let machine = ready();
    let (one, other) = (stream(&machine), stream(&machine));
    machine.hold(one);
    let memory = machine.alloc_async(MIB_10, one).unwrap();
    machine.free_async(memory, one).unwrap();
    let second = machine.alloc_async(MIB_10, other).unwrap();
    assert_ne!(memory, second);
    machine.stream_query(other).unwrap();
    let rest = machine.alloc(236 << 20).unwrap();
    let third = machine.alloc_async(MIB_10, other).unwrap();
    assert_eq!((third, machine.stream_query(other)), (memory, Err(CUDA_ERROR_NOT_READY)));
    machine.release(one);
    machine.stream_query(other).unwrap();
    assert_eq!(machine.alloc_async(MIB_10, other), Err(CUDA_ERROR_OUT_OF_MEMORY));
    [second, third].iter().for_each(|at| machine.free_async(*at, other).unwrap());
    machine.synchronize().unwrap();
    machine.free(rest).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.was_well_used();
}

/// "The resources associated with the pool will be released automatically once there are no more outstanding
/// allocations."
#[test]
fn a_destroyed_pool_goes_with_its_last_allocation() {
    let machine = ready();
    let stream = stream(&machine);
    assert_eq!(machine.pool_destroy(machine.default_pool(0).unwrap()), Err(CUDA_ERROR_INVALID_VALUE));
    let properties = CUmemPoolProps {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        ..CUmemPoolProps::default()
    };
    for held in [false, true] {
        let pool = machine.pool_create(&properties).unwrap();
        let [first, second] = [0; 2].map(|_| machine.alloc_from(MIB_10, pool, stream).unwrap());
        machine.free_async(first, stream).unwrap();
        machine.pool_destroy(pool).unwrap();
        assert_eq!(machine.alloc_from(1, pool, stream), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(machine.steer.used(0), 20 * MIB);
        if held {
            machine.hold(stream);
        }
        machine.free_async(second, stream).unwrap();
        assert_eq!(machine.steer.used(0), if held { 20 * MIB } else { 0 });
        machine.release(stream);
        assert_eq!(machine.steer.used(0), 0);
        // Each use of it above was one of a handle that is over.
        assert_eq!(machine.steer.misuses(), 1 + u64::from(held));
    }
}

/// cuCtxDestroy: what cuMemAllocAsync gave belongs to no context.
#[test]
fn what_a_context_queued_for_memory_happens_when_it_ends() {
    let machine = ready();
    let (stream, pool) = (stream(&machine), machine.default_pool(0).unwrap());
    machine.hold(stream);
    let [freed, kept] = [0; 2].map(|_| machine.alloc_async(MIB_10, stream).unwrap());
    machine.free_async(freed, stream).unwrap();
    machine.primary_reset(0).unwrap();
    machine.enter(0);
    assert_eq!(levels(&machine, pool), (20, 10));
    machine.fill(LEGACY, kept, MIB_10 as u64, 1).unwrap();
    machine.was_well_used();
    machine.free_async(kept, LEGACY).unwrap();
    machine.synchronize().unwrap();
    assert_eq!(machine.steer.used(0), 0);
}

/// "After this API returns, accessing the memory from any subsequent work launched on the GPU or querying its pointer
/// attributes results in undefined behavior" (cuMemFreeAsync): on every stream, even before the turn of the free.
#[test]
fn what_is_launched_after_an_asynchronous_free_may_not_touch_the_memory() {
    let machine = ready();
    let [first, second] = [stream(&machine), stream(&machine)];
    let memory = machine.alloc_async(4096, first).unwrap();
    machine.stream_synchronize(first).unwrap();
    machine.hold(first);
    machine.hold(second);
    machine.fill(second, memory, 4096, 1).unwrap();
    machine.free_async(memory, first).unwrap();
    machine.release(second);
    machine.was_well_used();
    machine.fill(second, memory + 8, 8, 1).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
    assert!(
        machine.steer.misuse_texts()[0].contains("after cuMemFreeAsync"),
        "{:?}",
        machine.steer.misuse_texts()
    );
    // Handed out again it is another allocation.
    let again = machine.alloc_async(4096, first).unwrap();
    assert_eq!(again, memory);
    machine.fill(first, again, 4096, 2).unwrap();
    machine.release(first);
    assert_eq!((machine.steer.misuses(), machine.byte(memory)), (1, 2));
}
