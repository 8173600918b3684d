//! A sub-allocator that violates its contract as its program selects, and checks the library's use of each grant.

use crate::common::*;
use arbitrary::{Result, Unstructured};
use std::sync::Mutex;

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// The requested size, at a distance from the last.
    Plain,
    /// At the end of the last one.
    Touching,
    /// Below all others.
    Below,
    /// NULL.
    Refuse,
    /// Many more bytes than requested.
    Generous(u32),
    /// A few more, not a whole unit.
    Odd(u8),
    /// A requested alignment, which is honoured.
    Aligned,
    // The following answers violate the contract.
    TooLittle,
    Misaligned(u8),
    /// Inside another grant.
    Overlapping,
    /// Over the odd tail of another grant.
    OverTail,
    /// Across the end of the address space.
    Wrapping,
    /// Calls the same device first, then like `Plain`.
    Reenter,
}

impl Manner {
    pub(crate) fn read(input: &mut Unstructured<'_>) -> Result<Manner> {
        Ok(match input.int_in_range(0..=15u8)? {
            0..=2 => Manner::Plain,
            3 | 4 => Manner::Touching,
            5 => Manner::Below,
            6 => Manner::Refuse,
            7 => Manner::Generous(input.arbitrary()?),
            8 => Manner::Odd(input.arbitrary()?),
            9 => Manner::Aligned,
            10 => Manner::TooLittle,
            11 => Manner::Misaligned(input.arbitrary()?),
            12 => Manner::Overlapping,
            13 => Manner::OverTail,
            14 => Manner::Wrapping,
            _ => Manner::Reenter,
        })
    }
}

/// Memory that the library has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    base: u64,
    bytes: u64,
    honest: bool,
}

/// The address space of an ordinal, up and down.
const ROOM: u64 = 1 << 50;

#[derive(Default)]
struct Books {
    grants: Vec<Grant>,
    turn: usize,
    low: u64,
    high: u64,
    broken: Option<String>,
}

pub(crate) struct Grants {
    device: i32,
    manners: Vec<Manner>,
    capacity: u64,
    pub(crate) limit: u64,
    pub(crate) coalesces: bool,
    books: Mutex<Books>,
}

impl Grants {
    /// Each ordinal has addresses of its own, above all host addresses.
    pub(crate) fn new(
        device: i32,
        manners: Vec<Manner>,
        capacity: u64,
        limit: u64,
        coalesces: bool,
    ) -> Box<Grants> {
        let middle = (device as u64) * (2 * ROOM) + ROOM;
        let books = Books { low: middle, high: middle, ..Books::default() };
        Box::new(Grants { device, manners, capacity, limit, coalesces, books: Mutex::new(books) })
    }

    pub(crate) fn functions(&self) -> bfc_suballocator_t {
        backend::functions(self, Some(alloc_region), Some(free_region), self.coalesces)
    }

    /// Returns the valid granted bytes.
    pub(crate) fn held(&self) -> u64 {
        let books = self.books.lock().unwrap();
        books.grants.iter().filter(|grant| grant.honest).fold(0, |sum, grant| sum.saturating_add(grant.bytes))
    }

    /// Returns whether a range is in memory that may be used.
    pub(crate) fn covers(&self, start: u64, bytes: u64) -> bool {
        let books = self.books.lock().unwrap();
        let mut at = start;
        // With coalescing one chunk may span several grants.
        loop {
            let around = |grant: &&Grant| grant.honest && grant.base <= at && at - grant.base < grant.bytes;
            let Some(grant) = books.grants.iter().find(around) else { return false };
            let end = grant.base + grant.bytes;
            if end - start >= bytes {
                return at == start || self.coalesces;
            }
            at = end;
        }
    }

    /// Checks that the library has kept the contract, and holds nothing at the end.
    pub(crate) fn verify(&self, at_end: bool) {
        let books = self.books.lock().unwrap();
        assert_eq!(books.broken, None);
        if at_end {
            let left: Vec<_> = books.grants.iter().filter(|grant| grant.honest).collect();
            assert!(left.is_empty(), "not given back: {left:x?}");
        }
    }

    fn give(&self, alignment: u64, bytes: u64) -> Option<(u64, u64)> {
        let held = self.held();
        let mut books = self.books.lock().unwrap();
        let manner = match self.manners.len() {
            0 => Manner::Plain,
            count => self.manners[books.turn % count],
        };
        books.turn += 1;
        if held.checked_add(bytes).is_none_or(|sum| sum > self.limit) {
            books.broken =
                Some(format!("asked for {bytes} bytes with {held} held and a limit of {}", self.limit));
        }
        if bytes == 0 || !bytes.is_multiple_of(256) || !alignment.is_power_of_two() || alignment < 256 {
            books.broken = Some(format!("asked for {bytes} bytes at a multiple of {alignment}"));
        }
        let fits = held.checked_add(bytes).is_some_and(|sum| sum <= self.capacity && sum < ROOM / 2);
        if matches!(manner, Manner::Refuse) || !fits {
            return None;
        }
        if matches!(manner, Manner::Reenter) {
            drop(books);
            self.reenter();
            books = self.books.lock().unwrap();
        }
        let grant = place(&mut books, manner, alignment, bytes)?;
        books.grants.push(grant);
        Some((grant.base, grant.bytes))
    }

