//! A reserved range of addresses that is mapped by the granule.
//!
//! Some backends reserve one range of addresses and map physical granules into it wherever they are wanted. Such
//! a pool is one region from the beginning to the end of the range. What is not mapped is a third kind of chunk, an
//! unmapped chunk ([`State::Unmapped`](crate::core::heap::State)): whole granules, at granule boundaries, in no tree of the
//! index, so that no request finds them and no free neighbour coalesces with them. Adjacent unmapped chunks are merged. The
//! part of the range that was never used is the last one; that it is a chunk keeps the chunk before it in reach.
//!
//! ```text
//!   granules   |       |       |       |       |       |       |
//!   chunks     |use|free|  unmapped    |use|free|   unmapped ...    the end of the range
//! ```
//!
//! ```text
//!   range      the addresses          unmapped  the list of unmapped chunks
//!   places     where a request needs the fewest granules mapped
//!   donors     free chunks that can give whole granules
//! ```

mod donors;
mod places;
mod range;
mod unmapped;

pub(in crate::core) use self::donors::{Donor, choose, donors, has_donors, total};
pub(in crate::core) use self::places::{Place, available_below};
pub(crate) use self::range::Range;
pub(crate) use self::unmapped::VmRange;
pub(in crate::core) use self::unmapped::is_unmapped;
