//! Bounds on the work of single calls, counted in steps instead of time, after any history.

use crate::arena::{Arena, RegionGrowth, Settings};
use crate::request::Request;
use crate::steps;
use crate::stream_id::Stream;
use crate::units::UNIT;

/// About as many steps as some tens of tree searches take.
const FEW: u64 = 1000;

fn arena(units: u64) -> Arena {
    let bytes = units * UNIT;
    let mut arena =
        Arena::new(Settings { growth: RegionGrowth::Doubling, ..Settings::new(bytes + 64 * UNIT) }).unwrap();
    let plan = arena.plan_extension(bytes).unwrap();
    arena.add_region(&plan, 1 << 40, bytes).unwrap();
    arena
}

fn take(arena: &mut Arena, units: u64, stream: Stream) -> Option<u64> {
    arena.alloc(&Request::plain(units * UNIT, units * UNIT, stream)).unwrap()
}

fn free(arena: &mut Arena, addr: u64, stream: Stream) {
    arena.free_on(addr, stream).unwrap().unwrap();
}

fn numbered(number: u64) -> Stream {
    Stream::of_handle(1000 + number)
}

/// Numbers in an order that looks random.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| number * 7919 % count)
}

/// An arena with two streams, so that streams are told apart.
fn mixed(units: u64) -> Arena {
    let mut arena = arena(units);
    for handle in [10, 11] {
        let addr = take(&mut arena, 1, Stream::of_handle(handle)).unwrap();
        free(&mut arena, addr, Stream::of_handle(handle));
        arena.streams_mut().stream_done(Stream::of_handle(handle), true);
    }
    arena
}

#[test]
fn a_new_stream_takes_little_memory() {
    const STREAMS: u64 = 1000;
    let mut arena = mixed(4 * STREAMS);
    let before = arena.stats().metadata_bytes;
    for number in shuffled(STREAMS) {
        let addr = take(&mut arena, 1, numbered(number)).unwrap();
        free(&mut arena, addr, numbered(number));
    }
    let each = (arena.stats().metadata_bytes - before) / STREAMS;
    assert!(each < 1024, "{each} bytes for each stream and its chunk");
}

#[test]
fn a_new_stream_takes_few_steps() {
    const STREAMS: u64 = 2000;
    let mut arena = mixed(4 * STREAMS);
    for number in shuffled(STREAMS) {
        let (steps, addr) = steps::of(|| take(&mut arena, 1, numbered(number)).unwrap());
        assert!(steps < FEW, "{steps} steps for stream {number}");
        let (steps, ()) = steps::of(|| free(&mut arena, addr, numbered(number)));
        assert!(steps < FEW, "{steps} steps for a free on stream {number}");
    }
    for number in shuffled(STREAMS) {
        let (steps, ()) = steps::of(|| arena.streams_mut().stream_done(numbered(number), true));
        assert!(steps < FEW, "{steps} steps to say that stream {number} is done");
        let (steps, _) = steps::of(|| arena.streams_mut().forget_stream(numbered(number)).unwrap());
        assert!(steps < FEW, "{steps} steps to forget stream {number}");
    }
    // Places of forgotten streams are found without examining all of them.
    for number in shuffled(STREAMS) {
        let (steps, addr) = steps::of(|| take(&mut arena, 1, numbered(STREAMS + number)).unwrap());
        assert!(steps < FEW, "{steps} steps for a stream that comes later");
        free(&mut arena, addr, numbered(STREAMS + number));
    }
    assert!(arena.streams().queue_count() < 2 * STREAMS as usize, "places are used again");
}

#[test]
fn idle_streams_cost_a_look_at_unfinished_work_nothing() {
    const STREAMS: u64 = 2000;
    let mut arena = mixed(4 * STREAMS);
    for number in 0..STREAMS {
        let addr = take(&mut arena, 1, numbered(number)).unwrap();
        arena.streams_mut().record_use(addr, numbered(number + 1)).unwrap().unwrap();
        free(&mut arena, addr, numbered(number));
        if number != 77 && number != 177 {
            arena.streams_mut().stream_done(numbered(number), true);
        }
    }
    let (steps, streams) = steps::of(|| {
        let unfinished = arena.streams().unfinished(|_| true);
        unfinished.map(|unfinished| unfinished.stream).collect::<Vec<_>>()
    });
    assert!(streams.contains(&numbered(77)) && streams.contains(&numbered(177)));
    assert!(steps < FEW, "{steps} steps to find what two of {STREAMS} streams still do");
}

