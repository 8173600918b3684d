//! No pattern of sizes, addresses or histories makes an operation expensive, counted in steps instead of time.

use crate::arena::{Arena, RegionGrowth, Reuse, Settings};
use crate::heap::Steps;
use crate::op_names::Name;
use crate::request::Request;
use crate::stream_id::Stream;
use crate::testing::Random;
use crate::units::UNIT;

const BASE: u64 = 0x7f12_3400_0000;
/// How many chunks of a pattern are in use.
const LIVE: usize = 100_000;

type Sizes = Box<dyn FnMut(&mut Random) -> u64>;

/// Sizes in units, one request after the other.
fn patterns() -> Vec<(String, Sizes)> {
    let mut patterns: Vec<(String, Sizes)> = Vec::new();
    // The percentage of requests of the first size. Sizes mixed in the golden ratio are the worst case of Fibonacci
    // hashing.
    for (one, other) in [(987, 610), (988, 611), (377, 233), (1, 2), (512, 513), (1, 4096)] {
        for share in [50, 62] {
            let sizes = move |random: &mut Random| if random.chance(share) { one } else { other };
            patterns.push((format!("{share}% of {one}, else {other}"), Box::new(sizes)));
        }
    }
    for stride in [1, 2, 3, 7, 233, 256, 377, 610, 987, 1024, 1597, 4096, 65_536, 65_537, 1 << 20] {
        patterns.push((format!("all of {stride}"), Box::new(move |_| stride)));
    }
    patterns.push(("powers of two".into(), Box::new(|random| 1 << random.below(12))));
    let mut fibonacci = (1, 1);
    let rising = move |_: &mut Random| {
        fibonacci = if fibonacci.0 > 5000 { (1, 1) } else { (fibonacci.1, fibonacci.0 + fibonacci.1) };
        fibonacci.0
    };
    patterns.push(("Fibonacci numbers".into(), Box::new(rising)));
    patterns
}

/// An arena of one region with room for everything.
fn roomy(seed: u64) -> Arena {
    let settings = Settings { seed, split_always: true, ..Settings::new(1 << 45) };
    let mut arena = Arena::new(settings).unwrap();
    let extension = arena.plan_extension(UNIT).unwrap();
    arena.add_region(&extension, BASE, 1 << 45).unwrap();
    arena
}

fn take(arena: &mut Arena, units: u64) -> u64 {
    arena.alloc(&Request::plain(units * UNIT, units * UNIT, Stream::NONE)).unwrap().unwrap()
}

fn filled(seed: u64, mut sizes: impl FnMut(&mut Random) -> u64) -> (Arena, Vec<u64>) {
    let (mut arena, mut random) = (roomy(seed), Random(seed));
    let addrs = (0..LIVE).map(|_| take(&mut arena, sizes(&mut random))).collect();
    (arena, addrs)
}

fn steps(arena: &Arena) -> Steps {
    arena.heap().search_steps()
}

#[test]
fn no_pattern_of_sizes_makes_searches_for_addresses_long() {
    // Sizes without a pattern are the reference.
    let usual = steps(&filled(1, |random| 1 + random.below(1 << 16)).0);
    let mut bad = Vec::new();
    for (number, (name, sizes)) in patterns().into_iter().enumerate() {
        let found = steps(&filled(number as u64, sizes).0);
        if found.search > 3 * usual.search {
            bad.push(format!("{name}: {found:?}"));
        }
    }
    assert!(bad.is_empty(), "usual: {usual:?}\n{}", bad.join("\n"));
}

/// Asserts that the deepest tree of free chunks is shallow. A list of `count` chunks would be `count` deep.
fn assert_shallow(arena: &Arena, what: &str) {
    let count = arena.heap().indexed_from(UNIT).count();
    let (depth, most) = (arena.heap().deepest_tree(), 4 * count.ilog2() as usize + 16);
    assert!(depth <= most, "{what}: {count} free chunks, {depth} deep, at most {most}");
}

#[test]
fn no_history_makes_the_trees_of_free_chunks_deep() {
    const FREE: usize = 10_000;
    type Order = fn(&mut Vec<u64>, &mut Random);
    let orders: [(&str, Order); 4] = [
        ("in order", |_, _| {}),
        ("backwards", |addrs, _| addrs.reverse()),
        ("inwards", |addrs, _| {
            let (low, high) = addrs.split_at(addrs.len() / 2);
            *addrs = low.iter().zip(high.iter().rev()).flat_map(|(&low, &high)| [low, high]).collect();
        }),
        ("shuffled", |addrs, random| {
            (1..addrs.len()).for_each(|i| addrs.swap(i, random.below(i as u64 + 1) as usize))
        }),
    ];
    for units in [1, 5, 377, 1024] {
        for (name, order) in orders {
            let (mut arena, mut random) = (roomy(units), Random(units));
            // In address order, chunks get the numbers that were freed last, so one round determines the start of the
            // next.
            for round in 0..4 {
                let addrs: Vec<u64> = (0..2 * FREE).map(|_| take(&mut arena, units)).collect();
                let mut every_other: Vec<u64> = addrs.iter().step_by(2).copied().collect();
                order(&mut every_other, &mut random);
                every_other.iter().for_each(|&addr| arena.free(addr).unwrap());
                assert_shallow(&arena, &format!("{units} units {name}, round {round}"));
                let others = addrs.iter().skip(1).step_by(2);
                others.for_each(|&addr| arena.free(addr).unwrap());
            }
        }
    }
}

