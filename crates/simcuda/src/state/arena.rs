//! The addresses of one device's plain memory: a range of its own, whose pages are accessible while they are allocated.
//! The memory is a memory file, so that another process can map a part of it (IPC).

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::options::POISON;
use crate::system::{self, Access, PAGE, round_up};

/// The ranges of devices are one tebibyte apart, where usual processes have no mappings.
const FIRST: u64 = 0x2000_0000_0000;
const APART: u64 = 1 << 40;

/// The alignment of `cuMemAlloc`. cuda.h guarantees "any kind of variable". Drivers are assumed to use 512.
pub(crate) const ALIGNMENT: u64 = 512;

/// Large allocations begin at pages of the device. Drivers are assumed to use 2 MiB, and NCCL relies on whole pages of
/// the host when it registers memory from cudaMalloc as a DMA-BUF. Here the alignment is the largest page of a host,
/// and not larger.
pub(crate) const LARGE: u64 = 1 << 20;
pub(crate) const LARGE_ALIGNMENT: u64 = 64 << 10;

/// The range of one device.
pub(crate) struct Arena {
    base: u64,
    bytes: u64,
    file: c_int,
    /// Whole pages in use, by address.
    spans: BTreeMap<u64, u64>,
    /// Where the next search begins if addresses are not to be reused at once.
    cursor: u64,
}

impl Arena {
    /// Reserves a range for a device with that much memory.
    pub(crate) fn new(device: usize, capacity: u64) -> Option<Self> {
        let hint = FIRST + APART * device as u64;
        let least = round_up(capacity, PAGE) + PAGE;
        // Smaller where addresses are scarce, for example under ulimit -v or valgrind.
        [APART, 1 << 36, least].into_iter().filter(|bytes| *bytes >= least).find_map(|bytes| {
            let base = system::reserve(hint, bytes)?;
            let file = system::memory_file(bytes)?;
            if system::map(base, bytes, file, 0, Access::None).is_none() {
                system::unreserve(base, bytes);
                system::close(file);
                return None;
            }
            Some(Self { base, bytes, file, spans: BTreeMap::new(), cursor: base })
        })
    }

    /// Returns the first address, which is the beginning of the file.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Returns the memory file.
    pub(crate) fn file(&self) -> c_int {
        self.file
    }

    /// Returns whether a device with that much memory fits.
    pub(crate) fn holds(&self, capacity: u64) -> bool {
        self.bytes >= capacity + PAGE
    }

    /// Unmaps the addresses. Nothing may be in use.
    pub(crate) fn end(self) {
        system::unreserve(self.base, self.bytes);
        system::close(self.file);
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        at >= self.base && at - self.base < self.bytes
    }

    /// Makes pages accessible. Returns an address in them, and the pages. The allocation is at the end of the last
    /// page, and the next page stays inaccessible. So a stray access after it faults, and no program comes to rely
    /// on a larger alignment than guaranteed. A large allocation begins with its first page.
    pub(crate) fn take(&mut self, bytes: u64, reuse: bool) -> Option<(u64, (u64, u64))> {
        let payload = round_up(bytes, ALIGNMENT);
        let pages = round_up(payload, PAGE);
        let from = if reuse { self.base } else { self.cursor };
        let is_large = bytes >= LARGE;
        let gap = |from| self.gap(from, pages + PAGE, is_large);
        let start = gap(from).or_else(|| gap(self.base))?;
        if !system::protect(start, pages, Access::Write) {
            return None;
        }
        self.spans.insert(start, pages);
        self.cursor = start + pages + PAGE;
        let at = if is_large { start } else { start + pages - payload };
        Some((at, (start, pages)))
    }

    /// Returns the first gap of that many bytes at or after an address. The page after each span belongs to it. A large
    /// allocation begins at an odd multiple of its alignment.
    fn gap(&self, from: u64, bytes: u64, is_large: bool) -> Option<u64> {
        let aligned = |at: u64| match is_large {
            true => round_up(at + LARGE_ALIGNMENT, 2 * LARGE_ALIGNMENT) - LARGE_ALIGNMENT,
            false => at,
        };
        let mut at = aligned(from);
        if let Some((start, pages)) = self.spans.range(..from).next_back() {
            at = at.max(aligned(start + pages + PAGE));
        }
        for (start, pages) in self.spans.range(from..) {
            if start.saturating_sub(at) >= bytes {
                break;
            }
            at = at.max(aligned(start + pages + PAGE));
        }
        (at + bytes <= self.base + self.bytes).then_some(at)
    }

    /// Frees pages. They become inaccessible, or are filled with poison.
    pub(crate) fn give_back(&mut self, (start, pages): (u64, u64), fill: bool) {
        self.spans.remove(&start);
        if fill {
            // SAFETY: the span was in use until now, so its pages are accessible.
            unsafe { std::ptr::write_bytes(start as *mut u8, POISON, pages as usize) };
            return;
        }
        system::protect(start, pages, Access::None);
        system::punch(self.file, start - self.base, pages);
    }
}
