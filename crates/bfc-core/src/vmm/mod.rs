//! A reserved address range that is mapped in granules.
//!
//! Some backends reserve one range of addresses and map physical granules into it where they are needed. Such a pool is
//! a single region that spans the whole range. The parts that are not mapped are a third kind of chunk, unmapped chunks
//! ([`State::Unmapped`](crate::heap::State)). They consist of whole granules at granule boundaries and are in no
//! tree of the index, so no request finds them and no free neighbour coalesces with them. Adjacent unmapped chunks are
//! merged. The part of the range that was never used is the last chunk. Keeping it as a chunk makes the chunk before it
//! reachable.
//!
//! ```text
//!   granules   |       |       |       |       |       |       |
//!   chunks     |use|free|  unmapped    |use|free|   unmapped ...    the end of the range
//! ```
//!
//! ```text
//!   unmapped   the range, and the list of its unmapped chunks
//!   places     where a request needs the fewest granules mapped
//!   donors     free chunks that can give whole granules
//! ```

mod donors;
mod places;
mod unmapped;

pub(crate) use self::donors::{Donor, choose, donors, has_donors, total};
pub(crate) use self::places::{Place, available_below};
pub(crate) use self::unmapped::is_unmapped;
pub use self::unmapped::{Range, VmRange};
