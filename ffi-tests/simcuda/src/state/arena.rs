//! The addresses of one device's plain memory: a range of its own, of which pages are accessible while they are
//! allocated. It is a file in memory, so that another process can map a part of it (IPC).

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::options::POISON;
use crate::system::{self, Access, PAGE, round_up};

/// Devices' ranges lie a tebibyte apart, where nothing else is mapped in a usual process.
const FIRST: u64 = 0x2000_0000_0000;
const APART: u64 = 1 << 40;

/// What `cuMemAlloc` aligns to: cuda.h promises 'any kind of variable', drivers are believed to give 512.
pub(crate) const ALIGNMENT: u64 = 512;

/// Large allocations begin at pages of the device: drivers are believed to give 2 MiB, and NCCL relies on whole pages of the
/// host when it registers what cudaMalloc gave as a DMA-BUF. Here it is the largest page of a host, and no better.
pub(crate) const LARGE: u64 = 1 << 20;
pub(crate) const LARGE_ALIGNMENT: u64 = 64 << 10;

/// The range of one device.
pub(crate) struct Arena {
    base: u64,
    bytes: u64,
    file: c_int,
    /// Whole pages that are in use, by address.
    spans: BTreeMap<u64, u64>,
    /// Where the next search begins if addresses are not to be reused at once.
    cursor: u64,
}

impl Arena {
    /// A range for a device with that much memory.
    pub(crate) fn new(device: usize, capacity: u64) -> Option<Self> {
        let hint = FIRST + APART * device as u64;
        let least = round_up(capacity, PAGE) + PAGE;
        // Less where addresses are scarce: under ulimit -v, under valgrind.
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

    /// Its first address, which is the beginning of the file.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The file that its memory is.
    pub(crate) fn file(&self) -> c_int {
        self.file
    }

    /// Whether a device with that much memory fits.
    pub(crate) fn holds(&self, capacity: u64) -> bool {
        self.bytes >= capacity + PAGE
    }

    /// Gives the addresses back; nothing may be in use.
    pub(crate) fn end(self) {
        system::unreserve(self.base, self.bytes);
        system::close(self.file);
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        at >= self.base && at - self.base < self.bytes
    }

    /// Makes pages accessible and gives an address in them and the pages. What was asked for lies at the end of
    /// the last page, and the page behind stays inaccessible: a stray access behind faults, and nobody gets used
    /// to a better alignment than is promised. A large one begins with its first page.
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

    /// The first gap of that many bytes from an address on; the page behind each span counts as its part. A large one
    /// begins at an odd multiple of its alignment.
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

    /// Takes pages back. They are gone, or full of poison.
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
