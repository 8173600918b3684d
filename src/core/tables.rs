//! Vectors as tables: growth in small steps, shrinking, and copies, all without an abort where host memory runs out.

use crate::sys::HostMemoryExhausted;

pub(in crate::core) fn reserve_to<T>(
    vector: &mut Vec<T>,
    capacity: usize,
) -> Result<(), HostMemoryExhausted> {
    Ok(vector.try_reserve_exact(capacity.saturating_sub(vector.len()))?)
}

/// Room for `length` items. By an eighth: twice as much would be mostly idle, and for large vectors a reallocation moves
/// pages, not bytes.
pub(in crate::core) fn make_room<T>(vector: &mut Vec<T>, length: usize) -> Result<(), HostMemoryExhausted> {
    if vector.capacity() >= length {
        return Ok(());
    }
    let wanted = length.max(vector.capacity() + vector.capacity() / 8);
    Ok(vector.try_reserve_exact(wanted - vector.len())?)
}

/// Leaves the first `length` items, and no room for more. Without memory for a shorter vector the room stays.
pub(in crate::core) fn shrink_to<T: Copy>(vector: &mut Vec<T>, length: usize) {
    vector.truncate(length);
    let mut shorter = Vec::new();
    if shorter.try_reserve_exact(vector.len()).is_ok() {
        shorter.extend_from_slice(vector);
        *vector = shorter;
    }
}

/// Gives back what a list has reserved beyond what it needs, if there is host memory for a copy.
pub(crate) fn shrink<T>(list: &mut Vec<T>) {
    let mut copy = Vec::new();
    if list.capacity() > list.len() && copy.try_reserve_exact(list.len()).is_ok() {
        copy.append(list);
        *list = copy;
    }
}

pub(in crate::core) fn with_margin(length: usize) -> usize {
    length + length / 16 + 16
}

/// Empties a table and gives it memory for so many elements and some more, all of which was touched.
pub(in crate::core) fn room_for<T: Copy>(
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

/// Copies a table if it fits.
pub(in crate::core) fn copy_table<T: Copy>(to: &mut Vec<T>, from: &[T]) -> bool {
    let fits = from.len() <= to.capacity();
    if fits {
        to.clear();
        to.extend_from_slice(from);
    }
    fits
}
