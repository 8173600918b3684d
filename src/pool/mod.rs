//! An allocator: an arena with a backend, behind a lock.
//!
//! [`slot::Slot`] is the place one has in the table of devices, with its lock and its waiters;
//! [`alloc`] serves requests from the arena, growing and collecting as it must; [`stamp_merge`] merges stamped chunks in
//! pieces; [`free`] takes memory back; [`order`] knows whose work may still touch what is free, and [`graph_pools`] what is
//! kept for graphs; [`region_io`] brings regions from the backend and back, and [`remap`] granules where it has those;
//! [`lifecycle`] creates, trims and destroys, and [`context_loss`] forgets what went without being given back; [`captures`] are
//! announced for the whole process; [`guarded`] is the debug mode, which finds overruns;
//! [`snapshot`] is the copy that reports are written from.

pub(crate) mod alloc;
pub(crate) mod captures;
pub(crate) mod context_loss;
pub(crate) mod free;
pub(crate) mod graph_pools;
pub(crate) mod guarded;
pub(crate) mod lifecycle;
pub(crate) mod listener;
mod mutation;
pub(crate) mod order;
mod region_io;
mod remap;
mod retry_state;
pub(crate) mod slot;
pub(crate) mod snapshot;
mod stamp_merge;
mod strategies;

use crate::backend::Owned;
use crate::core::arena::Arena;
use crate::core::stream_id::Stream;
use crate::report::Subject;
use std::time::Duration;

/// What lives in a slot.
pub(crate) struct Pool {
    pub(crate) arena: Arena,
    pub(crate) backend: Owned,
    events: order::Events,
    /// The backend's memory is gone, and all of it forgotten.
    forgotten: bool,
    /// How often memory went back to the backend.
    given_back: u64,
    listener: listener::Listener,
    device: i32,
    pub(crate) name: String,
    /// How long a request waits for a free before it fails.
    retry: Duration,
    /// Whether a request that fails writes a report.
    report_failures: bool,
    /// The debug mode's, if it is on.
    guards: Option<Box<guarded::Guards>>,
}

impl Pool {
    /// Whether the debug mode is on.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guards.is_some()
    }

    /// Whether a capture is announced, of any stream but one, which waiting for the device or giving memory back may
    /// invalidate.
    fn is_capture_announced(&self, but_of: Stream) -> bool {
        !mutation::is("no-announcement")
            && (captures::concern(self.backend.get()) || self.arena.streams().redirects_others(but_of))
    }

    /// Whether the backend's memory is known to be gone.
    fn is_over(&self) -> bool {
        self.backend.get().life().is_some_and(|life| life.is_over())
    }

    /// It is.
    fn end_of_life(&self) {
        if let Some(life) = self.backend.get().life() {
            life.end();
        }
    }

    /// What reports are to be written about.
    pub(crate) fn subject(&self) -> Subject<'_> {
        let guards = self.guards.as_ref().map(|guards| guards.summary());
        let (device, name, backend) = (self.device, &*self.name, self.backend.get().name());
        Subject { device, name, backend, view: self.arena.view(), guards }
    }
}