    fn reenter(&self) {
        let device = self.device;
        let mut out = stats();
        // SAFETY: a whole struct, writable.
        let asked = unsafe { bfc_stats(device, &mut out) };
        let all = [
            alloc(device, 1).err().unwrap_or(BFC_OK),
            free(device, 256),
            asked,
            bfc_check(device),
            bfc_destroy(device),
            bfc_destroy_forced(device),
        ];
        if all != [BFC_ERROR_BUSY; 6] {
            self.books.lock().unwrap().broken = Some(format!("re-entry: {all:?}"));
        }
    }

    fn take_back(&self, base: u64, bytes: u64) {
        let mut books = self.books.lock().unwrap();
        if let Some(place) = books.grants.iter().position(|grant| (grant.base, grant.bytes) == (base, bytes))
        {
            books.grants.swap_remove(place);
            return;
        }
        let (mut at, end) = (base, base.saturating_add(bytes));
        while at < end {
            let part =
                books.grants.iter().position(|grant| grant.honest && grant.base == at && self.coalesces);
            let Some(part) = part else {
                books.broken =
                    Some(format!("given back {base:#x} + {bytes:#x}, out are {:x?}", books.grants));
                return;
            };
            at += books.grants.swap_remove(part).bytes;
        }
        if at != end {
            books.broken = Some(format!("given back {base:#x} + {bytes:#x}, which ends inside of a grant"));
        }
    }
}

fn place(books: &mut Books, manner: Manner, alignment: u64, bytes: u64) -> Option<Grant> {
    const GAP: u64 = 2 << 20;
    let honest = |base, bytes| Grant { base, bytes, honest: true };
    let cheat = |base, bytes| Grant { base, bytes, honest: false };
    let above = books.high.next_multiple_of(256);
    let grant = match manner {
        Manner::Refuse => return None,
        Manner::Plain | Manner::Reenter => honest(above + GAP, bytes),
        Manner::Touching => honest(above, bytes),
        Manner::Below => honest((books.low - bytes) & !255, bytes),
        Manner::Generous(more) => honest(above + GAP, bytes + u64::from(more)),
        Manner::Odd(more) => honest(above, bytes + u64::from(more)),
        Manner::Aligned if alignment < ROOM / 4 => honest((above + GAP).next_multiple_of(alignment), bytes),
        Manner::Aligned => return None,
        Manner::TooLittle => cheat(above + GAP, 255),
        Manner::Misaligned(by) => cheat(above + GAP + u64::from(by.max(1)), bytes),
        // After everything that is already there, so that nothing else has this base.
        Manner::Overlapping => {
            let victim = books.grants.iter().find(|grant| grant.honest && grant.bytes >= 512)?;
            cheat(victim.base + 256, bytes + 256)
        }
        Manner::OverTail => {
            let victim = books.grants.iter().find(|grant| grant.honest && grant.bytes % 256 != 0)?;
            let tail = victim.base + victim.bytes / 256 * 256;
            // Unless another one already follows.
            if books.grants.iter().any(|grant| grant.base >= tail && grant.base < tail + bytes + 256) {
                return None;
            }
            cheat(tail, bytes + 256)
        }
        Manner::Wrapping => cheat(u64::MAX - 255, bytes),
    };
    if grant.honest {
        books.low = books.low.min(grant.base);
        books.high = books.high.max(grant.base + grant.bytes);
    }
    Some(grant)
}

unsafe extern "C" fn alloc_region(
    user_data: *mut std::ffi::c_void,
    alignment: usize,
    bytes: usize,
    received: *mut usize,
) -> *mut std::ffi::c_void {
    // SAFETY: the pointer is to grants that outlive their pool.
    let grants = unsafe { &*user_data.cast::<Grants>() };
    let answer = grants.give(alignment as u64, bytes as u64);
    let (base, given) = answer.unwrap_or((0, 0xbad));
    // SAFETY: the library passes a valid out-pointer.
    unsafe { received.write(given as usize) };
    pointer(base)
}

unsafe extern "C" fn free_region(
    user_data: *mut std::ffi::c_void,
    base: *mut std::ffi::c_void,
    bytes: usize,
) {
    // SAFETY: the pointer is to grants that outlive their pool.
    let grants = unsafe { &*user_data.cast::<Grants>() };
    grants.take_back(base as u64, bytes as u64);
}
