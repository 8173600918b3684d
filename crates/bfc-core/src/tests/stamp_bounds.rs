//! Bounds on the work of single calls with timestamps, counted in steps instead of time, for any number of waiting
//! chunks.

use crate::arena::{Arena, RegionGrowth, Reuse, Settings};
use crate::request::Request;
use crate::stamps::Forced;
use crate::steps;
use crate::stream_id::Stream;
use crate::testing::Random;
use crate::units::UNIT;

const CHUNKS: u64 = 4000;
/// About as many steps as some tens of tree searches take.
const FEW: u64 = 1000;
/// How many chunks the pool merges while it holds the lock.
const PIECE: usize = 8;
/// The steps of one such piece.
const OF_PIECE: u64 = 2 * FEW;

/// Numbers in an order that looks random.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| number * 7919 % count)
}

fn arena(units: u64) -> Arena {
    let bytes = units * UNIT;
    let settings = Settings::new(bytes);
    let settings =
        Settings { reuse: Reuse::Stamps, split_always: true, growth: RegionGrowth::Doubling, ..settings };
    let mut arena = Arena::new(Settings { initial_region: bytes, ..settings }).unwrap();
    let plan = arena.plan_extension(bytes).unwrap();
    arena.add_region(&plan, 1 << 40, bytes).unwrap();
    arena
}

fn request(units: u64, newest: u64) -> Request<'static> {
    Request { max_stamp: newest, ..Request::plain(units * UNIT, units * UNIT, Stream::NONE) }
}

fn take(arena: &mut Arena, units: u64, newest: u64) -> Option<u64> {
    let (steps, addr) = steps::of(|| arena.alloc(&request(units, newest)).unwrap());
    assert!(steps < FEW, "{steps} steps of a request");
    addr
}

fn free(arena: &mut Arena, addr: u64) {
    let (steps, ()) = steps::of(|| arena.free(addr).unwrap());
    assert!(steps < FEW, "{steps} steps of a free");
}

/// Every other chunk of `units` units waits under a stamp, in no particular order of addresses. Nothing else is free.
fn waiting(units: u64) -> Arena {
    let mut arena = arena(2 * CHUNKS * units);
    let addrs: Vec<u64> = (0..2 * CHUNKS).map(|_| take(&mut arena, units, u64::MAX).unwrap()).collect();
    shuffled(CHUNKS).for_each(|number| free(&mut arena, addrs[2 * number as usize]));
    assert_eq!((arena.last_stamp(), arena.check()), (CHUNKS, Ok(())));
    arena
}

#[test]
fn chunks_that_are_too_new_cost_a_request_few_steps() {
    let mut arena = waiting(2);
    assert_eq!(take(&mut arena, 1, 0), None, "all are too new");
    let oldest = shuffled(CHUNKS).take(3).collect::<Vec<u64>>();
    for number in oldest {
        let found = take(&mut arena, 2, 3).expect("three are not");
        assert!(shuffled(CHUNKS).take(3).any(|other| found == (1 << 40) + 4 * other * UNIT), "{number}");
    }
    assert_eq!(take(&mut arena, 2, 3), None);
}

#[test]
fn parts_of_stamped_chunks_are_queued_in_few_steps() {
    let mut arena = waiting(4);
    let mut addrs = Vec::new();
    for _ in 0..2 {
        // The remainder of each is queued between older and newer ones.
        for number in shuffled(CHUNKS) {
            let newest = if number % 2 == 0 { u64::MAX } else { CHUNKS / 2 };
            addrs.extend(take(&mut arena, 1, newest));
        }
        assert_eq!(arena.check(), Ok(()));
    }
    addrs.into_iter().for_each(|addr| free(&mut arena, addr));
}

#[test]
fn a_frontier_that_passes_many_chunks_costs_each_call_few_steps() {
    let mut arena = waiting(1);
    let (steps, ()) = steps::of(|| arena.raise_frontier(CHUNKS));
    assert!(steps < FEW, "{steps} steps of a frontier");
    let mut calls = 0;
    while take(&mut arena, 1, u64::MAX).is_none() {
        assert!(arena.is_merging(), "else there is a chunk");
        let (steps, _) = steps::of(|| arena.merge_safe_some(PIECE));
        assert!(steps < OF_PIECE, "{steps} steps of a piece");
        calls += 1;
    }
    assert!((CHUNKS / 20..CHUNKS / 10).contains(&calls), "{calls} pieces");
    assert_eq!(arena.check(), Ok(()));
}

#[test]
fn forced_merges_take_few_steps_each_call() {
    for larger in [2, 1 << 40] {
        let mut arena = waiting(1);
        // Other chunks now wait between these, and can merge with them.
        let first = 1 << 40;
        shuffled(CHUNKS - 1).for_each(|number| free(&mut arena, first + (2 * number + 1) * UNIT));
        let (steps, mut pass) = steps::of(|| arena.begin_forced_pass());
        assert!(steps < FEW, "{steps} steps to begin");
        let end = loop {
            let (steps, forced) = steps::of(|| arena.merge_forced_some(&mut pass, larger * UNIT, PIECE));
            assert!(steps < OF_PIECE, "{steps} steps of a piece");
            if forced != Forced::More {
                break forced;
            }
        };
        assert_eq!((end, arena.check()), (if larger == 2 { Forced::Found } else { Forced::Over }, Ok(())));
    }
}

#[test]
fn chunks_that_were_handed_out_leave_nothing_in_the_queue() {
    let mut arena = waiting(1);
    for _ in 0..3 {
        let addrs: Vec<u64> = (0..CHUNKS).map(|_| take(&mut arena, 1, u64::MAX).unwrap()).collect();
        assert!(!arena.stamps_wait());
        addrs.into_iter().for_each(|addr| free(&mut arena, addr));
    }
}

/// The lock is open between the pieces: other threads allocate, free, raise the frontier and run passes of their own.
#[test]
fn passes_end_whatever_happens_between_their_pieces() {
    const UNITS: u64 = 120;
    for seed in 0..30 {
        let (mut arena, mut random, mut live) = (arena(UNITS), Random(seed), Vec::new());
        let mut passes = [(); 2].map(|()| arena.begin_forced_pass());
        let mut pieces = [0; 2];
        for _ in 0..400 {
            match random.below(8) {
                0..3 => {
                    let newest = random.pick(&[u64::MAX, arena.last_stamp() / 2]);
                    let alignment = UNIT << random.below(3);
                    let request = Request { alignment, ..request(1 + random.below(4), newest) };
                    live.extend(arena.alloc(&request).unwrap());
                }
                3..5 if !live.is_empty() => {
                    let place = random.below(live.len() as u64) as usize;
                    arena.free(live.swap_remove(place)).unwrap();
                }
                5 if random.chance(10) => arena.raise_frontier(random.below(arena.last_stamp() + 2)),
                _ => {
                    let which = random.below(2) as usize;
                    let size = random.pick(&[2 * UNIT, 1 << 40]);
                    pieces[which] += 1;
                    let most = 1 + random.below(2) as usize;
                    if arena.merge_forced_some(&mut passes[which], size, most) != Forced::More {
                        passes[which] = arena.begin_forced_pass();
                        pieces[which] = 0;
                    }
                    assert!(pieces[which] <= 2 * UNITS, "a pass that does not end");
                }
            }
            assert_eq!(arena.check(), Ok(()), "seed {seed}");
        }
    }
}
