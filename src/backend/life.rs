//! Memory that can be lost all at once: a program may end the context of a device without telling the library.

use super::{AnyBackend, Granted};
use crate::error::ErrorKind;

/// The contract of every backend whose memory can be lost in this way:
/// - Once the memory is lost, no result of a call is usable. The pool checks `is_over` after each call of the backend,
///   and then forgets everything.
/// - A backend whose memory is lost calls the driver only to renew itself and to close. Requests to release lost memory
///   succeed without effect.
/// - Of these functions, only `is_over` and `end` are called while an allocator is locked.
pub(crate) trait Life {
    /// Returns whether the memory is known to be lost. Makes no driver call.
    fn is_over(&self) -> bool;

    /// Checks whether the memory is lost. If the driver cannot tell, the memory is lost if `declared`: the program has
    /// reported it. Returns true if the only evidence is that `region` no longer exists. In that case the caller must
    /// call `end`, provided that the region was not released meanwhile.
    fn probe(&self, region: Option<Granted>, declared: bool) -> bool;

    /// Records that the memory is lost. Makes no driver call.
    fn end(&self);

    /// Begins a new life. No call of the old one is under way, and calls made before this returns fail as before. After
    /// that only the result is called, and this object never again, not even `close`. After a failure the memory stays
    /// lost.
    fn renew(&self) -> Result<AnyBackend, ErrorKind>;
}
