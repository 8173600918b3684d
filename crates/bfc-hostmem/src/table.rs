//! A huge table of `u32` that is resident only where entries were stored.
//!
//! The table maps the 256-byte units of a region to chunks: 4 bytes per unit, so 1.25 GiB of addresses for an 80 GiB
//! region, of which only the pages with a stored entry exist. A bitmap at the end of the same mapping records these
//! pages. It provides the resident size, and lets a backwards search from an interior pointer skip untouched pages.

use crate::fallible::HostMemoryExhausted;
use crate::mapping::Mapping;
use crate::pages::PAGE;

const ENTRIES_PER_PAGE: usize = PAGE / size_of::<u32>();
/// How many pages one word of the bitmap covers.
const PAGES_PER_WORD: usize = 64;

/// The table. Entries are 0 until set, and every index is checked.
pub struct LazyTable {
    mapping: Mapping,
    entries: usize,
    pages: usize,
    resident_pages: usize,
}

impl LazyTable {
    /// Creates a table of that many entries, all 0.
    pub fn new(entries: usize) -> Result<Self, HostMemoryExhausted> {
        let pages = entries.div_ceil(ENTRIES_PER_PAGE).max(1);
        let mapping = Mapping::new(mapped_bytes(pages)?, PAGE)?;
        mapping.prefer_small_pages();
        Ok(LazyTable { mapping, entries, pages, resident_pages: 0 })
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Returns an entry. Panics if the index is not below [`Self::entries`].
    #[inline]
    pub fn get(&self, index: usize) -> u32 {
        assert!(index < self.entries);
        // SAFETY: index < entries, and the mapping begins with that many entries, aligned to a page.
        unsafe { self.mapping.base().cast::<u32>().wrapping_add(index).read() }
    }

    /// Stores a non-zero `value`, or clears an entry that was stored before. Panics as [`Self::get`] does.
    #[inline]
    pub fn set(&mut self, index: usize, value: u32) {
        assert!(index < self.entries);
        let page = index / ENTRIES_PER_PAGE;
        let (word, bit) = (page / PAGES_PER_WORD, 1u64 << (page % PAGES_PER_WORD));
        let seen = self.bitmap(word);
        if seen & bit == 0 {
            self.set_bitmap(word, seen | bit);
            self.resident_pages += 1;
        }
        // SAFETY: as in `get`; `&mut self` makes the access exclusive.
        unsafe { self.mapping.base().cast::<u32>().wrapping_add(index).write(value) };
    }

    /// Returns the last non-zero entry at or before `index`, with its index.
    pub fn last_at_or_before(&self, index: usize) -> Option<(usize, u32)> {
        let mut end = index.min(self.entries.checked_sub(1)?);
        loop {
            let page = end / ENTRIES_PER_PAGE;
            if self.page_was_touched(page) {
                let first = page * ENTRIES_PER_PAGE;
                let found = (first..=end).rev().find_map(|i| Some((i, self.get(i))).filter(|e| e.1 != 0));
                if found.is_some() {
                    return found;
                }
            }
            end = self.touched_page_before(page)? * ENTRIES_PER_PAGE + ENTRIES_PER_PAGE - 1;
        }
    }

    /// Makes the table larger. The new entries are 0. On failure nothing changed.
    pub fn grow(&mut self, entries: usize) -> Result<(), HostMemoryExhausted> {
        let pages = entries.div_ceil(ENTRIES_PER_PAGE).max(1);
        if pages > self.pages {
            let old = self.pages;
            self.mapping.grow(mapped_bytes(pages)?)?;
            // The bitmap follows the entries, so it moves to their new end. The last word moves first, because the
            // new place may overlap the old one, which becomes entries and must read as zero.
            for word in (0..old.div_ceil(PAGES_PER_WORD)).rev() {
                let bits = self.bitmap_at(old, word);
                self.write_bitmap_at(old, word, 0);
                self.write_bitmap_at(pages, word, bits);
            }
            self.pages = pages;
        }
        self.entries = self.entries.max(entries);
        Ok(())
    }

    /// Clears all entries and frees their memory.
    pub fn clear(&mut self) {
        self.mapping.discard(0, self.pages * PAGE + bitmap_bytes(self.pages));
        self.resident_pages = 0;
    }

    /// Returns the host memory kept resident by the stored entries and their bitmap, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        (self.resident_pages * PAGE + bitmap_bytes(self.pages)) as u64
    }

