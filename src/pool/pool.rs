//! An allocator: an arena with a backend, and the events of pending device work.

use super::captures;
use super::events::Events;
use super::guard_state::Guards;
use super::history::PoolHistory;
use super::idle_time::IdleTime;
use super::limit_share::LimitShare;
use super::listener::Listener;
use super::mutation;
use crate::backend::Owned;
use crate::error::{ErrorKind, fail};
use crate::history;
use bfc_core::arena::Arena;
use bfc_core::request::Request;
use bfc_core::stats::FailureCause;
use bfc_core::stream_id::Stream;
use std::time::Duration;

/// The allocator in a slot.
pub(crate) struct Pool {
    pub(crate) arena: Arena,
    pub(crate) backend: Owned,
    pub(super) events: Events,
    /// How often a capture was announced to this pool, or noticed. A decision to wait for the device holds only as long
    /// as this is the same.
    pub(super) captures_noticed: u64,
    /// Whether the backend's memory was lost and the pool has forgotten all of it.
    pub(super) forgotten: bool,
    /// How often memory was given back to the backend.
    pub(super) given_back: u64,
    pub(super) listener: Listener,
    pub(super) device: i32,
    pub(crate) name: String,
    /// How long a request waits for a free before it fails.
    pub(super) retry: Duration,
    /// Whether a failed request logs a report.
    pub(super) report_failures: bool,
    pub(super) idle: IdleTime,
    pub(super) limit_share: LimitShare,
    /// The state of the debug mode, if it is on.
    pub(super) guards: Option<Box<Guards>>,
    /// The pool's part in the history, if one is recorded.
    pub(super) history: Option<PoolHistory>,
}

impl Pool {
    /// Returns an error unless the pool has timestamps. `what` names the feature that needs them.
    pub(crate) fn require_timestamps(&self, what: &str) -> Result<(), ErrorKind> {
        if self.arena.settings().reuse.has_stamps() {
            return Ok(());
        }
        Err(fail!(
            ErrorKind::Unsupported,
            "{what} needs BFC_TIMESTAMPS, without which the allocator was created"
        ))
    }

    /// Returns an error if the pool has timestamps, which exclude stream order.
    #[inline]
    pub(crate) fn require_no_timestamps(&self) -> Result<(), ErrorKind> {
        if !self.arena.settings().reuse.has_stamps() {
            return Ok(());
        }
        Err(fail!(
            ErrorKind::Unsupported,
            "the allocator was created with BFC_TIMESTAMPS, which excludes stream order: create it without that flag"
        ))
    }

    /// Records an allocation in the history, if there is one. `before` bytes were in use before it.
    #[inline]
    pub(super) fn note_allocated(&mut self, addr: u64, request: &Request<'_>, before: u64) {
        let Pool { history: Some(history), arena, .. } = self else { return };
        let origin = history.origin_of(request, arena, before);
        history.allocated(arena, addr, request.requested, request.stream, before, origin);
    }

    /// Records a free in the history, if there is one. `before` bytes were in use before it.
    #[inline(always)]
    pub(super) fn note_freed(&self, addr: u64, stream: Stream, before: u64) {
        if let Some(history) = &self.history {
            history.freed(&self.arena, addr, stream, before);
        }
    }

    /// Counts a failed request, and records it with its operation and its backtrace. An attempt is counted by its caller.
    #[cold]
    pub(super) fn count_failure(&mut self, request: &Request<'_>, cause: FailureCause) {
        if request.is_attempt {
            return;
        }
        self.arena.count_failure(request.requested, cause);
        if let Some(history) = &mut self.history {
            history.failed(&self.arena, request, cause);
        }
    }

    /// Begins to record the pool's events, unless that is done already.
    pub(super) fn begin_history(&mut self) {
        // A pool that was busy when an earlier recording ended has a history that is over.
        if self.history.as_ref().is_some_and(|history| !history.is_over()) {
            return;
        }
        let Some(recorder) = history::recorder_for(self.device, &self.name) else { return };
        self.history = Some(PoolHistory::new(recorder, &self.arena));
        self.listener.recorder = Some(recorder);
    }

    /// Stops recording.
    pub(super) fn end_history(&mut self) {
        (self.history, self.listener.recorder) = (None, None);
    }

    /// Returns whether pages of memory that is not in use may go back to the system while their region stays. With a
    /// callback for regions they stay, because what has registered a region (a network card, a driver) goes on using the
    /// pages that it found. The debug mode has written into free memory what it will look for.
    pub(super) fn may_discard(&self) -> bool {
        self.backend.get().discards() && self.listener.callback.is_none() && !self.is_guarded()
    }

    /// Returns whether the debug mode is on.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guards.is_some()
    }

    /// Returns whether a capture of a stream other than `but_of` is announced that may be invalidated by waiting for
    /// the device or giving memory back.
    pub(super) fn is_capture_announced(&self, but_of: Stream) -> bool {
        !mutation::is("no-announcement")
            && (captures::concern(self.backend.get()) || self.arena.streams().redirects_others(but_of))
    }

    /// Notes whether a stream is captured. `noticed` is [`Self::captures_noticed`] from before the driver was asked with the
    /// lock open: an answer that the stream is not captured may be older than another thread's that it is.
    pub(super) fn note_capture(&mut self, stream: Stream, is_captured: bool, noticed: u64) {
        if is_captured {
            self.captures_noticed += 1;
            self.events.note_capture(stream, self.captures_noticed);
        } else {
            self.events.note_no_capture(stream, noticed);
        }
    }

    /// Returns whether the backend's memory is known to be lost.
    pub(super) fn is_over(&self) -> bool {
        self.backend.get().life().is_some_and(|life| life.is_over())
    }

    /// Notes that the backend's memory is lost.
    pub(super) fn end_of_life(&self) {
        if let Some(life) = self.backend.get().life() {
            life.end();
        }
    }
}