#[test]
fn forgotten_streams_leave_no_memory_after_a_trim() {
    const STREAMS: u64 = 4000;
    let mut arena = mixed(64);
    let before = arena.stats().metadata_bytes;
    // All at once, so that each has a place of its own.
    for number in 0..STREAMS {
        arena.streams_mut().begin_private(numbered(number), 7).unwrap().unwrap();
        arena.streams_mut().end_private(numbered(number), 7).unwrap();
        let addr = take(&mut arena, 1, numbered(number)).unwrap();
        free(&mut arena, addr, numbered(number));
        arena.streams_mut().stream_done(numbered(number), true);
    }
    let most = arena.stats().metadata_bytes - before;
    assert!(most < STREAMS * 1024, "{most} bytes while they exist");
    for number in 0..STREAMS {
        arena.streams_mut().forget_stream(numbered(number)).unwrap();
    }
    arena.forget_past();
    let left = arena.stats().metadata_bytes.saturating_sub(before);
    assert!(left < 4096, "{left} bytes are left of {STREAMS} forgotten streams");
    // Knowledge about earlier work that was obtained with the lock open must not apply to streams that appear later.
    let addr = take(&mut arena, 1, numbered(1)).unwrap();
    free(&mut arena, addr, numbered(1));
    assert_eq!(take(&mut arena, 64, numbered(2)), None, "the work of a stream that came later is not done");
}

/// Streams without memory are not kept for ever, although none of them is forgotten. Those with memory are many and next
/// to each other.
#[test]
fn idle_streams_make_room_for_others() {
    const LIVE: u64 = 1000;
    let mut arena = mixed(4 * LIVE);
    let before = arena.stats().metadata_bytes;
    let held: Vec<u64> = (0..LIVE).map(|number| take(&mut arena, 1, numbered(number)).unwrap()).collect();
    for number in LIVE..20 * LIVE {
        let (steps, addr) = steps::of(|| take(&mut arena, 1, numbered(number)).unwrap());
        assert!(steps < FEW, "{steps} steps for stream {number}");
        free(&mut arena, addr, numbered(number));
        arena.streams_mut().stream_done(numbered(number), true);
    }
    let count = arena.streams().queue_count() as u64;
    assert!(count < LIVE + LIVE / 2, "{count} queues for {LIVE} streams with memory");
    assert_eq!(arena.check(), Ok(()));
    for (&addr, number) in held.iter().zip(0..) {
        free(&mut arena, addr, numbered(number));
        arena.streams_mut().stream_done(numbered(number), true);
    }
    arena.forget_past();
    let left = arena.stats().metadata_bytes.saturating_sub(before);
    assert!(left < 4096, "{left} bytes are left of {LIVE} idle streams");
    assert_eq!(arena.check(), Ok(()));
    // What was given up does not count as kept in reserve.
    for number in 20 * LIVE..22 * LIVE {
        let addr = take(&mut arena, 1, numbered(number)).unwrap();
        free(&mut arena, addr, numbered(number));
        arena.streams_mut().stream_done(numbered(number), true);
    }
    let count = arena.streams().queue_count();
    assert!(count < 16, "{count} queues for no stream with memory");
}

/// Every other unit is a free chunk of the first stream.
fn scattered(chunks: u64) -> (Arena, Stream, Stream) {
    let (first, second) = (Stream::of_handle(10), Stream::of_handle(11));
    let mut arena = mixed(2 * chunks);
    let addrs: Vec<u64> = (0..2 * chunks).map(|_| take(&mut arena, 1, first).unwrap()).collect();
    for number in shuffled(chunks) {
        free(&mut arena, addrs[2 * number as usize], first);
    }
    (arena, first, second)
}

#[test]
fn a_verdict_takes_few_steps_however_many_chunks_wait() {
    const CHUNKS: u64 = 4000;
    let (mut arena, first, second) = scattered(CHUNKS);
    assert_eq!(take(&mut arena, 1, second), None, "the work may still touch all of it");
    let (steps, ()) = steps::of(|| arena.streams_mut().stream_done(first, true));
    assert!(steps < FEW, "{steps} steps of a verdict on {CHUNKS} chunks");
    for _ in 0..CHUNKS {
        let (steps, addr) = steps::of(|| take(&mut arena, 1, second));
        assert!(addr.is_some(), "all of it is reusable at once");
        assert!(steps < FEW, "{steps} steps of a request behind a verdict");
    }
    assert_eq!(take(&mut arena, 1, second), None);
}

