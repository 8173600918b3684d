//! Each invariant broken on purpose, in every way that the fields allow, one way at a time: the check
//! names that invariant, and found nothing wrong before.

use crate::core::arena::remap_plan::New;
use crate::core::arena::{Arena, Settings, Want};
use crate::core::heap::chunks::{Cold, Hot};
use crate::core::heap::size_classes::class_of;
use crate::core::ids::{ChunkId, NIL};
use crate::core::invariants::Broken;
use crate::core::stamps::queue::Stamps;
use crate::core::streams::queues::Stream;
use crate::core::units::UNIT;
use crate::core::vmm::unmapped::Range;

const BASE: u64 = 1 << 40;

/// The chunks of a sound arena in the order of their addresses: every other one is free.
struct Placed {
    used: ChunkId,
    free: ChunkId,
    between: ChunkId,
    /// In one tree of the index with the other free one.
    other: ChunkId,
    last: ChunkId,
    rest: ChunkId,
}

type Break = fn(&mut Arena, &Placed);

/// An arena of two regions.
fn empty(region: u64, timestamps: bool, quarantine: bool) -> Arena {
    let settings = Settings {
        limit: 2 * region,
        growth: true,
        garbage_collection: false,
        split_always: true,
        fragmentation_fraction: 0.0,
        initial_region: region,
        timestamps,
        quarantine,
        coalesce_regions: false,
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

fn sound(timestamps: bool, quarantine: bool) -> (Arena, Placed) {
    let mut arena = empty(1 << 20, timestamps, quarantine);
    let mut take =
        |units| arena.take(&Want::plain(units * UNIT, units * UNIT - 1, Stream::NONE)).unwrap().unwrap();
    let addrs = [2, 600, 3, 601, 4].map(&mut take);
    arena.free(addrs[1]).unwrap();
    arena.free(addrs[3]).unwrap();
    let [used, free, between, other, last] = addrs.map(|addr| arena.chunk_at(addr).unwrap());
    let rest = arena.chunks.next(last);
    assert_eq!(arena.check(), Ok(()));
    (arena, Placed { used, free, between, other, last, rest })
}

/// Does each of `breaks` to a sound arena of its own.
fn each_is_named(broken: Broken, timestamps: bool, quarantine: bool, breaks: &[Break]) {
    for (number, break_it) in breaks.iter().enumerate() {
        let (mut arena, of) = sound(timestamps, quarantine);
        break_it(&mut arena, &of);
        assert_eq!(arena.check(), Err(broken), "break {number}");
    }
}

fn hot(arena: &mut Arena, id: ChunkId) -> &mut Hot {
    &mut arena.chunks.slab[..][id]
}

/// A place of the slab that was a chunk, which began at `addr`.
fn bygone(arena: &mut Arena, addr: u64) -> ChunkId {
    let slab = &mut arena.chunks.slab[..];
    let id = arena.chunks.vacant.fill(slab, Hot::new(addr, UNIT, 0, NIL, NIL));
    arena.chunks.vacant.add(slab, id);
    id
}

#[test]
fn i1_chunks_tile_their_region() {
    let breaks: &[Break] = &[
        |arena, of| hot(arena, of.used).set_size(UNIT),
        |arena, of| hot(arena, of.last).set_size(3 * UNIT),
        |arena, of| hot(arena, of.between).set_size(0),
        |arena, of| hot(arena, of.between).addr += UNIT,
        // Unlinked on one side or the other, cut off, and in a circle.
        |arena, of| hot(arena, of.used).next = of.between,
        |arena, of| hot(arena, of.between).prev = of.used,
        |arena, of| hot(arena, of.used).prev = of.last,
        |arena, of| hot(arena, of.last).next = NIL,
        |arena, of| hot(arena, of.between).next = of.used,
        |arena, of| arena.regions.get_mut(0).first = of.free,
        |arena, _| arena.regions.get_mut(0).bytes += UNIT,
        |arena, _| arena.regions.get_mut(1).bytes -= UNIT,
        |arena, of| {
            let Hot { addr, prev, next, .. } = *hot(arena, of.used);
            *hot(arena, of.used) = Hot::new(addr, 2 * UNIT, 1, prev, next);
        },
        // Listed but vacant, and a chunk without a region.
        |arena, of| hot(arena, of.between).left = ChunkId(u32::MAX),
        |arena, _| {
            let lost = Hot::new(BASE << 2, UNIT, 0, NIL, NIL);
            arena.chunks.vacant.fill(&mut arena.chunks.slab, lost);
        },
    ];
    each_is_named(Broken::I1Tiling, false, false, breaks);
    each_is_named(Broken::I1Tiling, true, false, breaks);
}

#[test]
fn i2_free_neighbours_have_merged() {
    let free_alone: Break = |arena, of| {
        arena.counters.freed(3 * UNIT, 3 * UNIT - 1);
        arena.index.insert(&mut arena.chunks.slab, of.between, 3 * UNIT);
    };
    each_is_named(Broken::I2Coalescing, false, false, &[free_alone]);
    let settle_alone: Break = |arena, of| {
        arena.free(BASE).unwrap();
        assert_eq!(arena.check(), Ok(()), "two stamped neighbours are no fault");
        arena.remove_free(of.used);
        arena.insert_free(of.used, 0);
        assert_eq!(arena.check(), Ok(()), "nor is one");
        arena.remove_free(of.free);
        arena.insert_free(of.free, 0);
    };
    each_is_named(Broken::I2Coalescing, true, false, &[settle_alone]);
}

#[test]
fn i3_the_index_holds_what_is_free() {
    let breaks: &[Break] = &[
        // Taken out, but not marked so.
        |arena, of| arena.unindex(of.rest),
        |arena, of| arena.unindex(of.free),
        |arena, of| arena.unindex(of.other),
        // The upper one of the two in a tree loses the lower, or has it on the wrong side.
        |arena, of| {
            let upper = upper_of(arena, of);
            (hot(arena, upper).left, hot(arena, upper).right) = (NIL, NIL);
        },
        |arena, of| {
            let upper = upper_of(arena, of);
            let hot = hot(arena, upper);
            (hot.left, hot.right) = (hot.right, hot.left);
        },
        |arena, of| {
            arena.unindex(of.free);
            hot(arena, of.free).mark_held();
        },
        // A mark without a chunk, and a chunk without a mark.
        |arena, _| arena.index.mark(class_of(5 * UNIT), true),
        |arena, of| {
            let class = class_of(arena.chunks.size(of.rest));
            arena.index.mark(class, false);
        },
    ];
    each_is_named(Broken::I3Index, false, false, breaks);
    // With stamps the two are in a tree of another index, linked alike.
    each_is_named(Broken::I3Index, true, false, &[breaks[0], breaks[3], breaks[4]]);
}

/// Which of the two free chunks of one tree is its root.
fn upper_of(arena: &mut Arena, of: &Placed) -> ChunkId {
    let Hot { left, right, .. } = *hot(arena, of.free);
    if left == NIL && right == NIL { of.other } else { of.free }
}

#[test]
fn i3_what_is_stamped_is_queued() {
    let breaks: &[Break] = &[
        |arena, _| arena.stamps = Stamps::new(1),
        |arena, of| arena.chunks.set_stamp(of.rest, 1),
        |arena, of| arena.chunks.set_stamp(of.used, 3),
        // Queued later than under its stamp, not at all, and as a chunk of another address.
        |arena, of| arena.stamps.requeue(of.free, 7),
        |arena, of| arena.stamps.remove(of.free),
        |arena, of| {
            arena.stamps.remove(of.free);
            arena.stamps.push(of.free, BASE, 1);
        },
        // In use, or without a stamp.
        |arena, of| {
            let addr = arena.chunks.addr(of.used);
            arena.chunks.set_stamp(of.used, 3);
            arena.stamps.push(of.used, addr, 3);
        },
        |arena, of| {
            let addr = arena.chunks.addr(of.rest);
            arena.stamps.push(of.rest, addr, 1);
        },
        // Due, and nobody looks.
        |arena, _| {
            arena.raise_frontier(2);
            arena.stamps.settle();
        },
    ];
    each_is_named(Broken::I3Index, true, false, breaks);
    each_is_named(Broken::I3Index, true, true, breaks);
    // In quarantine, but for no time.
    each_is_named(Broken::I3Index, true, true, &[|arena, of| arena.chunks.set_stamp(of.free, 0)]);
}

#[test]
fn i3_what_is_stamped_is_in_an_index_of_its_own() {
    let breaks: &[Break] = &[
        |arena, of| arena.stamps.index.remove(&mut arena.chunks, of.free),
        |arena, of| arena.stamps.index.remove(&mut arena.chunks, of.other),
        |arena, _| arena.stamps.index.clear(),
        // In the wrong one of the two.
        |arena, of| {
            arena.stamps.index.remove(&mut arena.chunks, of.free);
            arena.index.insert(&mut arena.chunks.slab, of.free, 600 * UNIT);
        },
        |arena, of| {
            arena.unindex(of.rest);
            arena.stamps.index.insert(&mut arena.chunks, of.rest);
        },
        // The least stamp below a chunk is another: its own, or that of the one below it.
        |arena, of| arena.stamps.index.misstate(of.free, 0),
        |arena, of| arena.stamps.index.misstate(of.other, 3),
    ];
    each_is_named(Broken::I3Index, true, false, breaks);
    // A stamp of which the index knows nothing.
    each_is_named(Broken::I3Index, true, false, &[|arena, of| arena.chunks.set_stamp(of.free, 7)]);
}

#[test]
fn i4_the_counters_agree_with_the_chunks() {
    let breaks: &[Break] = &[
        |arena, _| arena.counters.bytes_in_use += UNIT,
        |arena, _| arena.counters.bytes_requested -= 1,
        |arena, _| arena.counters.miscount(),
        |arena, _| arena.counters.peak_bytes_in_use = arena.counters.bytes_in_use - 1,
        |arena, _| arena.counters.peak_bytes_requested = 0,
        |arena, _| arena.growth.pool_bytes -= 1,
        |arena, _| arena.regions.get_mut(1).given += 1,
        |arena, of| {
            // More than the chunk has, rightly counted.
            let allocation_id = arena.chunks.cold(of.used).allocation_id;
            arena.chunks.set_cold(of.used, Cold { requested: 2 * UNIT + 1, allocation_id });
            arena.counters.bytes_requested += 2;
            arena.counters.peak_bytes_requested += 2;
        },
    ];
    each_is_named(Broken::I4Accounting, false, false, breaks);
}

#[test]
fn i5_best_fit_finds_the_best() {
    // The largest chunk of all, in the tree of a lower class: in order, but not where it is looked for.
    let misplaced: Break = |arena, _| {
        let id = arena.chunk_at(BASE << 1).unwrap();
        arena.unindex(id);
        arena.index.insert(&mut arena.chunks.slab, id, (1 << 20) - 64 * UNIT);
    };
    each_is_named(Broken::I5BestFit, false, false, &[misplaced]);
    each_is_named(Broken::I5BestFit, true, false, &[misplaced]);
}

#[test]
fn i6_starts_map_to_their_chunks() {
    let breaks: &[Break] = &[
        |arena, of| forget(arena, of.used),
        |arena, of| forget(arena, of.other),
        |arena, of| forget(arena, of.rest),
        |arena, _| arena.regions.get_mut(0).first = NIL,
        // What began inside a chunk, before it was merged into that.
        |arena, of| {
            let inside = arena.chunks.addr(of.last) + UNIT;
            let id = bygone(arena, inside);
            arena.starts.set(&mut arena.regions, inside, id);
        },
    ];
    each_is_named(Broken::I6Starts, false, false, breaks);
    each_is_named(Broken::I6Starts, true, false, breaks);
}

#[test]
fn i6_also_where_the_tables_are_flat() {
    let breaks: &[fn(&mut Arena, ChunkId)] = &[
        forget,
        |arena, id| {
            let (addr, other) = (arena.chunks.addr(id), arena.chunks.next(id));
            arena.starts.set(&mut arena.regions, addr, other);
        },
        |arena, id| {
            let inside = arena.chunks.addr(id) + UNIT;
            arena.starts.set(&mut arena.regions, inside, id);
        },
    ];
    for (number, break_it) in breaks.iter().enumerate() {
        let mut arena = empty(1 << 15, false, false);
        let small: Vec<u64> =
            (0..80).map(|_| arena.take(&Want::plain(3 * UNIT, 1, Stream::NONE)).unwrap().unwrap()).collect();
        arena.free(small[40]).unwrap();
        let id = arena.chunk_at(small[40]).unwrap();
        assert!(arena.starts.needs_flat());
        assert_eq!(arena.check(), Ok(()));
        break_it(&mut arena, id);
        assert_eq!(arena.check(), Err(Broken::I6Starts), "break {number}");
    }
}

fn forget(arena: &mut Arena, id: ChunkId) {
    let addr = arena.chunks.addr(id);
    arena.starts.clear(&arena.chunks.slab, &mut arena.regions, addr, id);
}

/// An arena over granules of four units: two chunks in use, a hole between them, and the end of the range.
fn granular() -> (Arena, [ChunkId; 4]) {
    const GRANULE: u64 = 4 * UNIT;
    let settings = Settings { growth: true, ..empty(1 << 20, false, false).settings };
    let mut arena = Arena::new(settings).unwrap();
    arena.set_range(Range { base: BASE, bytes: 64 * GRANULE, granule: GRANULE });
    let take = |arena: &mut Arena| {
        let want = Want::plain(3 * GRANULE, 3 * GRANULE, Stream::NONE);
        let mut plan = arena.plan_growth(&want, New::Needed, u64::MAX).unwrap().unwrap();
        plan.fresh.iter_mut().for_each(|piece| piece.mapped = true);
        arena.commit(plan);
        arena.take(&want).unwrap().unwrap()
    };
    let addrs = [(); 3].map(|()| take(&mut arena));
    arena.free(addrs[1]).unwrap();
    let mut plan = arena.plan_trim(0).unwrap();
    plan.sources.iter_mut().for_each(|piece| piece.mapped = false);
    arena.commit(plan);
    let [first, hole, last] = addrs.map(|addr| arena.chunk_at(addr).unwrap());
    let tail = arena.chunks.next(last);
    assert_eq!(arena.check(), Ok(()));
    (arena, [first, hole, last, tail])
}

#[test]
fn holes_are_whole_apart_listed_and_counted() {
    type Break = fn(&mut Arena, [ChunkId; 4]);
    let breaks: &[(Broken, Break)] = &[
        (Broken::I1Tiling, |arena, [first, hole, ..]| {
            // A unit of the hole is the chunk's before it.
            let addr = hot(arena, hole).addr;
            arena.starts.clear(&arena.chunks.slab, &mut arena.regions, addr, hole);
            hot(arena, hole).addr += UNIT;
            let size = hot(arena, hole).size();
            hot(arena, hole).set_size(size - UNIT);
            hot(arena, first).set_size(size + UNIT);
            arena.starts.set(&mut arena.regions, addr + UNIT, hole);
        }),
        (Broken::I1Tiling, |arena, _| arena.holes.range = None),
        (Broken::I2Coalescing, |arena, [_, hole, ..]| {
            arena.chunks.reserve(1).unwrap();
            let rest = arena.add_after(hole, 4 * UNIT);
            arena.list_hole(rest);
        }),
        (Broken::I3Index, |arena, [_, hole, ..]| arena.unlist_hole(hole)),
        (Broken::I3Index, |arena, [_, hole, ..]| {
            arena.unlist_hole(hole);
            hot(arena, hole).mark_hole(0);
        }),
        (Broken::I3Index, |arena, [_, hole, _, tail]| {
            let places = [hole, tail].map(|id| hot(arena, id).hole_place());
            hot(arena, hole).mark_hole(places[1]);
            hot(arena, tail).mark_hole(places[0]);
        }),
        (Broken::I3Index, |arena, [first, ..]| {
            arena.list_hole(first);
            hot(arena, first).mark_in_use();
        }),
        (Broken::I3Index, |arena, _| arena.holes.coming = 1),
        (Broken::I3Index, |arena, [first, ..]| {
            arena.free(BASE).unwrap();
            arena.unindex(first);
            hot(arena, first).mark_away();
        }),
        (Broken::I4Accounting, |arena, _| arena.holes.bytes += 4 * UNIT),
        (Broken::I4Accounting, |arena, _| arena.regions.get_mut(0).given -= 4 * UNIT),
        (Broken::I4Accounting, |arena, _| arena.growth.pool_bytes -= 4 * UNIT),
    ];
    for (number, &(broken, break_it)) in breaks.iter().enumerate() {
        let (mut arena, of) = granular();
        break_it(&mut arena, of);
        assert_eq!(arena.check(), Err(broken), "break {number}");
    }
}
