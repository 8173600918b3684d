//! The order of device work: what streams still do to free memory, and how a request gets that memory all the same.
//!
//! ```text
//!   driver_stream  streams as the driver knows them       record  an event for each free that others could profit from
//!   capture_state  whether streams are captured           poll    queries events
//!   synchronize    waits for the whole context            wait    waits for events
//!   forget         the end of a stream, of the allocator
//! ```
//!
//! The driver is called with the lock open.
//!
//! Nothing is queued on a stream whose capture is announced by `bfc_pool_begin`, and nothing is waited for but events of
//! before: it may begin at any time. Of a stream that is captured without an announcement the driver is asked, which
//! helps unless the capture begins between the answer and the next call. Where that is seen the event counts for nothing.

mod capture_state;
mod driver_stream;
mod forget;
mod poll;
mod record;
mod synchronize;
#[cfg(test)]
mod tests;
mod wait;

pub(super) use self::capture_state::{is_any_captured, leave_alone, may_disturb};
pub(super) use self::driver_stream::is_one_captured;
pub(crate) use self::driver_stream::stream_of;
pub(super) use self::forget::end;
pub(crate) use self::forget::forget;
pub(super) use self::poll::poll;
pub(super) use self::record::record_free;
pub(crate) use self::synchronize::vouch;
pub(super) use self::synchronize::{share_a_piece, synchronize, synchronize_unordered, wait_for_all};
pub(super) use self::wait::{wait, wait_for_the_end};
