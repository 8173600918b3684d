//! Host memory in one reserved range: granules of a file in memory, mapped wherever they are wanted.
//!
//! Where neighbours in the range are neighbours in the file too, one call maps them and the kernel keeps one mapping
//! for them. That matters: a process may have 65530 mappings by default, which granules one by one would use up at
//! 128 GiB. What is ours is counted, and no more than three quarters of what there may be are ever used.

use super::granules::Granules;
use super::memory::Memory;
use super::{Backend, Granted, Host};
use crate::core::sort::sort_by_key;
use crate::core::units::MAX_CHUNK;
use crate::core::units::Span;
use crate::core::vmm::Range;
use crate::error::{Error, fail};
use crate::sys::host::{memory_total, most_mappings};
use crate::sys::memfile::{MemFile, Reservation, limit_of};
use crate::sys::table::LazyTable;
use crate::sys::{HostMemoryExhausted, try_box};
use spin::mutex::SpinMutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// As large as the pages of most devices' granules, and as a huge page of the host.
const GRANULE: u64 = 2 << 20;
/// How much larger the range is than the limit: holes need addresses, which cost nothing.
const RANGE_PER_LIMIT: u64 = 256;
/// More is not reserved for comfort, and never more than twice that: others want addresses too, of which there are
/// 128 TiB.
const COMFORT: u64 = 8 << 40;

/// The mappings of all ranges of this process.
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct HostVmm {
    // In this order: what is mapped ends before the file does.
    reservation: Reservation,
    file: MemFile,
    most_mappings: u64,
    /// Those of all ranges of the process.
    mappings: &'static AtomicU64,
    /// One thread at a time calls; this is for whoever does not know that.
    books: SpinMutex<Books>,
}

struct Books {
    /// For each granule of the range its place in the file, plus 1.
    places: LazyTable,
    /// The places in the file that have no memory.
    vacant: Places,
    /// Places that are mapped nowhere and keep their memory.
    kept: Vec<u32>,
    /// Mappings of this range, holes between others included.
    mappings: u64,
}

