//! The order of device work: what streams still do to free memory, and how a request gets that memory all the same.
//!
//! ```text
//!   driver_stream  streams as the driver knows them       record  an event for each free that others could profit from
//!   capture_state  whether streams are captured           poll    queries events
//!   synchronize    waits for the whole context            wait    waits for events
//!   forget         the end of a stream, of the allocator
//! ```
//!
//! Each stream is a queue. The frees of a pool are counted, and the count is a free's point. Free memory waits until its
//! queue is done up to its point, and recorded uses in other queues likewise. The core knows queues and points; this
//! module knows events. The driver is called with the lock open. The rules:
//!
//! - **An event belongs to one free.** It is recorded before the free returns, so it stands for nothing that the caller
//!   queues later. Waiting for more could deadlock: later work may itself wait for what the waiting stream does next. A
//!   stream that is alone records nothing; what it freed then gets a late event at most (`Kind::Late`), which is only
//!   queried. Memory freed without a stream has no event: the context is synchronized for it.
//! - **An event has one owner at a time**: the list of its queue, then the threads that query or wait for it with the lock
//!   open (`Events::hold`), then the list of spare ones. It is recorded anew only from the last.
//! - **An event is of its stream's context.** The backend asks for it (`Order::context_of`), creates the event there and
//!   keeps spare ones by context. `synchronize` waits for the pool's own context and tells nothing of queues of others,
//!   whose newest events `wait_for_all` and the end of the allocator wait for. `forget` records the last event across
//!   contexts (`record_across`), so that nothing of the other context is left.
//! - **A destroyed stream's handle is not passed to the driver.** A created stream is named to it by calls in which the
//!   caller names it, by frees of memory that was used on it, and when captures are looked for while such memory is in use
//!   (`StreamHeap::living_streams`). INVALID_HANDLE is tolerated all the same, and nothing rests on it.
//! - **A wait adopts behind its waits.** After `cuStreamWaitEvent` the chunks that a request waited for get a new point of
//!   its own queue with an event of its own, because an event recorded before the wait says nothing of them.
//! - **Captures.** Before anything that waits for a context, the driver is asked about the streams that surely live, then
//!   announcements are checked once more (`may_disturb`). Nothing is queued on a stream whose capture is announced by
//!   `bfc_pool_begin`, and nothing is waited for but earlier events, because the capture may begin at any time. The driver is
//!   asked about streams that are captured without an announcement. That helps unless the capture begins between the answer
//!   and the next call; where that is seen the event counts for nothing.

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
