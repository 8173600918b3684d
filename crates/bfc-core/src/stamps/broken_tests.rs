//! Breaks each invariant of stamps on purpose, in every way that the fields allow, one way at a time. The check must
//! name that invariant, and must have found nothing wrong before.

use super::queue::StampQueue;
use crate::arena::{Arena, Reuse};
use crate::heap::Heap;
use crate::invariants::Broken;
use crate::tests::sound::{BASE, Break, each_is_named};

fn parts(arena: &mut Arena) -> (&mut Heap, &mut StampQueue) {
    let rooms = arena.internals();
    (rooms.streams.heap_mut(), rooms.stamps)
}

#[test]
fn i2_safe_neighbours_have_merged() {
    let settle_alone: Break = |arena, of| {
        arena.free(BASE).unwrap();
        assert_eq!(arena.check(), Ok(()), "two stamped neighbours are no fault");
        {
            let (heap, stamps) = parts(arena);
            stamps.remove_free(heap, of.used);
        }
        {
            let (heap, stamps) = parts(arena);
            stamps.insert_free(heap, of.used, 0);
        }
        assert_eq!(arena.check(), Ok(()), "nor is one");
        {
            let (heap, stamps) = parts(arena);
            stamps.remove_free(heap, of.free);
        }
        {
            let (heap, stamps) = parts(arena);
            stamps.insert_free(heap, of.free, 0);
        }
    };
    each_is_named(Broken::I2Coalescing, Reuse::Stamps, &[settle_alone]);
}

#[test]
fn i3_what_is_stamped_is_queued() {
    let breaks: &[Break] = &[
        |arena, _| *parts(arena).1 = StampQueue::new(1, false),
        |arena, of| parts(arena).0.chunks_mut().set_stamp(of.rest, 1),
        |arena, of| parts(arena).0.chunks_mut().set_stamp(of.used, 3),
        // Queued under a later turn than its stamp, not at all, and with the address of another chunk.
        |arena, of| parts(arena).1.requeue(of.free, 7),
        |arena, of| parts(arena).1.remove(of.free),
        |arena, of| {
            parts(arena).1.remove(of.free);
            parts(arena).1.push(of.free, BASE, 1);
        },
        // Queued while in use, or without a stamp.
        |arena, of| {
            let addr = arena.chunks().addr(of.used);
            parts(arena).0.chunks_mut().set_stamp(of.used, 3);
            parts(arena).1.push(of.used, addr, 3);
        },
        |arena, of| {
            let addr = arena.chunks().addr(of.rest);
            parts(arena).1.push(of.rest, addr, 1);
        },
        // A stamp at a place without a chunk.
        |arena, _| {
            let vacant = arena.chunks().place(arena.chunks().places() - 1);
            parts(arena).0.chunks_mut().set_stamp(vacant, 1);
        },
        // Due for merging, but the queue counts as settled.
        |arena, _| {
            arena.raise_frontier(2);
            parts(arena).1.hide_due();
        },
    ];
    each_is_named(Broken::I3Index, Reuse::Stamps, breaks);
    each_is_named(Broken::I3Index, Reuse::Quarantine, breaks);
    // In quarantine, but without a stamp.
    each_is_named(
        Broken::I3Index,
        Reuse::Quarantine,
        &[|arena, of| parts(arena).0.chunks_mut().set_stamp(of.free, 0)],
    );
}

#[test]
fn i3_what_is_stamped_is_in_an_index_of_its_own() {
    let breaks: &[Break] = &[
        |arena, of| {
            let (heap, stamps) = parts(arena);
            stamps.index.remove(heap.chunks_mut(), of.free)
        },
        |arena, of| {
            let (heap, stamps) = parts(arena);
            stamps.index.remove(heap.chunks_mut(), of.other)
        },
        |arena, _| parts(arena).1.index.clear(),
        // In the wrong one of the two indices.
        |arena, of| {
            {
                let (heap, stamps) = parts(arena);
                stamps.index.remove(heap.chunks_mut(), of.free)
            };
            parts(arena).0.add_to_index(of.free);
        },
        |arena, of| {
            parts(arena).0.unindex(of.rest);
            {
                let (heap, stamps) = parts(arena);
                stamps.index.insert(heap.chunks_mut(), of.rest)
            };
        },
        // The least stamp below a chunk is wrong: for its own stamp, or for that of the chunk below it.
        |arena, of| parts(arena).1.index.misstate(of.free, 0),
        |arena, of| parts(arena).1.index.misstate(of.other, 3),
    ];
    each_is_named(Broken::I3Index, Reuse::Stamps, breaks);
    // A stamp that the index was not told about.
    each_is_named(
        Broken::I3Index,
        Reuse::Stamps,
        &[|arena, of| parts(arena).0.chunks_mut().set_stamp(of.free, 7)],
    );
}
