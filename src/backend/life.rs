//! Memory that can go all at once: a program may end the context of a device behind the library's back.

use super::{AnyBackend, Granted};
use crate::error::Error;

/// The contract, which every backend fulfils whose memory can go so:
/// - Once its memory is gone, nothing that a call returns is of use: the pool asks `is_over` behind each call of the
///   backend, and then forgets everything.
/// - A backend whose memory is gone makes no more call of the driver but to begin anew and to close. What it is asked
///   to give back is gone, which is no failure.
/// - Nothing here is called while an allocator is locked but `is_over` and `end`.
pub(crate) trait Life {
    /// Whether its memory is known to be gone. No call of the driver.
    fn is_over(&self) -> bool;

    /// Looks whether its memory is gone; where that cannot be seen it is if the program has said so. True if only this
    /// speaks for it, that there is no such `region`: then it is for whoever knows that nobody has given the region back
    /// meanwhile to call `end`.
    fn look(&self, region: Option<Granted>, told: bool) -> bool;

    /// Its memory is gone. No call of the driver.
    fn end(&self);

    /// Begins anew. No call from before is under way; what is called until this has returned fails as before. From then
    /// on the result is called, and this one never again, not even by `close`. After a failure it is over as before.
    fn renew(&self) -> Result<AnyBackend, Error>;
}
