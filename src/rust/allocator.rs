//! Collections in a pool.

use super::HostPool;
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::ptr::NonNull;

/// For `Vec`, `Box` and others of the crate allocator-api2 0.2, and hashbrown's maps (its feature `allocator-api2`).
///
/// Where the pool is full, what can fail returns an error without a message, as `Vec::try_reserve` does, and what cannot,
/// like `Vec::push`, ends the program.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use bfc::HostPool;
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let mut numbers = Vec::new_in(&pool);
/// numbers.extend(0..100);
/// assert!(pool.stats()?.bytes_in_use >= 400);
/// drop(numbers);
/// assert_eq!(pool.stats()?.bytes_in_use, 0);
///
/// let mut ages = hashbrown::HashMap::with_hasher_in(hashbrown::DefaultHashBuilder::default(), &pool);
/// ages.insert("Ada", 36);
/// assert!(pool.stats()?.bytes_in_use > 0);
/// # Ok(())
/// # }
/// ```
// SAFETY: the memory stays allocated until `deallocate`, because the collection borrows the pool, and all references to a pool
// are equal. It is the host's, and has the layout's size and alignment.
unsafe impl Allocator for &HostPool {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let (bytes, alignment) = (layout.size(), layout.align());
        if bytes == 0 {
            return Ok(NonNull::slice_from_raw_parts(dangling(layout), 0));
        }
        let address = match alignment <= 256 {
            true => self.device().alloc(bytes as u64),
            false => self.device().alloc_aligned(bytes as u64, alignment as u64),
        };
        let pointer = NonNull::new(address.map_err(|_| AllocError)? as *mut u8).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(pointer, bytes))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let memory = self.allocate(layout)?;
        if !memory.is_empty() {
            let address = memory.cast::<u8>().as_ptr() as u64;
            // SAFETY: the memory is the host's, and nothing else has it.
            if unsafe { self.device().zero(address, memory.len() as u64) }.is_err() {
                // SAFETY: it was allocated above.
                unsafe { self.deallocate(memory.cast(), layout) };
                return Err(AllocError);
            }
        }
        Ok(memory)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller gives up this memory, which was allocated here.
            let _ = unsafe { self.device().free(pointer.as_ptr() as u64) };
        }
    }
}

/// The address of nothing, at a multiple of the alignment.
fn dangling(layout: Layout) -> NonNull<u8> {
    NonNull::new(std::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}
