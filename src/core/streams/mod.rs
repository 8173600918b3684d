//! Stream-ordered reuse of free memory.
//!
//! Memory freed on a stream can be reused on that stream at once, because later work is queued behind the work that
//! used the memory. Every other stream must wait until that work is done. [`StreamHeap`] is a heap that keeps this
//! order (invariants I7 and I8). It knows queues and points, but no events: [`crate::pool`] queries the driver.
//!
//! ```text
//!   queues             all queues, and the stream state of each chunk
//!   queue              one queue: its points, its free chunks, its index
//!   queue_lookup       from a stream to its queue
//!   idle_queues        forgetting streams that have no memory
//!   idle_search        the state of that search
//!   span_index         the free spans of a queue by size
//!   free_spans         neighbours that a queue may use as one chunk
//!   cross_stream_use   work of other queues that chunks wait for
//!   recorded_uses      recording such work, and waiting for it
//!   own_chunks         adding to a queue's own free chunks, and taking from them
//!   alloc  free        allocation and free in a queue
//!   sharing            chunks become reusable by every stream once work is done
//!   pending_work       which work is done, and which work free memory waits for
//!   dependencies       which work a request has to wait for, using oldest_work
//!   multi_stream       from one stream to several      graph_pools  private memory of captured graphs
//!   access             which streams may be using a chunk
//! ```

mod access;
mod alloc;
mod check;
mod chunk_state;
mod cross_stream_use;
mod dependencies;
mod free;
mod free_spans;
mod graph_pools;
mod idle_queues;
mod idle_search;
mod multi_stream;
mod oldest_work;
mod own_chunks;
mod pending_work;
mod queue;
mod queue_lookup;
mod queues;
mod recorded_uses;
mod sharing;
mod span_index;
mod stream_heap;

pub(crate) use self::access::Order;
pub(crate) use self::chunk_state::QueueId;
pub(crate) use self::dependencies::{Dependencies, Place};
pub(crate) use self::free::Freed;
pub(crate) use self::graph_pools::NotPrivate;
pub(crate) use self::pending_work::{QueueProgress, Unfinished, Work};

pub(in crate::core) use self::access::Mark;
pub(crate) use self::stream_heap::StreamHeap;
pub(in crate::core) use self::stream_heap::StreamSettings;
