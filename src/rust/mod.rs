//! The interface for Rust: objects that own what they allocate, on top of [`crate::device`].

#[cfg(feature = "allocator-api2")]
mod allocator;
mod block;
mod builder;
mod error;
mod global;
mod graph;
mod host;
#[cfg(doctest)]
mod misuse;
mod pool;
mod recording;
mod stream;

pub use self::block::Block;
pub use self::builder::Builder;
pub use self::error::{Error, Refused};
pub use self::global::GlobalPool;
pub use self::graph::{Capture, PrivatePool, Route};
pub use self::host::{HostBlock, HostPool};
pub use self::pool::{Pool, metrics};
pub use self::recording::{History, HistoryBuilder, Scope, Stacks};
pub use self::stream::{RawStream, Stream};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
