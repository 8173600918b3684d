//! A bounded local search that improves a placement.
//!
//! The pool is as large as it is because of gaps at some moment near the peak. The search takes the time at which the
//! highest item lives, chooses a gap there, and places the item above the gap earlier. A placement that is not worse is
//! kept, so the search also moves between equal placements (squeaky wheel optimization; Joslin and Clements, 1999). The
//! same program always results in the same plan, because the random numbers begin with the same seed.

use super::packing::{Packer, Packing};
use super::program::Program;

/// A generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}

/// Improves the first of several placements, and then each of the others for the same number of tries, until one has at
/// most `goal` bytes. Returns the best.
pub fn improve(
    packer: &mut Packer<'_>,
    program: &Program,
    candidates: Vec<Packing>,
    goal: u64,
    tries: usize,
    mut step: impl FnMut(u64),
) -> Option<Packing> {
    let mut random = Random(1);
    let count = candidates.len().max(1);
    let mut best: Option<Packing> = None;
    for (at, mut current) in candidates.into_iter().enumerate() {
        let share = tries / count + usize::from(at < tries % count);
        for _ in 0..share {
            if current.bytes <= goal {
                break;
            }
            if let Some(other) = moved(packer, program, &current, &mut random) {
                current = other;
            }
            step(best.as_ref().map_or(current.bytes, |best| best.bytes.min(current.bytes)));
        }
        if best.as_ref().is_none_or(|best| current.bytes < best.bytes) {
            best = Some(current);
        }
        if best.as_ref().is_some_and(|best| best.bytes <= goal) {
            break;
        }
    }
    best
}

/// Places one item earlier. Returns the placement if it takes no more bytes.
fn moved(
    packer: &mut Packer<'_>,
    program: &Program,
    current: &Packing,
    random: &mut Random,
) -> Option<Packing> {
    let end = |item: usize| current.offsets[item] + program.items[item].size;
    let top = (0..program.items.len()).max_by_key(|&item| (end(item), item))?;
    let times = program.items[top].spans().flat_map(|(first, last)| first..=last);
    let time = times.max_by_key(|&time| program.load[time as usize])?;
    let lives = |item: usize| program.items[item].spans().any(|(first, last)| first <= time && time <= last);
    let mut column: Vec<usize> = (0..program.items.len()).filter(|&item| lives(item)).collect();
    column.sort_unstable_by_key(|&item| current.offsets[item]);
    let chosen = column[above_a_gap(current, &column, end, random)];
    let from = current.order.iter().position(|&item| item as usize == chosen)?;
    if from == 0 {
        return None;
    }
    // Half of the moves are short: they change little, and are fast.
    let to = match random.below(2) {
        0 => from - 1 - random.below(from.min(64)),
        _ => random.below(from),
    };
    let mut order = current.order.clone();
    order[to..=from].rotate_right(1);
    packer.place(order, current.offsets.clone(), to, current.bytes)
}

/// Chooses an item above a gap, more often the larger the gap is, and occasionally any item.
fn above_a_gap(
    current: &Packing,
    column: &[usize],
    end: impl Fn(usize) -> u64,
    random: &mut Random,
) -> usize {
    let mut gaps = Vec::new();
    let mut below = 0;
    for (place, &item) in column.iter().enumerate() {
        let gap = current.offsets[item].saturating_sub(below);
        if gap > 0 {
            gaps.push((gap, place));
        }
        below = end(item);
    }
    let all: u64 = gaps.iter().map(|(gap, _)| gap).sum();
    if gaps.is_empty() || random.below(4) == 0 {
        return random.below(column.len());
    }
    let mut left = random.below(usize::try_from(all).unwrap_or(usize::MAX)) as u64;
    let chosen = gaps.iter().find(|(gap, _)| {
        let is_here = left < *gap;
        left = left.saturating_sub(*gap);
        is_here
    });
    let place = chosen.map_or(0, |(_, place)| *place);
    match random.below(3) {
        0 => place + random.below(column.len() - place),
        _ => place,
    }
}
