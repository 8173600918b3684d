//! Breaks each invariant of the heap and of granules on purpose, in every way that the fields allow, one way at a time.
//! The check must name that invariant, and must have found nothing wrong before.

use super::chunk::{Cold, Hot};
use super::heap::Heap;
use super::size_classes::class_of;
use crate::arena::{Arena, Reuse};
use crate::ids::{ChunkId, NIL};
use crate::invariants::Broken;
use crate::request::Request;
use crate::stream_id::Stream;
use crate::tests::sound::{BASE, Break, Placed, each_is_named, empty, granular};
use crate::units::UNIT;
use crate::vmm::VmRange;

fn heap(arena: &mut Arena) -> &mut Heap {
    arena.internals().streams.heap_mut()
}

fn vm(arena: &mut Arena) -> (&mut Heap, &mut VmRange) {
    let rooms = arena.internals();
    (rooms.streams.heap_mut(), rooms.vm)
}

fn hot(arena: &mut Arena, id: ChunkId) -> &mut Hot {
    &mut heap(arena).chunks.slab_mut()[id]
}

/// Makes a vacant place of the slab with the address that a former chunk began at.
fn bygone(arena: &mut Arena, addr: u64) -> ChunkId {
    let (slab, vacant) = heap(arena).chunks.slab_and_vacant();
    let id = vacant.fill(slab, Hot::new(addr, UNIT, 0, NIL, NIL));
    vacant.add(slab, id);
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
        |arena, of| heap(arena).regions.get_mut(0).first = of.free,
        |arena, _| heap(arena).regions.get_mut(0).bytes += UNIT,
        |arena, _| heap(arena).regions.get_mut(1).bytes -= UNIT,
        |arena, of| {
            let Hot { addr, prev, next, .. } = *hot(arena, of.used);
            *hot(arena, of.used) = Hot::new(addr, 2 * UNIT, 1, prev, next);
        },
        // In the list but vacant, and a chunk without a region.
        |arena, of| hot(arena, of.between).left = ChunkId(u32::MAX),
        |arena, _| {
            let lost = Hot::new(BASE << 2, UNIT, 0, NIL, NIL);
            let (slab, vacant) = heap(arena).chunks.slab_and_vacant();
            vacant.fill(slab, lost);
        },
    ];
    each_is_named(Broken::I1Tiling, Reuse::Streams, breaks);
    each_is_named(Broken::I1Tiling, Reuse::Stamps, breaks);
}

#[test]
fn i2_free_neighbours_have_merged() {
    let free_alone: Break = |arena, of| {
        let addr = heap(arena).chunks.addr(of.between);
        heap(arena).begin_free(addr).unwrap();
        insert(arena, of.between, 3 * UNIT);
    };
    each_is_named(Broken::I2Coalescing, Reuse::Streams, &[free_alone]);
}

#[test]
fn i3_the_index_holds_what_is_free() {
    let breaks: &[Break] = &[
        // Removed from the index, but not marked so.
        |arena, of| heap(arena).unindex(of.rest),
        |arena, of| heap(arena).unindex(of.free),
        |arena, of| heap(arena).unindex(of.other),
        // The first of the two in a list loses the second one, or has it on the wrong side.
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
            heap(arena).unindex(of.free);
            hot(arena, of.free).mark_held();
        },
        // A mark without a chunk, and a chunk without a mark.
        |arena, _| heap(arena).index.mark(class_of(5 * UNIT), true),
        |arena, of| {
            let class = class_of(heap(arena).chunks.size(of.rest));
            heap(arena).index.mark(class, false);
        },
    ];
    each_is_named(Broken::I3Index, Reuse::Streams, breaks);
    // With stamps the two are in the tree of another index.
    each_is_named(Broken::I3Index, Reuse::Stamps, &[breaks[0], breaks[3], breaks[4]]);
}