impl HostVmm {
    /// A range for a pool of `limit` bytes, on the heap until its `Owned` ends it.
    pub(crate) fn open(limit: u64) -> Result<&'static Self, Error> {
        let most = most_mappings() / 4 * 3;
        Ok(Box::leak(try_box(Self::new(limit, range_for(limit), most, &MAPPINGS)?)?))
    }

    fn new(limit: u64, wanted: u64, most_mappings: u64, mappings: &'static AtomicU64) -> Result<Self, Error> {
        let reservation = reserve(wanted)?;
        let granules = reservation.bytes / GRANULE;
        let places = (limit / GRANULE).min(granules);
        let file = MemFile::new(places * GRANULE).map_err(|errno| {
            fail!(Error::BackendFailed, "the system refuses a file in memory of {limit} bytes: error {errno}")
        })?;
        let books = Books {
            places: LazyTable::new(granules as usize)?,
            vacant: Places::new(places as usize)?,
            kept: Vec::new(),
            mappings: 1,
        };
        mappings.fetch_add(1, Relaxed);
        Ok(HostVmm { reservation, file, most_mappings, mappings, books: SpinMutex::new(books) })
    }

    /// Refuses what would take more mappings than there may be, in time.
    fn require_mappings(&self, more: u64) -> Result<(), Error> {
        let there = self.mappings.load(Relaxed);
        if there.saturating_add(more) <= self.most_mappings {
            return Ok(());
        }
        let most = self.most_mappings;
        Err(fail!(
            Error::OutOfMemory,
            "{there} mappings are in use for granules, and {most} may be: three quarters of vm.max_map_count"
        ))
    }

    /// Maps a run of places at a run of granules.
    fn map_run(&self, books: &Books, number: usize, place: u32, count: usize) -> Result<(), Error> {
        self.require_mappings(books.more_for(number, place, count))?;
        if !self.file.is_there() {
            return Err(fail!(
                Error::BackendFailed,
                "the program has closed the descriptor of the file that its memory is in"
            ));
        }
        let (addr, bytes) = (self.range().address(number), count as u64 * GRANULE);
        // SAFETY: the granules lie in the reservation, and nothing is mapped there by the trait's contract.
        let mapped = unsafe { self.file.map_at(addr, u64::from(place) * GRANULE, bytes) };
        mapped.map_err(|errno| failure("map", bytes, errno))
    }

    /// Maps granules to places that `next` gives: a first place and how many from there, for the granule with a
    /// number and so many after it. On failure they are holes, and `back` has had the places.
    fn map_span(
        &self,
        books: &mut Books,
        span: Span,
        mut next: impl FnMut(&mut Books, usize, usize) -> Result<(u32, usize), Error>,
        back: impl Fn(&mut Books, u32),
    ) -> Result<(), Error> {
        let numbers = self.range().numbers(span);
        let mut number = numbers.start;
        while number < numbers.end {
            let step = next(books, number, numbers.end - number).and_then(|(place, count)| {
                let run = number..number + count;
                let before = books.breaks(&run);
                let mapped = self.map_run(books, number, place, count);
                // Noted also on failure, for then they are given back as the others are.
                (0..count).for_each(|i| books.places.set(number + i, place + i as u32 + 1));
                self.recount(books, before, &run);
                number += count;
                mapped
            });
            if let Err(error) = step {
                let before = books.breaks(&numbers);
                // SAFETY: nobody knows of this memory yet. Should it fail nobody will: the next mapping is put
                // in place of whatever is there.
                let _ =
                    unsafe { self.reservation.empty(span.base, (number - numbers.start) as u64 * GRANULE) };
                for number in numbers.start..number {
                    let place = books.places.get(number) - 1;
                    books.places.set(number, 0);
                    back(books, place);
                }
                self.recount(books, before, &numbers);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Unmaps granules; `to` gets their places.
    fn unmap_span(&self, books: &mut Books, span: Span, to: impl Fn(&mut Books, u32)) -> Result<(), Error> {
        let numbers = self.range().numbers(span);
        let before = books.breaks(&numbers);
        let after =
            u64::from(books.is_mapped_before(numbers.start)) + u64::from(books.place(numbers.end) != 0);
        self.require_mappings(after.saturating_sub(before))?;
        // SAFETY: whoever calls has made sure that nobody uses this memory.
        let emptied = unsafe { self.reservation.empty(span.base, span.bytes) };
        emptied.map_err(|errno| failure("unmap", span.bytes, errno))?;
        for number in numbers.clone() {
            let place = books.places.get(number) - 1;
            books.places.set(number, 0);
            to(books, place);
        }
        self.recount(books, before, &numbers);
        Ok(())
    }

    /// Notes how many mappings there are, where `before` borders of mappings were.
    fn recount(&self, books: &mut Books, before: u64, numbers: &std::ops::Range<usize>) {
        let after = books.breaks(numbers);
        books.mappings = books.mappings + after - before;
        self.mappings.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Gives the memory of places back, neighbours by one call.
    fn discard(&self, books: &mut Books, mut places: impl Iterator<Item = u32>) {
        let Some(first) = places.next() else { return };
        let (mut from, mut to) = (first, first + 1);
        loop {
            let next = places.next();
            if next == Some(to) {
                to += 1;
                continue;
            }
            self.file.punch(u64::from(from) * GRANULE, u64::from(to - from) * GRANULE);
            (from..to).for_each(|place| books.vacant.add(place));
            let Some(next) = next else { return };
            (from, to) = (next, next + 1);
        }
    }
}

impl Granules for HostVmm {
    fn range(&self) -> Range {
        Range { base: self.reservation.base, bytes: self.reservation.bytes, granule: GRANULE }
    }

    fn admit(&self, bytes: u64) -> Result<(), Error> {
        let mut books = self.books.lock();
        let places = (bytes / GRANULE) as usize;
        if places <= books.vacant.count {
            return Ok(());
        }
        books.vacant.reserve(places)?;
        self.file.grow(places as u64 * GRANULE).map_err(|errno| {
            fail!(Error::BackendFailed, "the system refuses a file in memory of {bytes} bytes: error {errno}")
        })?;
        books.vacant.grow(places);
        Ok(())
    }

    /// There is no device, and what the program's own threads do with freed memory is their affair.
    fn wait_until_idle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn map(&self, span: Span) -> Result<(), Error> {
        let mut books = self.books.lock();
        let next = |books: &mut Books, number: usize, count| {
            // Where the file goes on so that the mapping does.
            let before = if number == 0 { 0 } else { books.places.get(number - 1) };
            let (place, count) = books.vacant.find(before, count).ok_or_else(|| {
                fail!(Error::OutOfMemory, "all granules that the limit allows are mapped already")
            })?;
            (place..place + count as u32).for_each(|place| books.vacant.remove(place));
            Ok((place, count))
        };
        // They were never touched, so that there is no memory to give back.
        self.map_span(&mut books, span, next, |books, place| books.vacant.add(place))
    }

    fn release(&self, span: Span) -> Result<(), Error> {
        let mut books = self.books.lock();
        let numbers = self.range().numbers(span);
        let mut places = Vec::new();
        places.try_reserve_exact(numbers.len()).map_err(HostMemoryExhausted::from)?;
        places.extend(numbers.map(|number| books.places.get(number) - 1));
        self.unmap_span(&mut books, span, |_, _| {})?;
        sort_by_key(&mut places, |&place| place);
        self.discard(&mut books, places.into_iter());
        Ok(())
    }

    fn detach(&self, span: Span) -> Result<(), Error> {
        let mut books = self.books.lock();
        books.kept.try_reserve(self.range().numbers(span).len()).map_err(HostMemoryExhausted::from)?;
        self.unmap_span(&mut books, span, |books, place| books.kept.push(place))
    }

    fn attach(&self, span: Span) -> Result<(), Error> {
        let mut books = self.books.lock();
        let wanted = self.range().numbers(span).len();
        if wanted > books.kept.len() {
            return Err(fail!(Error::BackendFailed, "{wanted} granules were to be mapped, fewer are kept"));
        }
        // The last first, so that they are taken from the end in the order of the file.
        sort_by_key(&mut books.kept, |&place| std::cmp::Reverse(place));
        let next = |books: &mut Books, _: usize, count: usize| {
            let last = books.kept.len() - 1;
            let first = books.kept[last];
            let run =
                (0..count.min(last + 1)).take_while(|&i| books.kept[last - i] == first + i as u32).count();
            books.kept.truncate(last + 1 - run);
            Ok((first, run))
        };
        // There is room for them: they were there.
        self.map_span(&mut books, span, next, |books, place| books.kept.push(place))
    }

    fn drop_kept(&self) {
        let mut books = self.books.lock();
        let mut kept = std::mem::take(&mut books.kept);
        sort_by_key(&mut kept, |&place| place);
        self.discard(&mut books, kept.into_iter());
    }
}

impl Backend for HostVmm {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, Error> {
        Ok(None)
    }

    /// What is mapped ends with the range.
    fn free(&self, _: Granted) -> Result<(), Error> {
        Ok(())
    }

    fn total_memory(&self) -> Option<u64> {
        Some(memory_total())
    }

    fn may_synchronize(&self) -> bool {
        false
    }

    fn name(&self) -> &'static str {
        "host_vmm"
    }

    fn granules(&self) -> Option<&dyn Granules> {
        Some(self)
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&Host)
    }
}

impl Drop for HostVmm {
    fn drop(&mut self) {
        self.mappings.fetch_sub(self.books.lock().mappings, Relaxed);
    }
}

impl Books {
    /// How many of the borders of these granules are borders of mappings.
    fn breaks(&self, numbers: &std::ops::Range<usize>) -> u64 {
        let last = numbers.end.min(self.places.entries() - 1);
        (numbers.start.max(1)..=last).filter(|&number| !self.is_joined(number)).count() as u64
    }

    /// The place of a granule plus 1, or 0; also for the number behind the last.
    fn place(&self, number: usize) -> u32 {
        if number < self.places.entries() { self.places.get(number) } else { 0 }
    }

    fn is_mapped_before(&self, number: usize) -> bool {
        number != 0 && self.place(number - 1) != 0
    }

    /// How many mappings more there are once a run of places is mapped to granules of a hole.
    fn more_for(&self, number: usize, place: u32, count: usize) -> u64 {
        let (before, after) =
            (if number == 0 { 0 } else { self.place(number - 1) }, self.place(number + count));
        let old = u64::from(before != 0) + u64::from(after != 0);
        let joined = u64::from(before == place && before != 0) + u64::from(after == place + count as u32 + 1);
        (2 - joined).saturating_sub(old)
    }

    /// Whether a granule and the one before it are in one mapping.
    fn is_joined(&self, number: usize) -> bool {
        let (there, before) = (self.place(number), self.place(number - 1));
        if there == 0 || before == 0 { there == before } else { there == before + 1 }
    }
}

/// Places of the file, a bit for each that is vacant.
struct Places {
    words: Vec<u64>,
    count: usize,
}

impl Places {
    fn new(count: usize) -> Result<Self, HostMemoryExhausted> {
        let mut places = Places { words: Vec::new(), count: 0 };
        places.reserve(count)?;
        places.grow(count);
        Ok(places)
    }

    /// Makes sure that [`Self::grow`] needs no memory.
    fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        Ok(self.words.try_reserve_exact(count.div_ceil(64).saturating_sub(self.words.len()))?)
    }

    /// There are so many from now on, the new ones vacant.
    fn grow(&mut self, count: usize) {
        let new = self.count as u32..count as u32;
        self.words.resize(count.div_ceil(64), 0);
        self.count = count;
        new.for_each(|place| self.add(place));
    }

    fn add(&mut self, place: u32) {
        self.words[place as usize / 64] |= 1 << (place % 64);
    }

    fn remove(&mut self, place: u32) {
        self.words[place as usize / 64] &= !(1 << (place % 64));
    }

    fn holds(&self, place: usize) -> bool {
        place < self.count && self.words[place / 64] >> (place % 64) & 1 != 0
    }

    /// The first place from one on that is there, or is not.
    fn next(&self, from: usize, there: bool) -> usize {
        let mut place = from;
        while place < self.count {
            let word = self.words[place / 64];
            let left = (if there { word } else { !word }) >> (place % 64);
            if left != 0 {
                return (place + left.trailing_zeros() as usize).min(self.count);
            }
            place = (place / 64 + 1) * 64;
        }
        self.count
    }

    /// Up to `count` places in a row: at `wanted` if that is there, else the first row of so many, else the longest.
    fn find(&self, wanted: u32, count: usize) -> Option<(u32, usize)> {
        let run_at = |place: usize| (place as u32, (self.next(place, false) - place).min(count));
        if wanted != 0 && self.holds(wanted as usize) {
            return Some(run_at(wanted as usize));
        }
        let mut longest = None;
        let mut place = self.next(0, true);
        while place < self.count {
            let run = run_at(place);
            if longest.is_none_or(|longest: (u32, usize)| run.1 > longest.1) {
                longest = Some(run);
                if run.1 == count {
                    break;
                }
            }
            place = self.next(place + run.1, true);
        }
        longest
    }
}

