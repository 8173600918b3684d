//! Host memory for the metadata of an allocator: zeroed without the time to write it, resident only where it was
//! touched, and fallible, so that no caller aborts where there is none.
//!
//! [`LazyTable`] is a table of `u32` for an index of any size, [`Zeroed`] an array, [`Mapping`] the range below both.
//!
//! ```
//! use bfc_hostmem::LazyTable;
//!
//! # fn main() -> Result<(), bfc_hostmem::HostMemoryExhausted> {
//! // One entry for each 256 bytes of 80 GiB. Only the pages of stored entries take memory.
//! let mut chunk_of_unit = LazyTable::new((80 << 30) / 256)?;
//! chunk_of_unit.set(100_000_000, 7);
//! assert_eq!(chunk_of_unit.last_at_or_before(300_000_000), Some((100_000_000, 7)));
//! assert!(chunk_of_unit.resident_bytes() < 100 << 10);
//! # Ok(())
//! # }
//! ```

mod fallible;
mod mapping;
mod pages;
mod table;
mod zeroed;

pub use fallible::{HostMemoryExhausted, try_box, try_box_with};
pub use mapping::Mapping;
pub use pages::{HUGE_PAGE, PAGE, advise, discard, populate};
pub use table::LazyTable;
pub use zeroed::{Plain, Zeroed};
