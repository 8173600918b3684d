//! Arrays of zeros, created without the time to write them.
//!
//! Large arrays are mappings. A page exists only after the first store to it, so a new array of any length costs one
//! system call. Small arrays come from the heap.

use crate::fallible::HostMemoryExhausted;
use crate::mapping::Mapping;
use crate::pages::PAGE;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// The size in bytes from which an array is a mapping.
const LEAST_MAPPED: usize = 16 * PAGE;

/// A plain value for which all zero bytes are valid.
///
/// # Safety
/// All bit patterns must be valid values.
pub unsafe trait Plain: Copy {}

// SAFETY: numbers, and arrays of them, have no invalid values.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u64; N] {}

/// An array of a fixed length. Its items need no drop.
pub struct Zeroed<T: Plain> {
    items: NonNull<T>,
    length: usize,
}

// SAFETY: the array owns its items, which are plain values.
unsafe impl<T: Plain + Send> Send for Zeroed<T> {}
// SAFETY: a shared array only permits reading.
unsafe impl<T: Plain + Sync> Sync for Zeroed<T> {}

impl<T: Plain> Zeroed<T> {
    /// An array without items.
    pub const EMPTY: Self = Zeroed { items: NonNull::dangling(), length: 0 };

    /// Creates an array of that many zeros.
    pub fn new(length: usize) -> Result<Self, HostMemoryExhausted> {
        let layout = Layout::array::<T>(length).map_err(|_| HostMemoryExhausted)?;
        if layout.size() == 0 {
            return Ok(Self::EMPTY);
        }
        let items = if layout.size() >= LEAST_MAPPED {
            Mapping::new(layout.size(), PAGE)?.into_raw()
        } else {
            // SAFETY: the layout is not of size 0.
            unsafe { alloc_zeroed(layout) }
        };
        let items = NonNull::new(items.cast()).ok_or(HostMemoryExhausted)?;
        Ok(Zeroed { items, length })
    }

    /// Sets items to 0. For a large array, whole pages are freed.
    pub fn clear(&mut self, places: Range<usize>) {
        let (mut first, mut last) = (places.end, places.end);
        if self.bytes() >= LEAST_MAPPED {
            let from = (places.start * size_of::<T>()).next_multiple_of(PAGE);
            let end = places.end * size_of::<T>();
            // There is nothing after the last item.
            let to = if places.end == self.length { self.mapped_bytes() } else { end - end % PAGE };
            if from < to {
                // SAFETY: the items are a mapping of that many bytes. Ownership is given up again below.
                let mut mapping =
                    unsafe { Mapping::from_raw(self.items.as_ptr().cast(), self.mapped_bytes()) };
                mapping.discard(from, to - from);
                mapping.into_raw();
                // Items across a border are in a part that is overwritten.
                first = from.div_ceil(size_of::<T>()).min(places.end);
                last = (to / size_of::<T>()).min(places.end);
            }
        }
        // SAFETY: all zero bits are a value of a plain type.
        let zero = unsafe { std::mem::zeroed() };
        self[places.start..first].fill(zero);
        self[last..places.end].fill(zero);
    }

    /// Makes the array longer. The new items are 0. On failure nothing changed.
    pub fn grow(&mut self, length: usize) -> Result<(), HostMemoryExhausted> {
        let mut longer = Self::new(length.max(self.length))?;
        longer[..self.length].copy_from_slice(self);
        *self = longer;
        Ok(())
    }

    /// Keeps only the first `length` items. Without memory for a shorter array it stays as it is.
    pub fn shrink(&mut self, length: usize) {
        if length < self.length
            && let Ok(mut shorter) = Self::new(length)
        {
            shorter.copy_from_slice(&self[..length]);
            *self = shorter;
        }
    }

    fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    fn mapped_bytes(&self) -> usize {
        self.bytes().next_multiple_of(PAGE)
    }

    /// Returns the host memory that the array takes once all of it was written, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.bytes() as u64
    }
}

impl<T: Plain> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the array owns that many items, which are plain values and begin as zeros.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.length) }
    }
}

impl<T: Plain> DerefMut for Zeroed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.items.as_ptr(), self.length) }
    }
}

impl<T: Plain> Drop for Zeroed<T> {
    fn drop(&mut self) {
        if self.bytes() >= LEAST_MAPPED {
            // SAFETY: the items are a mapping of that many bytes, which is not used afterwards.
            drop(unsafe { Mapping::from_raw(self.items.as_ptr().cast(), self.mapped_bytes()) });
        } else if let Ok(layout) = Layout::array::<T>(self.length)
            && layout.size() != 0
        {
            // SAFETY: the items came from the global allocator with this layout.
            unsafe { dealloc(self.items.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_ones_begin_as_zeros_and_are_cleared() {
        for length in [0, 1, 100, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 100_000] {
            let mut array = Zeroed::<u32>::new(length).unwrap();
            assert!(array.len() == length && array.iter().all(|&item| item == 0));
            for places in [0..0, 0..length, length / 3..length, length / 3..length / 2, 0..length / 2] {
                array.fill(7);
                array.clear(places.clone());
                let is_cleared = |place| places.contains(&place);
                let right = |(place, &item): (usize, &u32)| item == if is_cleared(place) { 0 } else { 7 };
                assert!(array.iter().enumerate().all(right), "{length}, {places:?}");
            }
        }
    }

    #[test]
    fn items_on_both_sides_of_a_page_are_cleared() {
        let mut array = Zeroed::<[u64; 3]>::new(10_000).unwrap();
        for start in [0, 170, 171, 172, 341, 5000] {
            for end in [start, 1500, 5001, 9999, 10_000] {
                let places = start..end.max(start);
                array.fill([7; 3]);
                array.clear(places.clone());
                let wanted = |place| if places.contains(&place) { [0; 3] } else { [7; 3] };
                assert!((0..10_000).all(|place| array[place] == wanted(place)), "{places:?}");
            }
        }
    }

    #[test]
    fn it_grows_with_its_contents() {
        let mut array = Zeroed::<[u64; 2]>::EMPTY;
        for length in [1, 64, 4096, 5000, 10] {
            let old = array.len();
            array.grow(length).unwrap();
            assert!(array[..old].iter().all(|&item| item == [9; 2]) && array.len() == length.max(old));
            assert!(array[old..].iter().all(|&item| item == [0; 2]));
            array.fill([9; 2]);
        }
        array.shrink(6000);
        assert_eq!(array.len(), 5000);
        for length in [4500, 7, 0] {
            array.shrink(length);
            assert!(array.len() == length && array.iter().all(|&item| item == [9; 2]));
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert!(Zeroed::<u32>::new(usize::MAX).is_err());
        assert!(Zeroed::<u32>::new(usize::MAX / 8).is_err());
    }
}