/// How many bytes of addresses a pool of that limit wants: see docs/algorithm.md.
fn range_for(limit: u64) -> u64 {
    const { assert!(2 * COMFORT <= MAX_CHUNK) };
    let granules = limit.clamp(GRANULE, 2 * COMFORT).div_ceil(GRANULE);
    let comfortable = granules.saturating_mul(RANGE_PER_LIMIT).min(COMFORT / GRANULE).max(granules);
    // Where addresses are short they are for all.
    let allowed = limit_of(libc::RLIMIT_AS) / 2 / GRANULE;
    comfortable.min(allowed.max(1)) * GRANULE
}

/// As many addresses as there are, up to `wanted`.
fn reserve(wanted: u64) -> Result<Reservation, Error> {
    let mut bytes = wanted;
    loop {
        match Reservation::new(bytes, GRANULE) {
            Ok(reservation) => return Ok(reservation),
            Err(libc::ENOMEM) if bytes == GRANULE => {
                return Err(fail!(Error::OutOfMemory, "the system has no memory for a range of addresses"));
            }
            Err(errno) if bytes == GRANULE => {
                return Err(fail!(
                    Error::BackendFailed,
                    "the system refuses to reserve addresses: error {errno}"
                ));
            }
            Err(_) => bytes = (bytes / 2 / GRANULE).max(1) * GRANULE,
        }
    }
}

fn failure(what: &str, bytes: u64, errno: i32) -> Error {
    if errno == libc::ENOMEM {
        return fail!(
            Error::OutOfMemory,
            "the system has no memory, or no more mappings, to {what} {bytes} bytes"
        );
    }
    fail!(Error::BackendFailed, "the system failed to {what} {bytes} bytes of granules: error {errno}")
}

#[cfg(test)]
mod tests;
