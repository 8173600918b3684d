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
//! lock held only, so after they were emptied the allocator's numbers are exact until its lock is released. A thread may
//! be interrupted at its magazine, by the scheduler or by a signal handler, which may even wait for the allocator's lock.
//! So a magazine that stays busy for [`PATIENCE_MS`] is left as it is, and its blocks count as in use.

use crate::core::arena::Arena;
use crate::core::stream_id::Stream;
use crate::core::units::UNIT;
use crate::sys::lock::Lock;
use crate::sys::{clock, token};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// How many magazines there are. Each has a bit in a word.
const MAGAZINES: usize = 64;
/// The blocks of a magazine are of so many sizes: 256 bytes, 512, 768 and 1024.
const SIZES: usize = 4;
const STEP: u64 = 256;
/// How many blocks of each size a magazine holds at most. With it a magazine is 1 KiB. It holds at most 70 KiB, or twice as
/// much where chunks were not split for the requests.
const DEPTH: usize = 28;
/// How long a thread that holds the allocator's lock waits for another one at a magazine.
const PATIENCE_MS: u64 = 10;

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
    /// The magazine is closed, or the address is outside the allocator's memory.
    Outside,
    /// The magazine has the block already.
    Twice,
}

/// The magazines of a slot. There are none until the first is opened. The alignment keeps them apart from the slot's lock,
/// which other threads write.
#[repr(align(128))]
pub(in crate::pool) struct Magazines {
    all: AtomicPtr<[Magazine; MAGAZINES]>,
    /// Blocks that were put before this number changed are not the allocator's any more.
    life: AtomicU64,
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
    /// The number of [`Magazines::life`] when the magazine was opened.
    life: u64,
    /// The first and the last region's outer ends. Nothing in a closed magazine.
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
            return Put::Outside;
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

    /// Forgets what is there.
    fn clear(&mut self) {
        (self.bounds, self.lengths, self.served) = ((0, 0), [0; SIZES], 0);
    }
}

impl Magazine {
    /// Returns the blocks if no other thread is at this magazine.
    #[inline(always)]
    fn try_enter(&self) -> Option<Entered<'_>> {
        // Not `then_some`: a value that is dropped would release the lock of another thread.
        self.lock.try_acquire().then(|| Entered(self))
    }

    /// Returns the blocks if no other thread stays at this magazine, and this thread was not interrupted there.
    fn enter_soon(&self) -> Option<Entered<'_>> {
        self.try_enter().or_else(|| {
            self.lock.acquire_before(clock::monotonic_ms() + PATIENCE_MS).ok()?;
            Some(Entered(self))
        })
    }
}

/// The blocks of a locked magazine.
struct Entered<'a>(&'a Magazine);

impl Deref for Entered<'_> {
    type Target = Blocks;

    #[inline(always)]
    fn deref(&self) -> &Blocks {
        // SAFETY: the lock is held.
        unsafe { &*self.0.blocks.get() }
    }
}

impl DerefMut for Entered<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Blocks {
        // SAFETY: the lock is held, and `&mut self` excludes another borrow.
        unsafe { &mut *self.0.blocks.get() }
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.lock.release();
    }
}

impl Magazines {
    pub(super) const fn new() -> Self {
        // 0 is the life of a magazine that was never opened.
        Magazines { all: AtomicPtr::new(null_mut()), life: AtomicU64::new(1), open: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn all(&self) -> Option<&[Magazine; MAGAZINES]> {
        // SAFETY: NULL, or what `make` created, which stays.
        unsafe { self.all.load(Acquire).as_ref() }
    }

    /// Returns whether the blocks are the allocator's.
    #[inline(always)]
    fn owns(&self, blocks: &Blocks) -> bool {
        blocks.life == self.life.load(Relaxed)
    }

    /// Returns a block that was put into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn take(&self, size: SmallSize) -> Option<u64> {
        let mut blocks = self.all()?[number_here()].try_enter()?;
        if self.owns(&blocks) { blocks.take(size) } else { None }
    }

    /// Puts a block into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn put(&self, size: SmallSize, addr: u64) -> Put {
        let Some(all) = self.all() else { return Put::Outside };
        let Some(mut blocks) = all[number_here()].try_enter() else { return Put::FullOrBusy };
        if self.owns(&blocks) { blocks.put(size, addr) } else { Put::Outside }
    }

