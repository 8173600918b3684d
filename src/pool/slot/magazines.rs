//! Small blocks that threads have freed and are about to request again, found without the allocator's lock.
//!
//! The name and the idea are from Bonwick and Adams, "Magazines and Vmem" (2001). A framework on the CPU allocates and
//! frees small tensors all the time, from many threads. Each block in a magazine is a chunk in use to the allocator, so
//! nothing in it changes: best fit and coalescing are as before for all that is requested from it.
//!
//! A magazine belongs to a number of threads, by a hash of their tokens, and not to one: so nothing has to be done when a
//! thread ends. A thread that finds its magazine busy does not wait for it, but calls the allocator.
//!
//! Magazines are closed at first, and each time that they are emptied. They are opened and emptied with the allocator's
//! lock held only. So whoever has emptied them with the lock held finds exact numbers until the lock is released.

use crate::core::arena::Arena;
use crate::core::stream_id::Stream;
use crate::core::units::UNIT;
use crate::sys::lock::Lock;
use crate::sys::token;
use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// How many magazines there are. Each has a bit in a word.
const MAGAZINES: usize = 64;
/// The blocks of a magazine are of so many sizes: 256 bytes, 512, 768 and 1024.
const SIZES: usize = 4;
const STEP: u64 = 256;
/// How many blocks of each size a magazine holds at most. With it a magazine is 1 KiB, and holds at most 70 KiB.
const DEPTH: usize = 28;

/// A size that magazines have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct SmallSize(u8);

impl SmallSize {
    /// Returns the size for a request, if it is small and not 0.
    #[inline(always)]
    pub(in crate::pool) fn of(bytes: u64) -> Option<Self> {
        let step = bytes.wrapping_sub(1) / STEP;
        (step < SIZES as u64).then_some(SmallSize(step as u8))
    }
}

/// Whether a magazine has taken a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Put {
    Done,
    FullOrBusy,
    Closed,
    /// The magazine has the block already.
    Twice,
}

/// The magazines of a slot. There are none until the first is opened.
pub(in crate::pool) struct Magazines {
    all: AtomicPtr<[Magazine; MAGAZINES]>,
    /// A bit for each magazine that may be open. Changed with the slot's lock held.
    open: AtomicU64,
}

/// The alignment keeps two magazines from sharing a cache line, including a prefetched neighbour.
#[repr(align(128))]
struct Magazine {
    lock: Lock,
    blocks: UnsafeCell<Blocks>,
}

/// All zero bytes are a closed magazine without blocks.
struct Blocks {
    addrs: [[u64; DEPTH]; SIZES],
    lengths: [u8; SIZES],
    /// Where the allocator's memory begins and ends. Nothing in a closed magazine.
    bounds: (u64, u64),
    /// How many requests were served since the magazine was opened.
    served: u64,
}

const _: () = assert!(size_of::<Magazine>() == 1024);

// SAFETY: the blocks are reached with the lock held, or in a forked child that has one thread.
unsafe impl Sync for Magazine {}

impl Blocks {
    #[inline(always)]
    fn take(&mut self, size: SmallSize) -> Option<u64> {
        let length = &mut self.lengths[usize::from(size.0)];
        *length = length.checked_sub(1)?;
        self.served += 1;
        Some(self.addrs[usize::from(size.0)][usize::from(*length)])
    }

    #[inline(always)]
    fn put(&mut self, size: SmallSize, addr: u64) -> Put {
        let (begin, end) = self.bounds;
        // Most addresses that are no block's are told by this, and go to the allocator, which refuses them.
        if addr < begin || addr >= end || !addr.is_multiple_of(UNIT) {
            return Put::Closed;
        }
        let (addrs, length) = (&mut self.addrs[usize::from(size.0)], &mut self.lengths[usize::from(size.0)]);
        if addrs.iter().take(usize::from(*length)).any(|&present| present == addr) {
            return Put::Twice;
        }
        let Some(place) = addrs.get_mut(usize::from(*length)) else { return Put::FullOrBusy };
        *place = addr;
        *length += 1;
        Put::Done
    }
}

