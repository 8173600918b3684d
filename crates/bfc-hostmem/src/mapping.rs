//! Anonymous memory from `mmap`: zeroed, not reserved, and resident only where it was touched.

use crate::fallible::HostMemoryExhausted;
use crate::pages::{HUGE_PAGE, PAGE, advise};

/// An owned range of anonymous memory, unmapped on drop.
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is plain memory of the process, and its owner may use it from any thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping only provides its base and length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` (not 0) of zeroed memory at a multiple of `alignment`, a power of two.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, HostMemoryExhausted> {
        // Miri does not know the flag.
        Self::map(bytes, alignment, PAGE, if cfg!(miri) { 0 } else { libc::MAP_NORESERVE })
    }

    /// Maps memory like [`Self::new`], in huge pages that the administrator has reserved (hugetlbfs). They are
    /// taken at once, because a page that is missing later would end the program.
    pub fn of_reserved_huge_pages(bytes: usize, alignment: usize) -> Result<Self, HostMemoryExhausted> {
        Self::map(bytes, alignment, HUGE_PAGE, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)
    }

    fn map(
        bytes: usize,
        alignment: usize,
        page: usize,
        flags: libc::c_int,
    ) -> Result<Self, HostMemoryExhausted> {
        let bytes = bytes.checked_next_multiple_of(page).ok_or(HostMemoryExhausted)?;
        let slack = if alignment > page { alignment } else { 0 };
        let total = bytes.checked_add(slack).ok_or(HostMemoryExhausted)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(HostMemoryExhausted);
        }
        let mut mapping = Mapping { base: raw.cast(), bytes: total };
        if slack != 0 {
            mapping.keep_aligned(bytes, alignment);
        }
        Ok(mapping)
    }

    /// Unmaps the memory before and after the aligned `bytes`.
    fn keep_aligned(&mut self, bytes: usize, alignment: usize) {
        let head = self.base.align_offset(alignment);
        let start = self.base.wrapping_add(head);
        unmap(self.base, head);
        unmap(start.wrapping_add(bytes), self.bytes - head - bytes);
        (self.base, self.bytes) = (start, bytes);
    }

    /// Gives up ownership of the range. The holder of the address is responsible for it.
    pub fn into_raw(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).base
    }

    /// # Safety
    /// `base` came from [`Self::into_raw`] of a mapping of `bytes`, and the memory is not in use.
    pub unsafe fn from_raw(base: *mut u8, bytes: usize) -> Self {
        Mapping { base, bytes }
    }

    /// Returns its first byte. It is valid for reading and writing as long as the mapping lives and does not grow.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns its size in bytes, a multiple of a page.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks the kernel not to back this memory with huge pages. A table with one used line per megabyte must not become
    /// resident by the megabyte. A refusal is harmless.
    pub fn prefer_small_pages(&self) {
        if !cfg!(miri) {
            advise(self.base as u64, self.bytes as u64, false);
        }
    }

    /// Frees the pages of `[offset, offset + bytes)`. They read as zero afterwards.
    pub fn discard(&mut self, offset: usize, bytes: usize) {
        assert!(offset.is_multiple_of(PAGE) && offset <= self.bytes && bytes <= self.bytes - offset);
        let start = self.base.wrapping_add(offset);
        if cfg!(miri) {
            // SAFETY: the range lies in this mapping (asserted), which `self` owns exclusively.
            unsafe { start.write_bytes(0, bytes) };
        } else {
            // SAFETY: as above.
            unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    /// Makes the mapping larger, with zeros at its end. It may move. On failure nothing changed.
    pub fn grow(&mut self, bytes: usize) -> Result<(), HostMemoryExhausted> {
        if bytes <= self.bytes {
            return Ok(());
        }
        // SAFETY: the range is one mapping that `self` owns exclusively, so nothing refers to its old address.
        let moved = unsafe { libc::mremap(self.base.cast(), self.bytes, bytes, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED {
            return Err(HostMemoryExhausted);
        }
        (self.base, self.bytes) = (moved.cast(), bytes);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base, self.bytes);
    }
}

fn unmap(base: *mut u8, bytes: usize) {
    if bytes != 0 {
        // SAFETY: callers pass a page-aligned part of a mapping that they own and never use again. The call fails only
        // if the kernel has no room to split a mapping. The range then stays mapped and unused.
        unsafe { libc::munmap(base.cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_honoured_and_all_of_it_is_usable() {
        for alignment in [1, 4096, 1 << 16, 1 << 21, 1 << 30] {
            let mapping = Mapping::new(12_345, alignment).unwrap();
            assert_eq!(mapping.base() as usize % alignment.max(PAGE), 0);
            // SAFETY: the mapping has at least 12345 bytes.
            unsafe { mapping.base().write_bytes(7, 12_345) };
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Mapping::new(usize::MAX / 2, 1).is_err());
        assert!(Mapping::new(usize::MAX - 1, 1 << 21).is_err());
    }
}