    /// Opens this thread's magazine for memory within bounds. The slot's lock must be held. Without host memory, and in a
    /// signal handler that interrupted a call there, it stays as it is.
    pub(super) fn open(&self, bounds: (u64, u64)) {
        let (number, Some(all)) = (number_here(), self.all().or_else(|| self.make())) else { return };
        let Some(mut blocks) = all[number].try_enter() else { return };
        if !self.owns(&blocks) {
            blocks.clear();
        }
        (blocks.life, blocks.bounds) = (self.life.load(Relaxed), bounds);
        self.open.fetch_or(1 << number, Relaxed);
    }

    #[cold]
    fn make(&self) -> Option<&[Magazine; MAGAZINES]> {
        // SAFETY: the layout is not of size 0.
        let all = unsafe { alloc_zeroed(Layout::new::<[Magazine; MAGAZINES]>()) };
        // Zero bytes are open locks and closed magazines. The slot's lock keeps others from making them too.
        self.all.store(all.cast(), Release);
        self.all()
    }

    /// Returns whether any magazine is open.
    #[inline]
    pub(super) fn are_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// Closes all magazines and frees their blocks, but for those of magazines that stay busy. The slot's lock must be
    /// held. Returns whether there were any blocks.
    #[cold]
    pub(super) fn empty_into(&self, arena: &mut Arena) -> bool {
        let mut freed = false;
        for (number, magazine) in self.all().into_iter().flatten().enumerate() {
            if self.open.load(Relaxed) >> number & 1 == 0 {
                continue;
            }
            let Some(mut blocks) = magazine.enter_soon() else { continue };
            if self.owns(&blocks) {
                arena.count_reuse(blocks.served);
                for (addrs, &length) in blocks.addrs.iter().zip(&blocks.lengths) {
                    for &addr in &addrs[..usize::from(length)] {
                        freed = true;
                        // It is refused only if the caller has freed it otherwise too.
                        if !arena.free_at_once(addr, Stream::NONE) {
                            let _ = arena.free(addr);
                        }
                    }
                }
            }
            blocks.clear();
            self.open.fetch_and(!(1 << number), Relaxed);
        }
        freed
    }

    /// Closes all magazines and forgets their blocks, where the allocator has ended or must not be touched any more.
    pub(in crate::pool) fn abandon(&self) {
        self.life.fetch_add(1, Relaxed);
    }

    /// Closes all magazines in a forked child. Blocks that are left there, because the fork came in the middle of a call,
    /// stay in use.
    pub(super) fn close_in_child(&self) {
        for magazine in self.all().into_iter().flatten() {
            // SAFETY: this is the only thread.
            let blocks = unsafe { &mut *magazine.blocks.get() };
            // Does not write unless necessary, because the page may never have been touched.
            if blocks.life != 0 {
                blocks.clear();
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
        assert_eq!((magazines.put(size, 256), magazines.take(size)), (Put::Outside, None));
        assert!(!magazines.are_open());
        magazines.open(BOUNDS);
        assert!(magazines.are_open() && magazines.put(size, 256) == Put::Done);
        magazines.abandon();
        assert_eq!((magazines.take(size), magazines.put(size, 256)), (None, Put::Outside));
        magazines.open(BOUNDS);
        assert_eq!((magazines.take(size), magazines.put(size, 256)), (None, Put::Done));
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
        let entered = all[number_here()].try_enter();
        assert_eq!((magazines.take(size), magazines.put(SmallSize(1), 256)), (None, Put::FullOrBusy));
        drop(entered);
        assert_eq!(magazines.take(size), Some(DEPTH as u64 * 256));
    }

    #[test]
    fn an_address_that_is_no_blocks_is_not_taken() {
        let magazines = opened();
        for addr in [0, 255, 257, 1 << 20, u64::MAX] {
            assert_eq!(magazines.put(SmallSize(0), addr), Put::Outside);
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