    fn page_was_touched(&self, page: usize) -> bool {
        self.bitmap(page / PAGES_PER_WORD) >> (page % PAGES_PER_WORD) & 1 != 0
    }

    fn touched_page_before(&self, page: usize) -> Option<usize> {
        let mut word = page / PAGES_PER_WORD;
        let mut bits = self.bitmap(word) & ((1 << (page % PAGES_PER_WORD)) - 1);
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.bitmap(word);
        }
        Some(word * PAGES_PER_WORD + 63 - bits.leading_zeros() as usize)
    }

    #[inline]
    fn bitmap(&self, word: usize) -> u64 {
        self.bitmap_at(self.pages, word)
    }

    #[inline]
    fn set_bitmap(&mut self, word: usize, bits: u64) {
        self.write_bitmap_at(self.pages, word, bits);
    }

    #[inline]
    fn bitmap_at(&self, pages: usize, word: usize) -> u64 {
        debug_assert!(word < pages.div_ceil(PAGES_PER_WORD));
        // SAFETY: the mapping has `pages` pages of entries and then this many words of bitmap.
        unsafe { self.mapping.base().wrapping_add(pages * PAGE).cast::<u64>().wrapping_add(word).read() }
    }

    #[inline]
    fn write_bitmap_at(&mut self, pages: usize, word: usize, bits: u64) {
        debug_assert!(word < pages.div_ceil(PAGES_PER_WORD));
        // SAFETY: as in `bitmap_at`; `&mut self` makes the access exclusive.
        unsafe {
            self.mapping.base().wrapping_add(pages * PAGE).cast::<u64>().wrapping_add(word).write(bits)
        };
    }
}

fn bitmap_bytes(pages: usize) -> usize {
    (pages.div_ceil(PAGES_PER_WORD) * size_of::<u64>()).next_multiple_of(PAGE)
}

fn mapped_bytes(pages: usize) -> Result<usize, HostMemoryExhausted> {
    let entries = pages.checked_mul(PAGE).ok_or(HostMemoryExhausted)?;
    entries.checked_add(bitmap_bytes(pages)).ok_or(HostMemoryExhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_touched_pages_count() {
        let mut table = LazyTable::new(1 << 30).unwrap();
        let empty = table.resident_bytes();
        table.set(0, 1);
        table.set(1, 2);
        table.set((1 << 30) - 1, 3);
        assert_eq!(table.resident_bytes() - empty, 2 * PAGE as u64);
        assert_eq!((table.get(0), table.get(1), table.get(2), table.get((1 << 30) - 1)), (1, 2, 0, 3));
        table.clear();
        assert_eq!((table.get(0), table.resident_bytes()), (0, empty));
    }

    #[test]
    fn searches_backwards_over_untouched_and_cleared_pages() {
        let mut table = LazyTable::new(10_000_000).unwrap();
        assert_eq!(table.last_at_or_before(9_999_999), None);
        table.set(5, 9);
        table.set(700_000, 8);
        table.set(700_000, 0);
        assert_eq!(table.last_at_or_before(9_999_999), Some((5, 9)));
        assert_eq!(table.last_at_or_before(5), Some((5, 9)));
        assert_eq!(table.last_at_or_before(4), None);
    }

    #[test]
    fn grows_with_its_contents_and_its_bitmap() {
        let mut table = LazyTable::new(3).unwrap();
        table.set(2, 7);
        for entries in [1024, 1025, 70_000, 10_000_000] {
            table.grow(entries).unwrap();
            assert_eq!(table.get(2), 7);
            assert!((3..entries.min(80_000)).all(|i| table.get(i) == 0));
            assert_eq!(table.last_at_or_before(entries - 1), Some((2, 7)));
        }
        table.set(9_999_999, 1);
        assert_eq!(table.last_at_or_before(9_999_999), Some((9_999_999, 1)));
    }

    #[test]
    #[should_panic]
    fn an_index_behind_the_end_is_caught() {
        LazyTable::new(1000).unwrap().get(1000);
    }
}
