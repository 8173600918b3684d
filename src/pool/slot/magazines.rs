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

use super::small_blocks::{FreedTwice, Place, SIZES, SmallBlocks, SmallSize};
use crate::core::arena::Arena;
use crate::core::stream_id::Stream;
use crate::sys::lock::Lock;
use crate::sys::{clock, token};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// How many magazines there are. Each has a bit in a word.
const MAGAZINES: usize = 64;
/// How many blocks of each size a magazine holds at most: in all 70 KiB, or twice as much where chunks were not split for
/// the requests.
const DEPTH: usize = 28;
/// How long a thread that holds the allocator's lock waits for another one at a magazine.
const PATIENCE_MS: u64 = 10;
/// After an allocator that can have no magazines has refused to open one, so many requests there do not ask again.
const REST: u8 = 64;

/// What a magazine has for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Taken {
    Block(u64),
    /// There is none, but a block that the allocator gives out may come back here.
    Nothing,
    Closed,
    /// The magazine is closed, and may be opened.
    MayOpen,
}

/// Whether a magazine has taken a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Put {
    Done,
    /// The block, or whatever is at the address, is the allocator's to free.
    Refused,
}

/// The magazines of a slot. There are none until the first is opened. The alignment keeps them apart from the slot's lock,
/// which other threads write.
#[repr(align(128))]
pub(in crate::pool) struct Magazines {
    tables: AtomicPtr<Tables>,
    /// Blocks that were put before this number changed are not the allocator's any more.
    life: AtomicU64,
    /// A bit for each magazine that may be open. Changed with the slot's lock held.
    open: AtomicU64,
}

/// All zero bytes are closed magazines.
struct Tables {
    magazines: [Magazine; MAGAZINES],
    blocks: SmallBlocks,
}

/// The alignment keeps two magazines from sharing a cache line, including a prefetched neighbour.
#[repr(align(128))]
struct Magazine {
    lock: Lock,
    content: UnsafeCell<Content>,
}

struct Content {
    places: [[Place; DEPTH]; SIZES],
    lengths: [u8; SIZES],
    is_open: bool,
    /// How many requests are to come before the magazine may be opened.
    rest: u8,
    /// The number of [`Magazines::life`] when the magazine was opened.
    life: u64,
    /// How many requests were served since then.
    served: u64,
}

const _: () = assert!(size_of::<Magazine>() == 384);

// SAFETY: the content is reached with the lock held, or in a forked child that has one thread.
unsafe impl Sync for Magazine {}

impl Content {
    #[inline(always)]
    fn take(&mut self, size: SmallSize) -> Option<Place> {
        let length = &mut self.lengths[size.index()];
        *length = length.checked_sub(1)?;
        self.served += 1;
        Some(self.places[size.index()][usize::from(*length)])
    }

    /// Returns where a block goes, if there is room.
    #[inline(always)]
    fn room(&mut self, size: SmallSize) -> Option<(&mut Place, &mut u8)> {
        let length = &mut self.lengths[size.index()];
        Some((self.places[size.index()].get_mut(usize::from(*length))?, length))
    }

    /// Closes the magazine and forgets what is there.
    fn clear(&mut self) {
        (self.is_open, self.lengths, self.served) = (false, [0; SIZES], 0);
    }
}

impl Magazine {
    /// Returns the content if no other thread is at this magazine.
    #[inline(always)]
    fn try_enter(&self) -> Option<Entered<'_>> {
        // Not `then_some`: a value that is dropped would release the lock of another thread.
        self.lock.try_acquire().then(|| Entered(self))
    }

    /// Returns the content if no other thread stays at this magazine, and this thread was not interrupted there.
    fn enter_soon(&self) -> Option<Entered<'_>> {
        self.try_enter().or_else(|| {
            self.lock.acquire_before(clock::monotonic_ms() + PATIENCE_MS).ok()?;
            Some(Entered(self))
        })
    }
}

/// The content of a locked magazine.
struct Entered<'a>(&'a Magazine);

impl Deref for Entered<'_> {
    type Target = Content;

    #[inline(always)]
    fn deref(&self) -> &Content {
        // SAFETY: the lock is held.
        unsafe { &*self.0.content.get() }
    }
}