/// Frees chunks in address order whose numbers have falling priorities under a hash known to an adversary.
#[test]
fn numbers_of_chunks_do_not_shape_the_trees() {
    const FREE: usize = 10_000;
    // The finalizer of MurmurHash3.
    let mixed = |number: usize| {
        let mut bits = number as u32;
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
        bits ^ (bits >> 16)
    };
    let mut arena = roomy(7);
    // Triples: the first two chunks can merge, and the third separates them from the next triple.
    let triples: Vec<[u64; 3]> = (0..2 * FREE).map(|_| [(); 3].map(|()| take(&mut arena, 1))).collect();
    // Numbers are reused last in, first out: chunks that end by rising priority are reused by falling priority.
    let mut ends: Vec<[u64; 3]> = triples;
    ends.sort_unstable_by_key(|&[_, second, _]| mixed(arena.chunk_at(second).unwrap().index()));
    for [first, second, _] in ends {
        arena.free(second).unwrap();
        arena.free(first).unwrap();
    }
    let behind: Vec<u64> = (0..2 * FREE).map(|_| take(&mut arena, 3)).collect();
    behind.iter().step_by(2).for_each(|&addr| arena.free(addr).unwrap());
    assert_shallow(&arena, "chunks whose numbers were chosen");
}

#[test]
fn the_slab_grows_by_a_few_places_with_each_allocation() {
    let mut arena = roomy(1);
    let places = |arena: &Arena| arena.chunks().places();
    for _ in 0..LIVE / 4 {
        let before = places(&arena);
        take(&mut arena, 3);
        assert!(places(&arena) <= before + 64 && places(&arena) <= arena.chunks().count() + 65);
    }
}

/// A pool with every kind of table, of which nearly everything or everything was freed.
fn emptied(settings: Settings, leave: usize) -> (u64, Arena, Vec<u64>) {
    const COUNT: usize = 20_000;
    let mut arena = Arena::new(Settings { split_always: true, ..settings }).unwrap();
    let mut addrs = Vec::new();
    for base in [BASE, BASE << 1] {
        let extension = arena.plan_extension(UNIT).unwrap();
        arena.add_region(&extension, base, 1 << 30).unwrap();
        for i in 0..COUNT as u64 {
            let tag = arena.tag(Name::new("operation"), i).unwrap();
            let request = Request {
                scope: Some(&tag).filter(|_| i % 2 == 0),
                ..Request::plain(3 * UNIT, 1, Stream::NONE)
            };
            addrs.push(arena.alloc(&request).unwrap().unwrap());
        }
    }
    let most = arena.stats().metadata_bytes;
    addrs.drain(leave..).for_each(|addr| arena.free(addr).unwrap());
    arena.raise_frontier(u64::MAX);
    (most, arena, addrs)
}

#[test]
fn a_trim_gives_the_metadata_back() {
    for reuse in [Reuse::Streams, Reuse::Stamps] {
        for leave in [0, 1, 10] {
            let settings = Settings {
                reuse,
                growth: RegionGrowth::Doubling,
                initial_region: 1 << 30,
                ..Settings::new(1 << 40)
            };
            let fresh = Arena::new(settings).unwrap().stats().metadata_bytes;
            let (most, mut arena, addrs) = emptied(settings, leave);
            assert_eq!(arena.detach_above(0).unwrap().len(), if leave == 0 { 2 } else { 1 });
            arena.forget_past();
            let left = arena.stats().metadata_bytes;
            assert!(most > fresh + (1 << 20), "{most}");
            // With nothing left, there is only the operation's name.
            let few = if leave == 0 { 512 } else { 16_384 };
            assert!(left <= fresh + few, "{left} of {most} bytes, {fresh} at the beginning");
            assert_eq!(arena.check(), Ok(()));
            // The pool remains usable.
            let extension = arena.plan_extension(UNIT).unwrap();
            arena.add_region(&extension, BASE << 1, 1 << 30).unwrap();
            for _ in 0..1000 {
                take(&mut arena, 5);
            }
            addrs.into_iter().for_each(|addr| arena.free(addr).unwrap());
            assert_eq!(arena.check(), Ok(()));
        }
    }
}

#[test]
fn a_trim_with_several_streams_gives_the_metadata_back() {
    let settings =
        Settings { growth: RegionGrowth::Doubling, initial_region: 1 << 30, ..Settings::new(1 << 40) };
    let mut arena = Arena::new(Settings { split_always: true, ..settings }).unwrap();
    let extension = arena.plan_extension(UNIT).unwrap();
    arena.add_region(&extension, BASE, 1 << 30).unwrap();
    let streams = [Stream::of_handle(16), Stream::of_handle(32)];
    let take = |arena: &mut Arena, i: usize| {
        arena.alloc(&Request::plain(3 * UNIT, 1, streams[i % 2])).unwrap().unwrap()
    };
    let addrs: Vec<u64> = (0..20_000).map(|i| take(&mut arena, i)).collect();
    let most = arena.stats().metadata_bytes;
    addrs[100..].iter().for_each(|&addr| arena.free(addr).unwrap());
    streams.iter().for_each(|&stream| arena.streams_mut().stream_done(stream, false));
    // As in a trim of the pool.
    arena.streams_mut().share_some(usize::MAX);
    arena.forget_past();
    let left = arena.stats().metadata_bytes;
    assert!(left < most / 8, "{left} of {most} bytes");
    assert_eq!(arena.check(), Ok(()));
    let again: Vec<u64> = (0..1000).map(|i| take(&mut arena, i)).collect();
    addrs[..100].iter().chain(&again).for_each(|&addr| arena.free(addr).unwrap());
    assert_eq!(arena.check(), Ok(()));
}