/// Returns one of the two free chunks of a class that is linked to the other; in a tree the root.
fn upper_of(arena: &mut Arena, of: &Placed) -> ChunkId {
    let Hot { left, right, .. } = *hot(arena, of.free);
    if left == NIL && right == NIL { of.other } else { of.free }
}

#[test]
fn i4_the_counters_agree_with_the_chunks() {
    let breaks: &[Break] = &[
        |arena, _| heap(arena).counters.bytes_in_use += UNIT,
        |arena, _| heap(arena).counters.bytes_requested -= 1,
        |arena, _| heap(arena).counters.miscount(),
        |arena, _| heap(arena).counters.peak_bytes_in_use = arena.counters().bytes_in_use - 1,
        |arena, _| heap(arena).counters.peak_bytes_requested = 0,
        |arena, _| take_from_pool(arena, 1),
        |arena, _| heap(arena).regions.get_mut(1).given += 1,
        |arena, of| {
            // More bytes than the chunk has, with matching counters.
            let allocation_id = heap(arena).chunks.cold(of.used).allocation_id;
            heap(arena).chunks.cold[of.used.index()] = Cold { requested: 2 * UNIT + 1, allocation_id };
            heap(arena).counters.bytes_requested += 2;
            heap(arena).counters.peak_bytes_requested += 2;
        },
    ];
    each_is_named(Broken::I4Accounting, Reuse::Streams, breaks);
}

#[test]
fn i5_best_fit_finds_the_best() {
    // The largest chunk of all in the tree of a lower class: in order, but not where searches look for it.
    let misplaced: Break = |arena, _| {
        let id = arena.chunk_at(BASE << 1).unwrap();
        heap(arena).unindex(id);
        insert(arena, id, (1 << 20) - 64 * UNIT);
    };
    each_is_named(Broken::I5BestFit, Reuse::Streams, &[misplaced]);
    each_is_named(Broken::I5BestFit, Reuse::Stamps, &[misplaced]);
}

#[test]
fn i6_starts_map_to_their_chunks() {
    let breaks: &[Break] = &[
        |arena, of| forget(arena, of.used),
        |arena, of| forget(arena, of.between),
        |arena, of| forget(arena, of.last),
        // An entry for a free chunk.
        |arena, of| {
            let addr = heap(arena).chunks.addr(of.other);
            set_start(arena, addr, of.other);
        },
        |arena, _| heap(arena).regions.get_mut(0).first = NIL,
        // An entry for a chunk that began inside another before it was merged into that.
        |arena, of| {
            let inside = heap(arena).chunks.addr(of.last) + UNIT;
            let id = bygone(arena, inside);
            set_start(arena, inside, id);
        },
    ];
    each_is_named(Broken::I6Starts, Reuse::Streams, breaks);
    each_is_named(Broken::I6Starts, Reuse::Stamps, breaks);
}

#[test]
fn i6_also_where_the_tables_are_flat() {
    let breaks: &[fn(&mut Arena, ChunkId)] = &[
        forget,
        |arena, id| {
            let (addr, other) = (heap(arena).chunks.addr(id), heap(arena).chunks.next(id));
            set_start(arena, addr, other);
        },
        |arena, id| {
            let inside = heap(arena).chunks.addr(id) + UNIT;
            set_start(arena, inside, id);
        },
        |arena, id| {
            let free = heap(arena).chunks.next(id);
            let addr = heap(arena).chunks.addr(free);
            set_start(arena, addr, free);
        },
    ];
    for (number, break_it) in breaks.iter().enumerate() {
        let mut arena = empty(1 << 15, Reuse::Streams);
        let small: Vec<u64> = (0..80)
            .map(|_| arena.alloc(&Request::plain(3 * UNIT, 1, Stream::NONE)).unwrap().unwrap())
            .collect();
        arena.free(small[40]).unwrap();
        let id = arena.chunk_in_use(small[39]).unwrap();
        assert!(heap(&mut arena).starts.needs_flat());
        assert_eq!(arena.check(), Ok(()));
        break_it(&mut arena, id);
        assert_eq!(arena.check(), Err(Broken::I6Starts), "break {number}");
    }
}

