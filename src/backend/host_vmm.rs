//! Host memory in one reserved range: granules of a memory file, mapped where they are needed.
//!
//! Granules that are neighbours both in the range and in the file are mapped by one call, and the kernel keeps one
//! mapping for them. This matters because a process may have only 65530 mappings by default, which single granules
//! would exhaust at 128 GiB. The backend counts its mappings and uses at most three quarters of the number allowed.

use super::addresses::{Comfort, Reserved};
use super::granules::Granules;
use super::memory::{Memory, ProcessMemory};
use super::{Backend, Granted};
use crate::error::{ErrorKind, fail};
use crate::sys::host::{memory_total, most_mappings};
use crate::sys::memfile::{MemFile, Reservation, limit_of};
use crate::sys::mutex::{Guard, Mutex};
use bfc_core::sort::sort_by_key;
use bfc_core::units::Span;
use bfc_core::vmm::Range;
use bfc_hostmem::LazyTable;
use bfc_hostmem::{HostMemoryExhausted, try_box};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The granule of most devices, and the size of a huge page of the host.
const GRANULE: u64 = 2 << 20;
const COMFORT: Comfort = Comfort { per_limit: 256, most: 8 << 40 };

/// The mappings of all ranges of this process.
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct HostVmm {
    // The order of these fields matters: the mappings must end before the file does.
    reservation: Reservation,
    file: MemFile,
    most_mappings: u64,
    /// The number of mappings of all ranges of the process.
    mappings: &'static AtomicU64,
    /// The metadata. A change of the limit is admitted even while another call maps or unmaps, and the system's calls may
    /// take long, so waiters sleep.
    layout: Mutex<Layout>,
    _reserved: Reserved,
}

struct Layout {
    /// For each granule of the range, its place in the file plus 1.
    places: LazyTable,
    /// The places in the file without memory.
    vacant: Places,
    /// Places that are not mapped and keep their memory.
    kept: Vec<u32>,
    /// The number of mappings of this range, including the unmapped gaps between them.
    mappings: u64,
}