impl Magazine {
    /// Runs `change` if no other thread is at this magazine.
    #[inline(always)]
    fn try_change<T>(&self, change: impl FnOnce(&mut Blocks) -> T) -> Option<T> {
        if !self.lock.try_acquire() {
            return None;
        }
        // SAFETY: the lock is held.
        let changed = change(unsafe { &mut *self.blocks.get() });
        self.lock.release();
        Some(changed)
    }

    /// Runs `change` once no other thread is at this magazine. Returns `None` in a signal handler that interrupted this
    /// thread there.
    fn change<T>(&self, change: impl FnOnce(&mut Blocks) -> T) -> Option<T> {
        self.lock.acquire().ok()?;
        // SAFETY: the lock is held.
        let changed = change(unsafe { &mut *self.blocks.get() });
        self.lock.release();
        Some(changed)
    }
}

impl Magazines {
    pub(super) const fn new() -> Self {
        Magazines { all: AtomicPtr::new(null_mut()), open: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn all(&self) -> Option<&[Magazine; MAGAZINES]> {
        // SAFETY: NULL, or what `make` created, which stays.
        unsafe { self.all.load(Acquire).as_ref() }
    }

    /// Returns a block that was put into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn take(&self, size: SmallSize) -> Option<u64> {
        self.all()?[number_here()].try_change(|blocks| blocks.take(size))?
    }

    /// Puts a block into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn put(&self, size: SmallSize, addr: u64) -> Put {
        let Some(all) = self.all() else { return Put::Closed };
        all[number_here()].try_change(|blocks| blocks.put(size, addr)).unwrap_or(Put::FullOrBusy)
    }

    /// Opens this thread's magazine for memory within bounds. The slot's lock must be held. Without host memory it stays
    /// closed.
    pub(super) fn open(&self, bounds: (u64, u64)) {
        let (number, Some(all)) = (number_here(), self.all().or_else(|| self.make())) else { return };
        if all[number].change(|blocks| blocks.bounds = bounds).is_some() {
            self.open.fetch_or(1 << number, Relaxed);
        }
    }

    #[cold]
    fn make(&self) -> Option<&[Magazine; MAGAZINES]> {
        // SAFETY: the layout is not of size 0.
        let all = unsafe { alloc_zeroed(Layout::new::<[Magazine; MAGAZINES]>()) };
        // Zero bytes are an open lock, and a closed magazine. The slot's lock keeps others from making them too.
        self.all.store(all.cast(), Release);
        self.all()
    }

    /// Returns whether any magazine is open.
    #[inline]
    pub(super) fn are_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// Closes all magazines and frees their blocks. The slot's lock must be held. Returns whether there were any blocks.
    #[cold]
    pub(super) fn empty_into(&self, arena: &mut Arena) -> bool {
        let mut freed = false;
        self.close(|blocks| {
            arena.count_reuse(std::mem::take(&mut blocks.served));
            for (addrs, length) in blocks.addrs.iter().zip(&mut blocks.lengths) {
                for &addr in &addrs[..usize::from(std::mem::take(length))] {
                    freed = true;
                    // Nothing else frees a block in a magazine, so that it is refused is a fault of the caller's: it
                    // has freed the block twice.
                    if !arena.free_at_once(addr, Stream::NONE) {
                        let _ = arena.free(addr);
                    }
                }
            }
        });
        freed
    }

    /// Closes all magazines and forgets their blocks, where the allocator's memory is lost or not to be touched any more.
    #[cold]
    pub(super) fn abandon(&self) {
        self.close(|blocks| (blocks.lengths, blocks.served) = ([0; SIZES], 0));
    }

    fn close(&self, mut end: impl FnMut(&mut Blocks)) {
        let Some(all) = self.all() else { return };
        let mut open = self.open.load(Relaxed);
        while open != 0 {
            let number = open.trailing_zeros() as usize;
            open &= open - 1;
            let close = |blocks: &mut Blocks| {
                blocks.bounds = (0, 0);
                end(blocks);
            };
            if all[number].change(close).is_some() {
                self.open.fetch_and(!(1 << number), Relaxed);
            }
        }
    }