fn insert(arena: &mut Arena, id: ChunkId, size: u64) {
    let Heap { chunks, index, .. } = heap(arena);
    index.insert(chunks.slab_mut(), id, size);
}

fn set_start(arena: &mut Arena, addr: u64, id: ChunkId) {
    let Heap { starts, regions, .. } = heap(arena);
    starts.set(regions, addr, id);
}

fn clear_start(arena: &mut Arena, addr: u64, id: ChunkId) {
    let Heap { starts, regions, .. } = heap(arena);
    starts.clear(regions, addr, id);
}

fn take_from_pool(arena: &mut Arena, bytes: u64) {
    let growth = &mut heap(arena).growth;
    growth.set_pool_bytes(growth.pool_bytes() - bytes);
}

fn list(arena: &mut Arena, id: ChunkId) {
    let (heap, vm) = vm(arena);
    vm.add(heap, id);
}

fn unlist(arena: &mut Arena, id: ChunkId) {
    let (heap, vm) = vm(arena);
    vm.remove(heap, id);
}

fn forget(arena: &mut Arena, id: ChunkId) {
    let addr = heap(arena).chunks.addr(id);
    clear_start(arena, addr, id);
}

#[test]
fn unmapped_chunks_are_whole_apart_listed_and_counted() {
    type Break = fn(&mut Arena, [ChunkId; 4]);
    let breaks: &[(Broken, Break)] = &[
        (Broken::I1Tiling, |arena, [first, unmapped, ..]| {
            // A unit of the unmapped chunk belongs to the chunk before it.
            let addr = hot(arena, unmapped).addr;
            clear_start(arena, addr, unmapped);
            hot(arena, unmapped).addr += UNIT;
            let size = hot(arena, unmapped).size();
            hot(arena, unmapped).set_size(size - UNIT);
            hot(arena, first).set_size(size + UNIT);
            set_start(arena, addr + UNIT, unmapped);
        }),
        (Broken::I1Tiling, |arena, _| *vm(arena).1.internals().range = None),
        (Broken::I2Coalescing, |arena, [_, unmapped, ..]| {
            heap(arena).chunks.reserve(1).unwrap();
            let rest = heap(arena).split(unmapped, 4 * UNIT);
            list(arena, rest);
        }),
        (Broken::I3Index, |arena, [_, unmapped, ..]| unlist(arena, unmapped)),
        (Broken::I3Index, |arena, [_, unmapped, ..]| {
            unlist(arena, unmapped);
            hot(arena, unmapped).mark_unmapped(0);
        }),
        (Broken::I3Index, |arena, [_, unmapped, _, tail]| {
            let places = [unmapped, tail].map(|id| hot(arena, id).unmapped_place());
            hot(arena, unmapped).mark_unmapped(places[1]);
            hot(arena, tail).mark_unmapped(places[0]);
        }),
        (Broken::I3Index, |arena, [first, ..]| {
            list(arena, first);
            hot(arena, first).mark_in_use();
        }),
        (Broken::I3Index, |arena, _| *vm(arena).1.internals().coming = 1),
        (Broken::I3Index, |arena, [first, ..]| {
            arena.free(BASE).unwrap();
            heap(arena).unindex(first);
            hot(arena, first).mark_withheld();
        }),
        (Broken::I4Accounting, |arena, _| *vm(arena).1.internals().bytes += 4 * UNIT),
        (Broken::I4Accounting, |arena, _| heap(arena).regions.get_mut(0).given -= 4 * UNIT),
        (Broken::I4Accounting, |arena, _| take_from_pool(arena, 4 * UNIT)),
    ];
    for (number, &(broken, break_it)) in breaks.iter().enumerate() {
        let (mut arena, of) = granular();
        break_it(&mut arena, of);
        assert_eq!(arena.check(), Err(broken), "break {number}");
    }
}
