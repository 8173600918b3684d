//! The strategies that a request has tried since something last changed. Trying them again would not help.
//!
//! Without this, requests that the backend refuses would wake each other endlessly to call it again.

use crate::error::DeferredError;
use crate::pool::region_io::{Extended, Refusal};
use crate::pool::slot::{Guard, Outside};
use bfc_core::arena::Progress;
use bfc_core::request::Request;
use bfc_core::stamps::ForcedPass;
use bfc_core::units::UNIT;

/// The strategies that are tried only once until something changes, each as a bit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Not tried again, unless the request begins anew.
    GiveWay = 1,
    /// Tried again after the pool has grown or shrunk.
    Grow = 2,
    // The others are tried again after any progress.
    Poll = 4,
    Synchronize = 8,
    WaitForEvents = 16,
    MergeByForce = 32,
    Collect = 64,
    WaitForAll = 128,
    Replace = 256,
}

const AFTER_ANY_PROGRESS: u32 = !(Attempt::GiveWay as u32 | Attempt::Grow as u32);

#[derive(Default)]
pub(super) struct RetryState {
    /// The value of `Arena::life` when the request began. The stream that it names does not survive a change.
    pub(super) begun_in: u64,
    /// The strategies that were tried, as bits of [`Attempt`].
    tried: u32,
    /// The pool's progress at that time.
    seen: Option<Progress>,
    /// The number of changes seen. It is limited, so that the search ends however busy other threads are.
    rounds: u32,
    /// Calls up to this number were under way then and may bring memory. Later ones are not waited for, because a
    /// thread that calls the backend repeatedly would keep the others from calling it.
    last_call: u64,
    /// The smallest size of a region that would serve the request.
    pub(super) least: u64,
    /// Whether every large enough chunk is examined for a place at the alignment, because the pool does not grow.
    pub(super) thorough: bool,
    /// Whether the request may split a large chunk, because the pool was to grow by a small region already.
    pub(super) splits_large: bool,
    /// Whether no capture was under way when that was last checked, so that memory may be given back.
    pub(super) may_collect: bool,
    /// The state of forced merges under way.
    pub(super) forced: Option<ForcedPass>,
    /// The sizes that the backend has refused.
    pub(super) refused: Option<Refusal>,
    /// The driver's last failure. It becomes the error of the request if nothing else serves it.
    failure: Option<DeferredError>,
    /// The number of pieces that were shared before the last search.
    shared: u32,
    /// The number of times that granules were moved for the request.
    pub(super) moves: u32,
}

impl RetryState {
    const ROUNDS: u32 = 4;

    pub(super) fn new(begun_in: u64) -> Self {
        RetryState { begun_in, ..RetryState::default() }
    }

    /// Forgets what was tried, except the given refusal. Out of line, so that the caller's frame does not hold a second
    /// state.
    #[inline(never)]
    pub(super) fn forget_attempts(&mut self, refused: Option<Refusal>) {
        let begun_in = self.begun_in;
        *self = RetryState { begun_in, refused, ..RetryState::default() };
    }

    /// Returns the request with what was learnt about it.
    pub(super) fn complete<'a>(&self, guard: &Guard<'_>, request: &Request<'a>) -> Request<'a> {
        Request {
            splits_large: request.splits_large || self.splits_large,
            // While chunks are left to share or to merge, the search is repeated after each piece.
            thorough: self.thorough && !guard.arena.is_merging_or_sharing(),
            ..*request
        }
    }

    pub(super) fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    pub(super) fn take_failure(&mut self) -> Option<DeferredError> {
        self.failure.take()
    }

    /// Returns whether a strategy was tried since something last changed.
    pub(super) fn was_tried(&self, strategy: Attempt) -> bool {
        self.tried & strategy as u32 != 0
    }

    pub(super) fn note_tried(&mut self, strategy: Attempt) {
        self.tried |= strategy as u32;
    }

    /// Allows a strategy to be tried again.
    pub(super) fn permit_retry(&mut self, strategy: Attempt) {
        self.tried &= !(strategy as u32);
    }

    /// Returns how many pieces to share before the next search: twice as many each time, so that a request does not spend
    /// its time on searches.
    pub(super) fn pieces_to_share(&mut self) -> u32 {
        self.shared = (2 * self.shared).clamp(1, 1 << 16);
        self.shared
    }

    /// Returns whether a call is still under way that was counted at the last change and obtains memory.
    pub(super) fn may_be_served_by_a_call(&self, guard: &Guard<'_>) -> bool {
        guard.is_obtaining(self.last_call)
    }

    /// Returns whether a call is still under way that was counted then and gives memory back.
    pub(super) fn may_be_served_by_a_return(&self, guard: &Guard<'_>) -> bool {
        guard.is_giving_back(self.last_call)
    }

    /// Returns whether something changed since [`Self::compare_progress`], so that the request must not sleep.
    pub(super) fn has_missed(&self, guard: &Guard<'_>) -> bool {
        self.seen != Some(guard.arena.progress())
    }

    /// Allows the full number of rounds again.
    pub(super) fn reset_rounds(&mut self) {
        self.rounds = 0;
    }

    /// Compares the pool's progress with that of the last time. After any change most strategies are tried again, and
    /// growth is tried again if regions were added or released. Changes beyond the allowed rounds are ignored.
    pub(super) fn compare_progress(&mut self, guard: &Guard<'_>) {
        let now = guard.arena.progress();
        let Some(seen) = self.seen.replace(now) else {
            self.last_call = guard.last_call();
            return;
        };
        if seen == now {
            return;
        }
        if self.rounds == Self::ROUNDS {
            self.seen = Some(seen);
            return;
        }
        self.rounds += 1;
        self.tried &= !AFTER_ANY_PROGRESS;
        self.failure = None;
        if seen.regions != now.regions {
            self.last_call = guard.last_call();
            self.permit_retry(Attempt::Grow);
        }
    }

    /// Stores a failure of the driver as the error of the request, in case nothing else serves it.
    pub(super) fn keep_failure(&mut self, failure: DeferredError) {
        self.failure = Some(failure);
    }

    /// Returns whether the backend refused more bytes than the request needs, but not exactly these.
    pub(super) fn may_get_less(&self, guard: &Guard<'_>) -> bool {
        let refused = Refusal::limit(self.refused, guard);
        guard.arena.range().is_none() && refused != u64::MAX && refused > self.least
    }

    /// Notes the outcome of an attempt to grow. Returns whether the search begins again.
    pub(super) fn note_growth(
        &mut self,
        guard: &mut Guard<'_>,
        extended: Extended,
        request: &Request<'_>,
    ) -> Outside<bool> {
        match extended {
            Extended::Grown => {
                // If the backend did not honour the alignment, the next region must be large enough for an aligned
                // place inside.
                self.least = request.size.saturating_add(request.alignment.max(UNIT) - UNIT);
                self.note_own(guard, 1);
            }
            Extended::Refused => {}
            Extended::NoRoom if guard.is_bringing(u64::MAX) => {
                // The room is reserved for another thread's region, which the backend may refuse.
                guard.wait_for_call()?;
                self.permit_retry(Attempt::Grow);
            }
            Extended::NoRoom => return Ok(false),
        }
        Ok(true)
    }

    /// Notes regions that this thread itself has obtained or given back. Only growth is tried again for them. Other
    /// threads may have begun to grow meanwhile.
    pub(super) fn note_own(&mut self, guard: &Guard<'_>, regions: u64) {
        if let Some(seen) = &mut self.seen {
            seen.regions += regions;
        }
        self.last_call = guard.last_call();
        self.permit_retry(Attempt::Grow);
    }
}