    /// Closes all magazines in a forked child. Blocks that are left there, because the fork came in the middle of a call,
    /// stay in use.
    pub(super) fn close_in_child(&self) {
        for magazine in self.all().into_iter().flatten() {
            // SAFETY: this is the only thread.
            let blocks = unsafe { &mut *magazine.blocks.get() };
            // Does not write unless necessary, because the page may never have been touched.
            if blocks.bounds != (0, 0) {
                (blocks.bounds, blocks.lengths, blocks.served) = ((0, 0), [0; SIZES], 0);
            }
            magazine.lock.reset_after_fork();
        }
        self.open.store(0, Relaxed);
    }

    /// Returns the host memory that the magazines occupy, in bytes.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.all().map_or(0, |all| size_of_val(all) as u64)
    }
}

/// Returns the number of this thread's magazine. Tokens are addresses, which differ in some of the middle bits.
#[inline(always)]
fn number_here() -> usize {
    (token::current() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - MAGAZINES.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: (u64, u64) = (256, 1 << 20);

    fn opened() -> Magazines {
        let magazines = Magazines::new();
        magazines.open(BOUNDS);
        magazines
    }

    #[test]
    fn sizes_are_steps_of_256_up_to_1024() {
        assert_eq!([0, 1025, u64::MAX].map(SmallSize::of), [None; 3]);
        let sizes = [0, 0, 1, 2, 3, 3].map(|size| Some(SmallSize(size)));
        assert_eq!([1, 256, 257, 768, 769, 1024].map(SmallSize::of), sizes);
    }

    #[test]
    fn a_closed_magazine_takes_nothing() {
        let (magazines, size) = (Magazines::new(), SmallSize(0));
        assert_eq!((magazines.put(size, 256), magazines.take(size)), (Put::Closed, None));
        assert!(!magazines.are_open());
        magazines.open(BOUNDS);
        assert!(magazines.are_open() && magazines.put(size, 256) == Put::Done);
        magazines.abandon();
        assert_eq!((magazines.take(size), magazines.put(size, 256)), (None, Put::Closed));
        assert!(!magazines.are_open());
    }

    #[test]
    fn blocks_come_back_in_their_size_and_the_last_one_first() {
        let magazines = opened();
        for number in 0..4 {
            for addr in [1 << 12, 2 << 12] {
                assert_eq!(magazines.put(SmallSize(number), addr + 256 * u64::from(number)), Put::Done);
            }
        }
        for number in 0..4 {
            let taken = [(); 3].map(|()| magazines.take(SmallSize(number)));
            let place = 256 * u64::from(number);
            assert_eq!(taken, [Some((2 << 12) + place), Some((1 << 12) + place), None]);
        }
    }

    #[test]
    fn a_full_magazine_refuses_and_a_busy_one_does_too() {
        let (magazines, size) = (opened(), SmallSize(3));
        for number in 1..=DEPTH as u64 {
            assert_eq!(magazines.put(size, number * 256), Put::Done);
        }
        assert_eq!(
            (magazines.put(size, 99 * 256), magazines.put(size, 3 * 256)),
            (Put::FullOrBusy, Put::Twice)
        );
        assert_eq!(magazines.put(SmallSize(0), 99 * 256), Put::Done);
        let all = magazines.all().unwrap();
        let inside = all[number_here()].change(|_| (magazines.take(size), magazines.put(SmallSize(1), 256)));
        assert_eq!(inside, Some((None, Put::FullOrBusy)));
        assert_eq!(magazines.take(size), Some(DEPTH as u64 * 256));
    }

    #[test]
    fn an_address_that_is_no_blocks_is_not_taken() {
        let magazines = opened();
        for addr in [0, 255, 257, 1 << 20, u64::MAX] {
            assert_eq!(magazines.put(SmallSize(0), addr), Put::Closed);
        }
    }

    #[test]
    fn a_child_finds_open_locks_and_no_blocks() {
        let magazines = opened();
        assert_eq!(magazines.put(SmallSize(0), 256), Put::Done);
        let all = magazines.all().unwrap();
        assert!(all.iter().all(|magazine| magazine.lock.acquire().is_ok()));
        magazines.close_in_child();
        assert!(all.iter().all(|magazine| !magazine.lock.is_taken()));
        magazines.open(BOUNDS);
        assert!(magazines.take(SmallSize(0)).is_none());
    }
}
