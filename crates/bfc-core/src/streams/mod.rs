//! Stream-ordered reuse of free memory.
//!
//! Memory freed on a stream can be reused on that stream at once, because later work is queued behind the work that
//! used the memory. Every other stream must wait until that work is done. [`StreamHeap`] is a heap that keeps this
//! order (invariants I7 and I8). It knows queues and points, but no events: the caller queries the driver.
//!
//! ```text
//!   queues             all queues, and the stream state of each chunk
//!   queue              one queue: its points, its free chunks, its index
//!   queue_lookup       from a stream to its queue; forgetting streams that have no memory
//!   idle_search        the state of the search for such streams
//!   chunk_state        the state of a chunk, and the work of other queues that is recorded on it
//!   recorded_uses      recording such work, and waiting for it
//!   span_index         the free spans of a queue by size
//!   free_spans         neighbours that a queue may use as one chunk, and changes to its own chunks
//!   alloc  free        allocation and free in a queue
//!   sharing            chunks become reusable by every stream once work is done
//!   pending_work       which work is done, which work free memory waits for, and which work may touch a chunk
//!   dependencies       which work a request has to wait for, using oldest_work
//!   multi_stream       from one stream to several
//!   graph_pools        private memory of captured graphs
//! ```

mod alloc;
mod check;
mod chunk_state;
mod dependencies;
mod free;
mod free_spans;
mod graph_pools;
mod idle_search;
mod multi_stream;
mod oldest_work;
mod pending_work;
mod queue;
mod queue_lookup;
mod queues;
mod recorded_uses;
mod sharing;
mod span_index;
mod stream_heap;

pub use self::chunk_state::QueueId;
pub use self::dependencies::{Dependencies, Place};
pub use self::free::Freed;
pub use self::graph_pools::NotPrivate;
pub use self::pending_work::{Order, QueueProgress, Unfinished, Work};

pub(crate) use self::pending_work::Mark;
pub use self::stream_heap::StreamHeap;
pub(crate) use self::stream_heap::StreamSettings;