impl DerefMut for Entered<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Content {
        // SAFETY: the lock is held, and `&mut self` excludes another borrow.
        unsafe { &mut *self.0.content.get() }
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
        Magazines { tables: AtomicPtr::new(null_mut()), life: AtomicU64::new(1), open: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn tables(&self) -> Option<&Tables> {
        // SAFETY: NULL, or what `make` created, which stays.
        unsafe { self.tables.load(Acquire).as_ref() }
    }

    /// Returns whether a magazine is open for the allocator that the slot has now.
    #[inline(always)]
    fn is_open(&self, content: &Content) -> bool {
        content.is_open && content.life == self.life.load(Relaxed)
    }

    /// Returns a block that was put into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn take(&self, size: SmallSize) -> Taken {
        let Some(tables) = self.tables() else { return Taken::MayOpen };
        let Some(mut content) = tables.magazines[number_here()].try_enter() else { return Taken::Nothing };
        if self.is_open(&content) {
            content.take(size).map_or(Taken::Nothing, |place| Taken::Block(tables.blocks.take_out(place)))
        } else if content.rest != 0 {
            content.rest -= 1;
            Taken::Closed
        } else {
            Taken::MayOpen
        }
    }

    /// Notes that the allocator has given a block out, so that it may be put into a magazine when it is freed.
    pub(in crate::pool) fn note(&self, addr: u64, size: SmallSize) {
        if let Some(tables) = self.tables() {
            tables.blocks.add(addr, size);
        }
    }

    /// Notes that the allocator has given other memory out at an address.
    #[inline(always)]
    pub(in crate::pool) fn note_other(&self, addr: u64) {
        if let Some(tables) = self.tables() {
            tables.blocks.remove(addr);
        }
    }

    /// Puts a block into this thread's magazine.
    #[inline(always)]
    pub(in crate::pool) fn put(&self, addr: u64) -> Result<Put, FreedTwice> {
        let Some(tables) = self.tables() else { return Ok(Put::Refused) };
        let Some(found) = tables.blocks.find(addr) else { return Ok(Put::Refused) };
        if let Some(mut content) = tables.magazines[number_here()].try_enter()
            && self.is_open(&content)
            && let Some((place, length)) = content.room(found.size())
        {
            tables.blocks.put_away(found)?;
            *place = found.place;
            *length += 1;
            return Ok(Put::Done);
        }
        tables.blocks.forget(found)?;
        Ok(Put::Refused)
    }

    /// Opens this thread's magazine. The slot's lock must be held. Without host memory, and in a signal handler that
    /// interrupted a call there, it stays as it is.
    pub(super) fn open(&self) {
        let (number, Some(tables)) = (number_here(), self.tables().or_else(|| self.make())) else { return };
        let Some(mut content) = tables.magazines[number].try_enter() else { return };
        if !self.is_open(&content) {
            content.clear();
        }
        (content.is_open, content.life) = (true, self.life.load(Relaxed));
        self.open.fetch_or(1 << number, Relaxed);
    }

    /// Notes that this thread's magazine cannot be opened for now.
    pub(super) fn refuse(&self) {
        let Some(tables) = self.tables().or_else(|| self.make()) else { return };
        if let Some(mut content) = tables.magazines[number_here()].try_enter() {
            content.rest = REST;
        }
    }

    #[cold]
    fn make(&self) -> Option<&Tables> {
        // SAFETY: the layout is not of size 0.
        let tables = unsafe { alloc_zeroed(Layout::new::<Tables>()) };
        // The slot's lock keeps others from making them too.
        self.tables.store(tables.cast(), Release);
        self.tables()
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
        let (mut freed, Some(tables)) = (false, self.tables()) else { return false };
        for (number, magazine) in tables.magazines.iter().enumerate() {
            if self.open.load(Relaxed) >> number & 1 == 0 {
                continue;
            }
            let Some(mut content) = magazine.enter_soon() else { continue };
            if self.is_open(&content) {
                arena.count_reuse(content.served);
                for (places, &length) in content.places.iter().zip(&content.lengths) {
                    for &place in &places[..usize::from(length)] {
                        freed = true;
                        let addr = tables.blocks.take_away(place);
                        // It is refused only if the caller has freed it with bfc_free too.
                        if !arena.free_at_once(addr, Stream::NONE) {
                            let _ = arena.free(addr);
                        }
                    }
                }
            }
            content.clear();
            self.open.fetch_and(!(1 << number), Relaxed);
        }
        freed
    }

    /// Closes all magazines and forgets all blocks, where the allocator has ended or must not be touched any more.
    pub(in crate::pool) fn abandon(&self) {
        self.life.fetch_add(1, Relaxed);
        if let Some(tables) = self.tables() {
            tables.blocks.clear();
        }
    }

    /// Closes all magazines in a forked child. Blocks that are left there, because the fork came in the middle of a call,
    /// stay in use.
    pub(super) fn close_in_child(&self) {
        for magazine in self.tables().into_iter().flat_map(|tables| &tables.magazines) {
            // SAFETY: this is the only thread.
            let content = unsafe { &mut *magazine.content.get() };
            // Does not write unless necessary, because the page may never have been touched.
            if content.is_open {
                content.clear();
            }
            magazine.lock.reset_after_fork();
        }
        self.open.store(0, Relaxed);
    }

