//! Creation, destruction, and the forked process.

use super::*;

pub fn ends_only_when_empty<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(2, GROWTH);
    let filled = Filled::new(fixture, &pool, pool.get(1000), 3);
    assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
    filled.assert_intact(fixture);
    pool.put(filled.address);
    assert_eq!(pool.destroy(), BFC_OK);
    assert_eq!(pool.destroy(), BFC_ERROR_NO_ALLOCATOR);
    assert_eq!(
        (pool.alloc(1), pool.free(filled.address)),
        (Err(BFC_ERROR_NO_ALLOCATOR), BFC_ERROR_NO_ALLOCATOR)
    );
    assert_eq!(fixture.held().unwrap_or(0), 0);
}

pub fn ends_by_force<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(8, GROWTH);
    let (first, _) = (pool.get(1000), pool.get(3 * UNIT));
    let stream = fixture.stream();
    pool.put_on(pool.get_on(1000, stream), stream);
    assert_eq!(pool.destroy_forced(), BFC_OK);
    assert_eq!(fixture.held().unwrap_or(0), 0);
    assert_eq!(owner(first), Err(BFC_ERROR_INVALID_POINTER));
}

pub fn begins_again<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, GROWTH);
    let device = pool.device();
    for round in 0..5 {
        let stale = pool.get(1000);
        Filled::new(fixture, &pool, stale, round).assert_intact(fixture);
        assert_eq!(create(device, Some(&options())), BFC_ERROR_ALREADY_EXISTS);
        assert_eq!(pool.allocation_id(stale), Ok(1), "numbers begin anew");
        assert_eq!(pool.destroy_forced(), BFC_OK);
        let mut wanted = options();
        (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_HOST, GROWTH, UNIT);
        // With any backend, because the ordinal is free.
        assert_eq!(create(device, Some(&wanted)), BFC_OK, "{}", last_error());
        assert_eq!(free(device, stale), BFC_ERROR_INVALID_POINTER);
    }
}

pub fn several_at_once<F: Fixture>(fixture: &F) {
    if lacks_pools(fixture, 3) {
        return;
    }
    let pools = [1, 2, 3].map(|units| fixture.pool(units, GROWTH));
    let live =
        pools.each_ref().map(|pool| Filled::new(fixture, pool, pool.get(UNIT - 256), pool.device() as u64));
    for (pool, filled) in pools.iter().zip(&live) {
        assert_eq!(owner(filled.address), Ok(pool.device()));
        for other in pools.iter().filter(|other| other.device() != pool.device()) {
            assert_eq!(other.free(filled.address), BFC_ERROR_INVALID_POINTER);
        }
    }
    let [first, ..] = pools;
    assert_eq!(first.destroy_forced(), BFC_OK);
    live[1..].iter().for_each(|filled| filled.assert_intact(fixture));
}

/// In the child the pool exists, or every call reports that it does not. The parent's is unaffected.
pub fn forks<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(2, GROWTH);
    let filled = Filled::new(fixture, &pool, pool.get(4096), 11);
    // SAFETY: the child only calls the library and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = if F::SURVIVES_FORK {
            let intact = fixture.holds(filled.address, filled.bytes, filled.pattern);
            fixture.write(filled.address, filled.bytes, 99);
            intact && pool.free(filled.address) == BFC_OK && pool.alloc(100_000).is_ok()
        } else {
            let lost = BFC_ERROR_SHUTTING_DOWN;
            let stream = pointer(4096);
            let others =
                [bfc_forget_stream(pool.device(), stream), bfc_stream_synchronized(pool.device(), stream)];
            let wrong = asked_in_the_child(&pool, filled.address).into_iter().find(|(_, got)| *got != lost);
            if let Some((name, got)) = wrong {
                eprintln!("{name} says {got} in the child");
            }
            wrong.is_none()
                && pool.alloc(1) == Err(lost)
                && pool.free(filled.address) == lost
                && pool.alloc_on(1, 4096) == Err(lost)
                && pool.free_on(filled.address, 4096) == lost
                && pool.record(filled.address, 4096) == lost
                && others == [lost; 2]
                && pool.begin_private(1, 4096) == lost
                && pool.try_trim(0) == Err(lost)
                && pool.destroy() == lost
                && create(pool.device(), None) == lost
                && owner(filled.address) == Err(BFC_ERROR_INVALID_POINTER)
                && pool.destroy_forced() == lost
        };
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit((!right).into()) };
    }
    let mut status = 0;
    // SAFETY: the pointer is valid, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
    filled.assert_intact(fixture);
    pool.put(filled.address);
    pool.check();
    assert_eq!(pool.destroy(), BFC_OK);
}

/// Returns the status of each further call about the allocator or its memory.
fn asked_in_the_child(pool: &Pool, address: u64) -> [(&'static str, Status); 16] {
    let device = pool.device();
    let (mut statistics, mut length, mut stamp) = (stats(), 0, 0);
    let no_text = std::ptr::null_mut;
    [
        ("bfc_pool_end", pool.end_private(1, 4096)),
        ("bfc_pool_release", pool.release_private(1)),
        // SAFETY: NULL removes the callback.
        ("bfc_set_region_callback", unsafe { bfc_set_region_callback(device, None, no_text()) }),
        ("bfc_device_lost", bfc_device_lost(device)),
        ("bfc_set_memory_limit", bfc_set_memory_limit(device, UNIT)),
        ("bfc_check", bfc_check(device)),
        // SAFETY: a whole struct.
        ("bfc_stats", unsafe { bfc_stats(device, &mut statistics) }),
        ("bfc_reset_stats", bfc_reset_stats(device)),
        ("bfc_requested_size", pool.requested_size(address).err().unwrap_or(BFC_OK)),
        ("bfc_allocated_size", pool.allocated_size(address).err().unwrap_or(BFC_OK)),
        ("bfc_allocation_id", pool.allocation_id(address).err().unwrap_or(BFC_OK)),
        ("bfc_address_range", pool.range(address).err().unwrap_or(BFC_OK)),
        // SAFETY: no buffer, and a length that lives.
        ("bfc_report", unsafe { bfc_report(device, no_text().cast(), 0, &mut length) }),
        // SAFETY: as above.
        ("bfc_memory_map", unsafe { bfc_memory_map(device, no_text().cast(), 0, &mut length) }),
        // SAFETY: as above.
        ("bfc_occupancy", unsafe { bfc_occupancy(device, no_text().cast(), 0, &mut length) }),
        // SAFETY: the stamp lives.
        ("bfc_timestamp", unsafe { bfc_timestamp(device, &mut stamp) }),
    ]
}

pub fn bad_options<F: Fixture>(fixture: &F) {
    let refused = |change: &dyn Fn(&mut bfc_options_t)| fixture.try_pool(UNIT, change).err();
    let invalid = Some(BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(refused(&|options| options.flags = 1 << 31), invalid);
    assert_eq!(refused(&|options| options.reserved = 1), invalid);
    assert_eq!(refused(&|options| options.struct_size -= 1), invalid);
    assert_eq!(refused(&|options| options.fragmentation_fraction = 2.0), invalid);
    assert_eq!(refused(&|options| options.flags = BFC_QUARANTINE), invalid, "without BFC_TIMESTAMPS");
    assert_eq!(refused(&|options| options.backend = 77), invalid);
}
