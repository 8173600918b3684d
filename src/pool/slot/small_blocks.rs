//! Which addresses are small blocks of an allocator, found and changed without its lock.
//!
//! A hash table of words without chains: a block has a place among the eight of its bucket, or none. A block without a
//! place is freed like any other chunk. A word is changed by the thread only that has the block, so a thread that finds it
//! changed meanwhile has lost a race against another free of the same block.

use crate::core::units::UNIT;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Small blocks are of so many sizes: 256 bytes, 512, 768 and 1024.
pub(super) const SIZES: usize = 4;
const BUCKETS: usize = 2048;
const WAYS: usize = 8;
/// Addresses of blocks are multiples of 256, so the low bits have the size and whether the block is in a magazine.
const SIZE_BITS: u64 = SIZES as u64 - 1;
const IN_MAGAZINE: u64 = SIZES as u64;
const ADDRESS_BITS: u64 = !(UNIT - 1);

const _: () = assert!(2 * IN_MAGAZINE <= UNIT);

/// A size of small blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct SmallSize(u8);

impl SmallSize {
    /// Returns the size for a request, if it is small and not 0.
    #[inline(always)]
    pub(in crate::pool) fn of(bytes: u64) -> Option<Self> {
        let step = bytes.wrapping_sub(1) / UNIT;
        (step < SIZES as u64).then_some(SmallSize(step as u8))
    }

    #[inline(always)]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The place of a block in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u16);

/// A small block, as a caller that frees it has found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    word: u64,
}

impl Found {
    #[inline(always)]
    pub(super) fn size(self) -> SmallSize {
        SmallSize((self.word & SIZE_BITS) as u8)
    }
}

/// The block was freed already, and is in a magazine or about to get there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct FreedTwice;

/// All zero bytes are a table without blocks.
pub(super) struct SmallBlocks([Bucket; BUCKETS]);

/// One cache line.
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

impl SmallBlocks {
    #[inline(always)]
    fn bucket_of(addr: u64) -> usize {
        (addr / UNIT).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - BUCKETS.ilog2())
    }

    #[inline(always)]
    fn word(&self, Place(place): Place) -> &AtomicU64 {
        let place = usize::from(place);
        &self.0[place / WAYS % BUCKETS].0[place % WAYS]
    }

    /// Adds a block that the caller got from the allocator, if there is a place for it.
    pub(super) fn add(&self, addr: u64, size: SmallSize) {
        let new = addr | u64::from(size.0);
        // What was freed otherwise than by `free_cached` has left its word.
        self.remove(addr);
        let words = &self.0[Self::bucket_of(addr)].0;
        let _ = words.iter().any(|word| word.compare_exchange(0, new, Relaxed, Relaxed).is_ok());
    }

    /// Removes a block that the caller got from the allocator, if there is such a word.
    pub(super) fn remove(&self, addr: u64) {
        if let Some(Found { place, .. }) = self.find(addr) {
            self.word(place).store(0, Relaxed);
        }
    }

    /// Returns the block at an address.
    #[inline(always)]
    pub(super) fn find(&self, addr: u64) -> Option<Found> {
        let bucket = Self::bucket_of(addr);
        for (way, word) in self.0[bucket].0.iter().enumerate() {
            let word = word.load(Relaxed);
            if word & ADDRESS_BITS == addr && addr != 0 {
                return Some(Found { place: Place((bucket * WAYS + way) as u16), word });
            }
        }
        None
    }

    /// Marks a block as in a magazine.
    #[inline(always)]
    pub(super) fn put_away(&self, found: Found) -> Result<(), FreedTwice> {
        self.change(found, found.word | IN_MAGAZINE)
    }

    /// Removes a block that is about to be freed in the allocator.
    #[inline(always)]
    pub(super) fn forget(&self, found: Found) -> Result<(), FreedTwice> {
        self.change(found, 0)
    }

    #[inline(always)]
    fn change(&self, Found { place, word }: Found, new: u64) -> Result<(), FreedTwice> {
        let changed =
            word & IN_MAGAZINE == 0 && self.word(place).compare_exchange(word, new, Relaxed, Relaxed).is_ok();
        if changed { Ok(()) } else { Err(FreedTwice) }
    }

    /// Marks the block in a place as given out. Returns its address.
    #[inline(always)]
    pub(super) fn take_out(&self, place: Place) -> u64 {
        let word = self.word(place);
        let given_out = word.load(Relaxed) & !IN_MAGAZINE;
        word.store(given_out, Relaxed);
        given_out & ADDRESS_BITS
    }

    /// Removes the block in a place, which is in a magazine. Returns its address.
    pub(super) fn take_away(&self, place: Place) -> u64 {
        self.word(place).swap(0, Relaxed) & ADDRESS_BITS
    }

    /// Removes all blocks.
    pub(super) fn clear(&self) {
        self.0.iter().flat_map(|bucket| &bucket.0).for_each(|word| word.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> SmallBlocks {
        SmallBlocks([const { Bucket([const { AtomicU64::new(0) }; WAYS]) }; BUCKETS])
    }

    #[test]
    fn sizes_are_steps_of_256_up_to_1024() {
        assert_eq!([0, 1025, u64::MAX].map(SmallSize::of), [None; 3]);
        let sizes = [0, 0, 1, 2, 3, 3].map(|size| Some(SmallSize(size)));
        assert_eq!([1, 256, 257, 768, 769, 1024].map(SmallSize::of), sizes);
    }

    #[test]
    fn only_what_was_added_is_found() {
        let table = table();
        for number in 1..1000 {
            table.add(number * 512, SmallSize((number % 4) as u8));
        }
        let is_found = |&number: &u64| {
            let found = table.find(number * 512);
            assert!(found.is_none_or(|found| found.size() == SmallSize((number % 4) as u8)));
            found.is_some()
        };
        assert!((1..1000).filter(is_found).count() > 950, "a bucket is rarely full");
        for addr in [0, 256, 512 + 1, 512 + 255, 1 << 40, u64::MAX] {
            assert!(table.find(addr).is_none(), "{addr}");
        }
        table.clear();
        assert!((1..1000).all(|number| table.find(number * 512).is_none()));
    }

    #[test]
    fn a_block_is_freed_once() {
        let (table, addr) = (table(), 7 << 20);
        table.add(addr, SmallSize(2));
        let [first, second] = [(); 2].map(|()| table.find(addr).unwrap());
        assert_eq!((table.put_away(first), table.put_away(second)), (Ok(()), Err(FreedTwice)));
        let third = table.find(addr).unwrap();
        assert_eq!((table.put_away(third), table.forget(third)), (Err(FreedTwice), Err(FreedTwice)));
        assert_eq!(table.take_out(first.place), addr);
        let again = table.find(addr).unwrap();
        assert_eq!((table.forget(again), table.put_away(again)), (Ok(()), Err(FreedTwice)));
        assert!(table.find(addr).is_none());
    }

    #[test]
    fn a_new_block_replaces_what_was_left_of_another_at_its_address() {
        let (table, addr) = (table(), 7 << 20);
        table.add(addr, SmallSize(0));
        table.add(addr, SmallSize(3));
        assert_eq!(table.find(addr).unwrap().size(), SmallSize(3));
        table.remove(addr);
        assert!(table.find(addr).is_none());
    }
}