    /// Returns the host memory that the magazines occupy, in bytes.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.tables().map_or(0, |tables| size_of_val(tables) as u64)
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

    const SMALLEST: u64 = 1;
    const LARGEST: u64 = 1024;

    fn size(bytes: u64) -> SmallSize {
        SmallSize::of(bytes).unwrap()
    }

    fn opened() -> Magazines {
        let magazines = Magazines::new();
        magazines.open();
        magazines
    }

    fn put_new(magazines: &Magazines, addr: u64, bytes: u64) -> Result<Put, FreedTwice> {
        magazines.note(addr, size(bytes));
        magazines.put(addr)
    }

    #[test]
    fn a_closed_magazine_takes_nothing() {
        let magazines = Magazines::new();
        assert_eq!(put_new(&magazines, 256, SMALLEST), Ok(Put::Refused));
        assert_eq!(magazines.take(size(SMALLEST)), Taken::MayOpen);
        assert!(!magazines.are_open());
        magazines.open();
        assert_eq!(magazines.take(size(SMALLEST)), Taken::Nothing);
        assert!(magazines.are_open() && put_new(&magazines, 256, SMALLEST) == Ok(Put::Done));
        magazines.abandon();
        assert_eq!(put_new(&magazines, 512, SMALLEST), Ok(Put::Refused));
        assert_eq!(magazines.take(size(SMALLEST)), Taken::MayOpen);
        magazines.open();
        assert_eq!(magazines.take(size(SMALLEST)), Taken::Nothing, "the block is another allocator's");
    }

    #[test]
    fn it_rests_after_a_refusal() {
        let magazines = Magazines::new();
        magazines.refuse();
        assert!((0..REST).all(|_| magazines.take(size(SMALLEST)) == Taken::Closed));
        assert_eq!(magazines.take(size(SMALLEST)), Taken::MayOpen);
    }

    #[test]
    fn blocks_come_back_in_their_size_and_the_last_one_first() {
        let magazines = opened();
        let sizes = [1, 300, 600, 1000];
        let addr_of = |round: u64, bytes: u64| (round << 20) + bytes / 256 * 256 + 256;
        for bytes in sizes {
            for round in [1, 2] {
                assert_eq!(put_new(&magazines, addr_of(round, bytes), bytes), Ok(Put::Done));
            }
        }
        for bytes in sizes {
            let taken = [(); 3].map(|()| magazines.take(size(bytes)));
            let expected = [2, 1].map(|round| Taken::Block(addr_of(round, bytes)));
            assert_eq!(taken, [expected[0], expected[1], Taken::Nothing]);
        }
    }

    #[test]
    fn a_full_magazine_refuses_and_a_busy_one_does_too() {
        let magazines = opened();
        for number in 1..=DEPTH as u64 {
            assert_eq!(put_new(&magazines, number << 12, LARGEST), Ok(Put::Done));
        }
        assert_eq!(put_new(&magazines, 99 << 12, LARGEST), Ok(Put::Refused));
        assert_eq!(magazines.put(3 << 12), Err(FreedTwice));
        assert_eq!(put_new(&magazines, 99 << 12, SMALLEST), Ok(Put::Done));
        let entered = magazines.tables().unwrap().magazines[number_here()].try_enter();
        assert_eq!(magazines.take(size(LARGEST)), Taken::Nothing);
        assert_eq!(put_new(&magazines, 98 << 12, SMALLEST), Ok(Put::Refused));
        drop(entered);
        assert_eq!(magazines.take(size(LARGEST)), Taken::Block((DEPTH as u64) << 12));
    }

    #[test]
    fn an_address_that_is_no_blocks_is_the_allocators_to_judge() {
        let magazines = opened();
        magazines.note(1 << 12, size(LARGEST));
        for addr in [0, 255, (1 << 12) + 256, (1 << 12) + 1, u64::MAX] {
            assert_eq!(magazines.put(addr), Ok(Put::Refused));
        }
        magazines.note_other(1 << 12);
        assert_eq!(magazines.put(1 << 12), Ok(Put::Refused), "it is larger now");
    }

    #[test]
    fn a_child_finds_open_locks_and_no_blocks() {
        let magazines = opened();
        assert_eq!(put_new(&magazines, 256, SMALLEST), Ok(Put::Done));
        let all = &magazines.tables().unwrap().magazines;
        assert!(all.iter().all(|magazine| magazine.lock.acquire().is_ok()));
        magazines.close_in_child();
        assert!(all.iter().all(|magazine| !magazine.lock.is_taken()));
        magazines.open();
        assert_eq!(magazines.take(size(SMALLEST)), Taken::Nothing);
    }
}