/// Creates free chunks of two units, of which only the last begins at a multiple of two. Returns that chunk. Nothing
/// else is free.
fn misaligned(chunks: u64, stream: Stream, is_mixed: bool) -> (Arena, u64) {
    let units = 4 * chunks + 6;
    let mut arena = if is_mixed { mixed(units) } else { arena(units) };
    let sizes = (0..chunks).flat_map(|_| [1, 2, 1]).chain([2, 2, 2]);
    let addrs: Vec<u64> = sizes.map(|units| take(&mut arena, units, stream).unwrap()).collect();
    for number in shuffled(chunks) {
        free(&mut arena, addrs[3 * number as usize + 1], stream);
    }
    let last = addrs[addrs.len() - 2];
    free(&mut arena, last, stream);
    (arena, last)
}

#[test]
fn an_alignment_takes_few_steps_beside_many_chunks_without_a_place_at_it() {
    const CHUNKS: u64 = 4000;
    let stream = Stream::of_handle(10);
    for is_mixed in [false, true] {
        let (mut arena, last) = misaligned(CHUNKS, stream, is_mixed);
        let request = Request { alignment: 2 * UNIT, ..Request::plain(2 * UNIT, 2 * UNIT, stream) };
        let (steps, found) = steps::of(|| arena.alloc(&request).unwrap());
        assert!(steps < FEW, "{steps} steps of a request that is not thorough");
        assert_eq!(found, None);
        assert_eq!(
            arena.alloc(&Request { thorough: true, ..request }).unwrap(),
            Some(last),
            "the only place"
        );
        assert_eq!(arena.alloc(&Request { thorough: true, ..request }).unwrap(), None);
        // A chunk that has a place wherever it begins is found at once.
        let base = 1 << 50;
        let plan = arena.plan_extension(8 * UNIT).unwrap();
        arena.add_region(&plan, base + UNIT, 8 * UNIT).unwrap();
        let (steps, found) = steps::of(|| arena.alloc(&request).unwrap());
        assert!(steps < FEW, "{steps} steps to one that is large enough");
        assert_eq!(found, Some(base + 2 * UNIT));
    }
}

#[test]
fn a_large_alignment_takes_few_steps_beside_many_chunks_of_one_size() {
    const CHUNKS: u64 = 4000;
    let stream = Stream::of_handle(10);
    for is_mixed in [false, true] {
        let mut arena = if is_mixed { mixed(2 * CHUNKS) } else { arena(2 * CHUNKS) };
        let addrs: Vec<u64> = (0..2 * CHUNKS).map(|_| take(&mut arena, 1, stream).unwrap()).collect();
        let alignment = 2048 * UNIT;
        // Every other chunk, except those at multiples of the alignment.
        let is_freed = |addr: u64| addr / UNIT % 2 == 1;
        for &addr in addrs.iter().filter(|&&addr| is_freed(addr)) {
            free(&mut arena, addr, stream);
        }
        let request = Request { alignment, thorough: true, ..Request::plain(UNIT, UNIT, stream) };
        let (steps, found) = steps::of(|| arena.alloc(&request).unwrap());
        assert_eq!(found, None);
        assert!(steps < FEW, "{steps} steps beside {CHUNKS} chunks without a place");
        let only = addrs.iter().copied().rfind(|addr| addr % alignment == 0).unwrap();
        free(&mut arena, only, stream);
        let (steps, found) = steps::of(|| arena.alloc(&request).unwrap());
        assert_eq!(found, Some(only));
        assert!(steps < FEW, "{steps} steps to the only place");
    }
}

