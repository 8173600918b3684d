//! Consistent arenas, and helpers for breaking their invariants on purpose.

use crate::arena::{Arena, NewMemory, RegionGrowth, Reuse, Settings};
use crate::ids::ChunkId;
use crate::invariants::Broken;
use crate::request::Request;
use crate::stream_id::Stream;
use crate::units::UNIT;
use crate::vmm::Range;

pub(crate) const BASE: u64 = 1 << 40;

/// The chunks of a consistent arena in address order. Every other one is free.
pub(crate) struct Placed {
    pub(crate) used: ChunkId,
    pub(crate) free: ChunkId,
    pub(crate) between: ChunkId,
    /// In one tree of the index with the other free chunk.
    pub(crate) other: ChunkId,
    pub(crate) last: ChunkId,
    pub(crate) rest: ChunkId,
}

pub(crate) type Break = fn(&mut Arena, &Placed);

/// An arena of two regions.
pub(crate) fn empty(region: u64, reuse: Reuse) -> Arena {
    let settings = Settings {
        limit: 2 * region,
        growth: RegionGrowth::Doubling,
        garbage_collection: false,
        split_always: true,
        fragmentation_fraction: 0.0,
        initial_region: region,
        reuse,
        coalesce_regions: false,
        releases_at_once: false,
        events: true,
        seed: 1,
    };
    let mut arena = Arena::new(settings).unwrap();
    for base in [BASE, BASE << 1] {
        let extension = arena.plan_extension(UNIT).unwrap();
        arena.add_region(&extension, base, region).unwrap();
    }
    arena
}

pub(crate) fn sound(reuse: Reuse) -> (Arena, Placed) {
    let mut arena = empty(1 << 20, reuse);
    let mut take =
        |units| arena.alloc(&Request::plain(units * UNIT, units * UNIT - 1, Stream::NONE)).unwrap().unwrap();
    let addrs = [2, 600, 3, 601, 4].map(&mut take);
    arena.free(addrs[1]).unwrap();
    arena.free(addrs[3]).unwrap();
    let [used, free, between, other, last] = addrs.map(|addr| arena.chunk_at(addr).unwrap());
    let rest = arena.chunks().next(last);
    assert_eq!(arena.check(), Ok(()));
    (arena, Placed { used, free, between, other, last, rest })
}

/// Applies each of `breaks` to a consistent arena of its own, and asserts that the check names `broken`.
pub(crate) fn each_is_named(broken: Broken, reuse: Reuse, breaks: &[Break]) {
    for (number, break_it) in breaks.iter().enumerate() {
        let (mut arena, of) = sound(reuse);
        break_it(&mut arena, &of);
        assert_eq!(arena.check(), Err(broken), "break {number}");
    }
}

/// An arena over granules of four units: two chunks in use, an unmapped chunk between them, and the end of the range.
pub(crate) fn granular() -> (Arena, [ChunkId; 4]) {
    const GRANULE: u64 = 4 * UNIT;
    let settings = Settings { growth: RegionGrowth::Doubling, ..*empty(1 << 20, Reuse::Streams).settings() };
    let mut arena = Arena::new(settings).unwrap();
    arena.set_range(Range { base: BASE, bytes: 64 * GRANULE, granule: GRANULE });
    let take = |arena: &mut Arena| {
        let request = Request::plain(3 * GRANULE, 3 * GRANULE, Stream::NONE);
        let mut plan = arena.plan_growth(&request, NewMemory::Needed, u64::MAX).unwrap().unwrap();
        plan.fresh.iter_mut().for_each(|piece| piece.mapped = true);
        arena.commit(plan);
        arena.alloc(&request).unwrap().unwrap()
    };
    let addrs = [(); 3].map(|()| take(&mut arena));
    arena.free(addrs[1]).unwrap();
    let mut plan = arena.plan_trim(0).unwrap();
    plan.sources.iter_mut().for_each(|piece| piece.mapped = false);
    arena.commit(plan);
    let [first, unmapped, last] = addrs.map(|addr| arena.chunk_at(addr).unwrap());
    let tail = arena.chunks().next(last);
    assert_eq!(arena.check(), Ok(()));
    (arena, [first, unmapped, last, tail])
}