impl HostVmm {
    /// Creates a range for a pool of `limit` bytes. It is on the heap until its `Owned` ends it.
    pub(crate) fn open(limit: u64) -> Result<&'static Self, ErrorKind> {
        let most = most_mappings() / 4 * 3;
        Ok(Box::leak(try_box(Self::new(limit, range_for(limit), most, &MAPPINGS)?)?))
    }

    fn new(
        limit: u64,
        wanted: u64,
        most_mappings: u64,
        mappings: &'static AtomicU64,
    ) -> Result<Self, ErrorKind> {
        let reservation = reserve(wanted)?;
        let granules = reservation.bytes / GRANULE;
        let places = (limit / GRANULE).min(granules);
        let file = MemFile::new(places * GRANULE).map_err(|errno| {
            fail!(ErrorKind::BackendFailed, "the system refuses a file in memory (memfd_create) of {limit} bytes: errno {errno}; lower the limit, or name BFC_BACKEND_HOST")
        })?;
        let layout = Layout {
            places: LazyTable::new(granules as usize)?,
            vacant: Places::new(places as usize)?,
            kept: Vec::new(),
            mappings: 1,
        };
        mappings.fetch_add(1, Relaxed);
        let _reserved = Reserved::new(reservation.bytes);
        Ok(HostVmm { reservation, file, most_mappings, mappings, layout: Mutex::new(layout), _reserved })
    }

    /// Locks the metadata.
    fn layout(&self) -> Result<Guard<'_, Layout>, ErrorKind> {
        self.layout.lock().map_err(|_| {
            fail!(ErrorKind::Busy, "a signal handler interrupted a call that maps memory in this thread")
        })
    }

    /// Fails early if `more` mappings would exceed the number allowed.
    fn require_mappings(&self, more: u64) -> Result<(), ErrorKind> {
        let there = self.mappings.load(Relaxed);
        if there.saturating_add(more) <= self.most_mappings {
            return Ok(());
        }
        let most = self.most_mappings;
        Err(fail!(
            ErrorKind::OutOfMemory,
            "mapping limit reached: {there} of {most} (75% of vm.max_map_count); raise it with sysctl vm.max_map_count"
        ))
    }

    /// Maps consecutive places to consecutive granules.
    fn map_run(&self, layout: &Layout, number: usize, place: u32, count: usize) -> Result<(), ErrorKind> {
        self.require_mappings(layout.more_for(number, place, count))?;
        if !self.file.is_own() {
            return Err(fail!(
                ErrorKind::BackendFailed,
                "the program has closed the descriptor of the file that the pool's memory is in: no more can be mapped until the allocator is created anew"
            ));
        }
        let (addr, bytes) = (self.range().address(number), count as u64 * GRANULE);
        // SAFETY: the granules lie in the reservation, and nothing is mapped there by the trait's contract.
        let mapped = unsafe { self.file.map_at(addr, u64::from(place) * GRANULE, bytes) };
        mapped.map_err(|errno| failure("map", bytes, errno))
    }

    /// Maps granules to places that `next` provides: given a granule and the number of granules left, it returns a
    /// first place and the length of the run. On failure the span is unmapped, and the places were passed to `back`.
    fn map_span(
        &self,
        layout: &mut Layout,
        span: Span,
        mut next: impl FnMut(&mut Layout, usize, usize) -> Result<(u32, usize), ErrorKind>,
        back: impl Fn(&mut Layout, u32),
    ) -> Result<(), ErrorKind> {
        let numbers = self.range().numbers(span);
        let mut number = numbers.start;
        while number < numbers.end {
            let step = next(layout, number, numbers.end - number).and_then(|(place, count)| {
                let run = number..number + count;
                let before = layout.breaks(&run);
                let mapped = self.map_run(layout, number, place, count);
                // Recorded on failure too, because these granules are then unmapped like the others.
                (0..count).for_each(|i| layout.places.set(number + i, place + i as u32 + 1));
                self.recount(layout, before, &run);
                number += count;
                mapped
            });
            if let Err(error) = step {
                let before = layout.breaks(&numbers);
                // SAFETY: nothing uses this memory yet. If the call fails nothing will, because the next mapping
                // replaces whatever is there.
                let _ =
                    unsafe { self.reservation.empty(span.base, (number - numbers.start) as u64 * GRANULE) };
                for number in numbers.start..number {
                    let place = layout.places.get(number) - 1;
                    layout.places.set(number, 0);
                    back(layout, place);
                }
                self.recount(layout, before, &numbers);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Unmaps granules and passes their places to `to`.
    fn unmap_span(
        &self,
        layout: &mut Layout,
        span: Span,
        to: impl Fn(&mut Layout, u32),
    ) -> Result<(), ErrorKind> {
        let numbers = self.range().numbers(span);
        let before = layout.breaks(&numbers);
        let after =
            u64::from(layout.is_mapped_before(numbers.start)) + u64::from(layout.place(numbers.end) != 0);
        self.require_mappings(after.saturating_sub(before))?;
        // SAFETY: callers guarantee that this memory is not in use.
        let emptied = unsafe { self.reservation.empty(span.base, span.bytes) };
        emptied.map_err(|errno| failure("unmap", span.bytes, errno))?;
        for number in numbers.clone() {
            let place = layout.places.get(number) - 1;
            layout.places.set(number, 0);
            to(layout, place);
        }
        self.recount(layout, before, &numbers);
        Ok(())
    }

    /// Updates the number of mappings, given the number of mapping borders `before` the change.
    fn recount(&self, layout: &mut Layout, before: u64, numbers: &std::ops::Range<usize>) {
        let after = layout.breaks(numbers);
        layout.mappings = layout.mappings + after - before;
        self.mappings.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Frees the memory of places, neighbouring places by one call.
    fn discard(&self, layout: &mut Layout, mut places: impl Iterator<Item = u32>) {
        let Some(first) = places.next() else { return };
        let (mut from, mut to) = (first, first + 1);
        loop {
            let next = places.next();
            if next == Some(to) {
                to += 1;
                continue;
            }
            self.file.punch(u64::from(from) * GRANULE, u64::from(to - from) * GRANULE);
            (from..to).for_each(|place| layout.vacant.add(place));
            let Some(next) = next else { return };
            (from, to) = (next, next + 1);
        }
    }
}

impl Granules for HostVmm {
    fn range(&self) -> Range {
        Range { base: self.reservation.base, bytes: self.reservation.bytes, granule: GRANULE }
    }

    fn admit(&self, bytes: u64) -> Result<(), ErrorKind> {
        let mut layout = self.layout()?;
        let places = (bytes / GRANULE) as usize;
        if places <= layout.vacant.count {
            return Ok(());
        }
        layout.vacant.reserve(places)?;
        self.file.grow(places as u64 * GRANULE).map_err(|errno| {
            fail!(
                ErrorKind::BackendFailed,
                "the system refuses to grow the file in memory to {bytes} bytes: errno {errno}"
            )
        })?;
        layout.vacant.grow(places);
        Ok(())
    }

    /// There is no device. The program is responsible for the accesses of its own threads to freed memory.
    fn wait_until_idle(&self) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn map(&self, span: Span) -> Result<(), ErrorKind> {
        let mut layout = self.layout()?;
        let next = |layout: &mut Layout, number: usize, count| {
            // Continues in the file after the previous granule, so that the mapping continues too.
            let before = if number == 0 { 0 } else { layout.places.get(number - 1) };
            let (place, count) = layout.vacant.find(before, count).ok_or_else(|| {
                fail!(ErrorKind::OutOfMemory, "all granules that the limit allows are mapped already")
            })?;
            (place..place + count as u32).for_each(|place| layout.vacant.remove(place));
            Ok((place, count))
        };
        // The new places were never touched, so there is no memory to free.
        self.map_span(&mut layout, span, next, |layout, place| layout.vacant.add(place))
    }

    fn release(&self, span: Span) -> Result<(), ErrorKind> {
        let mut layout = self.layout()?;
        let numbers = self.range().numbers(span);
        let mut places = Vec::new();
        places.try_reserve_exact(numbers.len()).map_err(HostMemoryExhausted::from)?;
        places.extend(numbers.map(|number| layout.places.get(number) - 1));
        self.unmap_span(&mut layout, span, |_, _| {})?;
        sort_by_key(&mut places, |&place| place);
        self.discard(&mut layout, places.into_iter());
        Ok(())
    }

    fn detach(&self, span: Span) -> Result<(), ErrorKind> {
        let mut layout = self.layout()?;
        layout.kept.try_reserve(self.range().numbers(span).len()).map_err(HostMemoryExhausted::from)?;
        self.unmap_span(&mut layout, span, |layout, place| layout.kept.push(place))
    }

    fn attach(&self, span: Span) -> Result<(), ErrorKind> {
        let mut layout = self.layout()?;
        let wanted = self.range().numbers(span).len();
        let kept = layout.kept.len();
        if wanted > kept {
            return Err(fail!(
                ErrorKind::BackendFailed,
                "{wanted} granules were to be mapped again, and {kept} are kept"
            ));
        }
        // In descending order, so that they are taken from the end in file order.
        sort_by_key(&mut layout.kept, |&place| std::cmp::Reverse(place));
        let next = |layout: &mut Layout, _: usize, count: usize| {
            let last = layout.kept.len() - 1;
            let first = layout.kept[last];
            let run =
                (0..count.min(last + 1)).take_while(|&i| layout.kept[last - i] == first + i as u32).count();
            layout.kept.truncate(last + 1 - run);
            Ok((first, run))
        };
        // This cannot exceed the capacity, because the places were in the list before.
        self.map_span(&mut layout, span, next, |layout, place| layout.kept.push(place))
    }

    fn drop_kept(&self) {
        let Ok(mut layout) = self.layout() else { return };
        let mut kept = std::mem::take(&mut layout.kept);
        sort_by_key(&mut kept, |&place| place);
        self.discard(&mut layout, kept.into_iter());
    }
}

impl Backend for HostVmm {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, ErrorKind> {
        Ok(None)
    }

    /// The mappings end with the range.
    fn free(&self, _: Granted) -> Result<(), ErrorKind> {
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
        Some(&ProcessMemory)
    }
}

impl Drop for HostVmm {
    fn drop(&mut self) {
        self.mappings.fetch_sub(self.layout.get_mut().mappings, Relaxed);
    }
}

impl Layout {
    /// Returns how many of the borders of these granules are borders of mappings.
    fn breaks(&self, numbers: &std::ops::Range<usize>) -> u64 {
        let last = numbers.end.min(self.places.entries() - 1);
        (numbers.start.max(1)..=last).filter(|&number| !self.is_joined(number)).count() as u64
    }

    /// Returns the place of a granule plus 1, or 0. Also valid for the number after the last granule.
    fn place(&self, number: usize) -> u32 {
        if number < self.places.entries() { self.places.get(number) } else { 0 }
    }

    fn is_mapped_before(&self, number: usize) -> bool {
        number != 0 && self.place(number - 1) != 0
    }

    /// Returns how many more mappings there are after a run of places is mapped to unmapped granules.
    fn more_for(&self, number: usize, place: u32, count: usize) -> u64 {
        let (before, after) =
            (if number == 0 { 0 } else { self.place(number - 1) }, self.place(number + count));
        let old = u64::from(before != 0) + u64::from(after != 0);
        let joined = u64::from(before == place && before != 0) + u64::from(after == place + count as u32 + 1);
        (2 - joined).saturating_sub(old)
    }

    /// Returns whether a granule and the one before it are in one mapping.
    fn is_joined(&self, number: usize) -> bool {
        let (there, before) = (self.place(number), self.place(number - 1));
        if there == 0 || before == 0 { there == before } else { there == before + 1 }
    }
}

/// Places of the file, with one bit for each vacant place.
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

    /// Ensures that [`Self::grow`] needs no memory.
    fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        Ok(self.words.try_reserve_exact(count.div_ceil(64).saturating_sub(self.words.len()))?)
    }

    /// Sets the number of places. The new ones are vacant.
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

    /// Returns the first place at or after `from` that is vacant (`there`) or not.
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

    /// Finds up to `count` vacant places in a row: at `wanted` if that is vacant, otherwise the first `count` in a row,
    /// otherwise the longest row.
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

/// Returns how many bytes of addresses to reserve for a pool of that limit. See docs/algorithm.md.
fn range_for(limit: u64) -> u64 {
    // A limit on the address space applies to the whole process.
    let allowed = limit_of(libc::RLIMIT_AS) / 2 / GRANULE * GRANULE;
    COMFORT.range_for(limit, GRANULE).min(allowed.max(GRANULE))
}

/// Reserves as many addresses as possible, up to `wanted` bytes.
fn reserve(wanted: u64) -> Result<Reservation, ErrorKind> {
    let mut bytes = wanted;
    loop {
        match Reservation::new(bytes, GRANULE) {
            Ok(reservation) => return Ok(reservation),
            Err(libc::ENOMEM) if bytes == GRANULE => {
                return Err(fail!(
                    ErrorKind::OutOfMemory,
                    "the system has no memory for a range of {bytes} bytes of addresses: is RLIMIT_AS (ulimit -v) too low?"
                ));
            }
            Err(errno) if bytes == GRANULE => {
                return Err(fail!(
                    ErrorKind::BackendFailed,
                    "the system refuses to reserve {bytes} bytes of addresses: errno {errno}"
                ));
            }
            Err(_) => bytes = (bytes / 2 / GRANULE).max(1) * GRANULE,
        }
    }
}

fn failure(what: &str, bytes: u64, errno: i32) -> ErrorKind {
    if errno == libc::ENOMEM {
        return fail!(
            ErrorKind::OutOfMemory,
            "the system has no memory, or no more mappings, to {what} {bytes} bytes"
        );
    }
    fail!(ErrorKind::BackendFailed, "the system failed to {what} {bytes} bytes of granules: errno {errno}")
}

#[cfg(test)]
mod tests;