/// Neighbours of one stream that are not merged, because each has a point of its own.
#[test]
fn a_run_of_many_neighbours_takes_few_steps() {
    const CHUNKS: u64 = 4000;
    let (first, second) = (Stream::of_handle(10), Stream::of_handle(11));
    for order in ["in order", "backwards", "shuffled"] {
        let mut arena = mixed(CHUNKS);
        let mut addrs: Vec<u64> = (0..CHUNKS).map(|_| take(&mut arena, 1, first).unwrap()).collect();
        match order {
            "in order" => {}
            "backwards" => addrs.reverse(),
            _ => addrs = shuffled(CHUNKS).map(|number| addrs[number as usize]).collect(),
        }
        let mut most = 0;
        for &addr in &addrs {
            most = most.max(steps::of(|| free(&mut arena, addr, first)).0);
        }
        // After an allocation from the beginning and its free, everything is still one free span.
        let (steps, addr) = steps::of(|| take(&mut arena, 3, first).unwrap());
        most = most.max(steps);
        most = most.max(steps::of(|| free(&mut arena, addr, first)).0);
        arena.streams_mut().stream_done(first, true);
        // Each chunk leaves the free span at some position.
        while arena.streams().is_sharing() {
            most = most.max(steps::of(|| arena.streams_mut().share_some(1)).0);
        }
        assert!(most < FEW, "{most} steps {order}");
        assert_eq!(take(&mut arena, CHUNKS, second), Some(addr), "all of it is one chunk");
    }
}

/// A stream that allocates memory between another's chunks divides their free span.
#[test]
fn a_run_that_is_divided_takes_few_steps() {
    const CHUNKS: u64 = 4000;
    let (first, second) = (Stream::of_handle(10), Stream::of_handle(11));
    let mut arena = mixed(2 * CHUNKS);
    let addrs: Vec<u64> = (0..2 * CHUNKS).map(|_| take(&mut arena, 1, first).unwrap()).collect();
    let (odd, even): (Vec<u64>, Vec<u64>) = addrs.iter().partition(|&&addr| addr / UNIT % 2 == 1);
    odd.iter().for_each(|&addr| free(&mut arena, addr, first));
    arena.streams_mut().stream_done(first, true);
    arena.streams_mut().share_some(usize::MAX);
    even.iter().for_each(|&addr| free(&mut arena, addr, first));
    for _ in 0..CHUNKS {
        let (steps, addr) = steps::of(|| take(&mut arena, 1, second));
        assert!(addr.is_some_and(|addr| odd.contains(&addr)) && steps < FEW, "{steps} steps to {addr:x?}");
    }
}

#[test]
fn the_oldest_work_is_found_in_few_steps_if_it_serves() {
    const CHUNKS: u64 = 4000;
    let (mut arena, _, second) = scattered(CHUNKS);
    let request = Request::plain(UNIT, UNIT, second);
    assert_eq!(arena.alloc(&request).unwrap(), None);
    let (steps, dependencies) = steps::of(|| arena.dependencies(&request, |_| true).unwrap().unwrap());
    assert!(steps < FEW, "{steps} steps to the oldest of {CHUNKS} chunks");
    let work = dependencies.works[0];
    let queue = arena.streams().queue_of(second).unwrap();
    let since = arena.streams_mut().next_work(queue);
    let (steps, adopted) = steps::of(|| arena.adopt(&request, &[work], dependencies.place, since));
    assert!(adopted && steps < FEW, "{steps} steps to adopt it");
    assert!(arena.alloc(&request).unwrap().is_some());
}

/// The same with recorded uses that each chunk also waits for, on the request's own stream too.
#[test]
fn the_oldest_recorded_use_is_found_in_few_steps() {
    const CHUNKS: u64 = 4000;
    let [first, second, third] = [10, 11, 12].map(Stream::of_handle);
    let mut arena = mixed(CHUNKS);
    let addrs: Vec<u64> = (0..CHUNKS).map(|_| take(&mut arena, 1, first).unwrap()).collect();
    while take(&mut arena, 1, second).is_some() {}
    for (number, &addr) in addrs.iter().enumerate() {
        for stream in [[second, third], [third, first]][number % 2] {
            assert_eq!(arena.streams_mut().record_use(addr, stream).unwrap(), Ok(()));
        }
        free(&mut arena, addr, first);
    }
    let request = Request::plain(UNIT, UNIT, second);
    assert_eq!(arena.alloc(&request).unwrap(), None);
    let (steps, dependencies) = steps::of(|| arena.dependencies(&request, |_| true).unwrap().unwrap());
    assert!(steps < FEW, "{steps} steps to the oldest of {CHUNKS} chunks");
    let queue = arena.streams().queue_of(second).unwrap();
    let since = arena.streams_mut().next_work(queue);
    assert!(arena.adopt(&request, &dependencies.works, dependencies.place, since));
    assert_eq!(arena.alloc(&request).unwrap(), Some(addrs[0]), "the first that was freed");
}
