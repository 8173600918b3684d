//! Vectors as tables: growth in small steps, shrinking, and copies. None of these aborts when host memory runs out.

use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

pub(crate) fn reserve_to<T>(vector: &mut Vec<T>, capacity: usize) -> Result<(), HostMemoryExhausted> {
    Ok(vector.try_reserve_exact(capacity.saturating_sub(vector.len()))?)
}

/// Makes room for `length` items. The room grows by an eighth, because most of a doubling would stay unused, and
/// reallocating a large vector moves pages rather than bytes.
pub(crate) fn make_room<T>(vector: &mut Vec<T>, length: usize) -> Result<(), HostMemoryExhausted> {
    if vector.capacity() >= length {
        return Ok(());
    }
    let wanted = length.max(vector.capacity() + vector.capacity() / 8);
    Ok(vector.try_reserve_exact(wanted - vector.len())?)
}

/// Keeps only the first `length` items and frees the remaining room. Without memory for a smaller vector the room
/// stays.
pub(crate) fn shrink_to<T: Copy>(vector: &mut Vec<T>, length: usize) {
    vector.truncate(length);
    let mut shorter = Vec::new();
    if shorter.try_reserve_exact(vector.len()).is_ok() {
        shorter.extend_from_slice(vector);
        *vector = shorter;
    }
}

/// Frees the reserved room of a list that it does not need, if there is host memory for a copy.
pub fn shrink<T>(list: &mut Vec<T>) {
    let mut copy = Vec::new();
    if list.capacity() > list.len() && copy.try_reserve_exact(list.len()).is_ok() {
        copy.append(list);
        *list = copy;
    }
}

pub(crate) fn with_margin(length: usize) -> usize {
    length + length / 16 + 16
}

/// Clears a table and reserves memory for `length` elements and some more. All of its pages are touched.
pub(crate) fn room_for<T: Copy>(
    table: &mut Vec<T>,
    length: usize,
    filler: T,
) -> Result<(), HostMemoryExhausted> {
    table.clear();
    if length != 0 {
        table.try_reserve_exact(with_margin(length))?;
        table.resize(with_margin(length), filler);
        table.clear();
    }
    Ok(())
}

/// Copies a table if it fits. Returns whether it did.
pub(crate) fn copy_table<T: Copy>(to: &mut Vec<T>, from: &[T]) -> bool {
    let fits = from.len() <= to.capacity();
    if fits {
        to.clear();
        to.extend_from_slice(from);
    }
    fits
}
