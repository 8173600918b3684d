//! Pending device work: which work of streams may still use free memory, and how a request gets that memory all the
//! same.
//!
//! ```text
//!   driver_stream  stream handles, and shared helpers     record  records an event at each free with several streams
//!   capture_state  whether streams are being captured     poll    queries events
//!   synchronize    waits for the whole context            wait    waits for events
//!   forget         the end of a stream or the allocator    naming  the stream that a caller's handle stands for
//! ```
//!
//! Each stream is a queue. The frees of a pool are counted, and the count at a free is its point. A free chunk waits
//! until its queue is done up to its point, and until other queues are done up to the points of its recorded uses. The
//! core knows queues and points, and this module knows events. The driver is called with the lock open. The rules:
//!
//! - **An event belongs to one free.** It is recorded before the free returns, so it covers nothing that the caller
//!   queues later. Waiting for more could deadlock, because later work may itself wait for what the waiting stream does
//!   next. The only stream of a pool records nothing. Its frees later get a late event at most (`Kind::Late`), which is
//!   only queried. Memory freed without a stream has no event, so the context is synchronized for it.
//! - **An event has one owner at a time**: the list of its queue, then the threads that query or wait for it with the
//!   lock open (`Events::hold`), then the list of spare events. Only a spare event is recorded again.
//! - **An event belongs to its stream's context.** `Order::context_of` returns that context. The event is created
//!   there, and spare events are kept by context. `synchronize` waits for the pool's own context and says nothing about
//!   queues of other contexts. `wait_for_all` and the end of the allocator wait for the newest events of those queues.
//!   `forget` records the last event across contexts (`record_across`), so that nothing of the other context is left.
//! - **A default stream is one of its context.** [`Stream::context`](bfc_core::stream_id::Stream::context) is 0 for
//!   those of the pool's own. A context that the program has created may end unnoticed. So events on its default streams
//!   are of the pool's own context too, and it is entered only in calls that name such a stream, and in frees of memory
//!   that was used on it.
//! - **A destroyed stream's handle is not passed to the driver.** The handle of a created stream is passed in calls in
//!   which the caller names the stream, in frees of memory that was used on it, and in queries for captures while such
//!   memory is in use (`StreamHeap::living_streams`). INVALID_HANDLE is tolerated all the same, but nothing depends on
//!   it.
//! - **A request adopts chunks after its waits.** After `cuStreamWaitEvent` the chunks that a request waited for get a
//!   new point of its own queue with an event of its own, because an event recorded before the wait does not cover
//!   them.
//! - **Captures are not disturbed.** Before anything that waits for a context, the streams that certainly exist are
//!   queried for captures, and then the announcements are checked once more (`may_disturb`). A capture announced by
//!   `bfc_pool_begin` may begin at any time. So nothing is queued on such a stream, and only events recorded earlier
//!   are waited for. For captures without an announcement there are only the queries. They miss a capture that begins
//!   between the query and the next call. If that is noticed, the event is not used.

mod capture_state;
mod driver_stream;
mod forget;
mod naming;
mod poll;
mod record;
mod synchronize;
#[cfg(test)]
mod tests;
mod wait;

pub(super) use self::capture_state::{await_disturbing_calls, is_any_captured, may_disturb};
pub(super) use self::driver_stream::is_one_captured;
pub(super) use self::forget::end;
pub(crate) use self::forget::forget;
pub(crate) use self::naming::{record_use, stream_in_current_context, stream_of, stream_of_use};
pub(super) use self::poll::poll;
pub(super) use self::record::record_free;
pub(crate) use self::synchronize::declare_done;
pub(super) use self::synchronize::{
    is_idle, share_a_piece, synchronize, synchronize_unordered, wait_for_all,
};
pub(super) use self::wait::{wait, wait_for_the_end};
