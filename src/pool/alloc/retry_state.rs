//! What a request has tried since something last changed: trying it again would not help.
//!
//! Without this, requests that the backend refuses would wake each other to ask it for ever.

use crate::core::arena::Progress;
use crate::core::request::AllocRequest;
use crate::core::stamps::ForcedPass;
use crate::core::units::UNIT;
use crate::error::{DeferredError, Error};
use crate::pool::region_io::{Extended, Refusal};
use crate::pool::slot::Guard;

/// The strategies that are tried once until something changes, each a bit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Once {
    /// Never again.
    GiveWay = 1,
    /// Again after the pool has grown or shrunk.
    Extend = 2,
    // The others again after any progress.
    Poll = 4,
    Synchronize = 8,
    WaitForEvents = 16,
    MergeByForce = 32,
    Collect = 64,
    WaitForAll = 128,
}

const AFTER_ANY_PROGRESS: u32 = !(Once::GiveWay as u32 | Once::Extend as u32);

#[derive(Default)]
pub(super) struct RetryState {
    /// Only what the pool holds is tried: it does not grow, and no work is waited for.
    pub(super) no_growth: bool,
    /// The life of the device's context that the request was made in: the stream that it names ends with it.
    pub(super) begun_in: u64,
    /// The strategies that were tried, as bits of [`Once`].
    tried: u32,
    /// The pool's progress at that time.
    seen: Option<Progress>,
    /// How often something had changed. In the end a request is answered, however busy other threads are.
    rounds: u32,
    /// Calls up to this number were under way then and may bring something. Later ones are not waited for: a thread that
    /// keeps asking would keep the others from asking.
    last_call: u64,
    /// The least size of a region that helps.
    pub(super) least: u64,
    /// Every large enough chunk is examined for a place at the alignment from now on, since the pool does not grow.
    pub(super) thorough: bool,
    /// No capture was under way when the device was synchronized.
    pub(super) may_collect: bool,
    /// The forced merges under way.
    pub(super) forced: Option<ForcedPass>,
    /// What the backend need not be asked for again.
    pub(super) refused: Option<Refusal>,
    /// The driver's last failure meanwhile: the error of the request, if nothing else serves it.
    failure: Option<DeferredError>,
    /// How often granules were moved for the request.
    pub(super) moves: u32,
}

impl RetryState {
    const ROUNDS: u32 = 4;

    pub(super) fn new(no_growth: bool, begun_in: u64) -> Self {
        RetryState { no_growth, begun_in, ..RetryState::default() }
    }

    /// Forgets what was tried, but not what the backend refused. Out of line: a second state would be in the frame of the
    /// search.
    #[inline(never)]
    pub(super) fn begin_again(&mut self, refused: Option<Refusal>) {
        let RetryState { no_growth, begun_in, .. } = *self;
        *self = RetryState { no_growth, begun_in, refused, ..RetryState::default() };
    }

    pub(super) fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    pub(super) fn failure(self) -> Option<DeferredError> {
        self.failure
    }

    /// Returns whether a strategy was tried since something last changed.
    pub(super) fn was_tried(&self, strategy: Once) -> bool {
        self.tried & strategy as u32 != 0
    }

    pub(super) fn note_tried(&mut self, strategy: Once) {
        self.tried |= strategy as u32;
    }

    /// Has a strategy tried again.
    pub(super) fn try_again(&mut self, strategy: Once) {
        self.tried &= !(strategy as u32);
    }

    /// Returns whether a call was under way at the last change that may bring something still.
    pub(super) fn may_be_served_by_a_call(&self, guard: &Guard<'_>) -> bool {
        guard.is_bringing(self.last_call)
    }

    /// Returns whether something changed since the state last looked: then there is nothing to sleep for.
    pub(super) fn has_missed(&self, guard: &Guard<'_>) -> bool {
        self.seen != Some(guard.arena.progress())
    }

    /// Allows as many rounds as at the beginning.
    pub(super) fn rest(&mut self) {
        self.rounds = 0;
    }

    /// Looks at the pool's progress: what was freed may coalesce and be collected, and growth is tried again where regions
    /// came or went.
    pub(super) fn look(&mut self, guard: &Guard<'_>) {
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
            self.try_again(Once::Extend);
        }
    }

    /// Notes the driver's answer. After a failure the request goes on without it; the failure is its error if nothing else
    /// serves it.
    pub(super) fn note<T: Default>(&mut self, answer: Result<T, DeferredError>) -> T {
        answer.unwrap_or_else(|failure| {
            self.failure = Some(failure);
            T::default()
        })
    }

    /// Returns whether the backend refused more than the request needs, but not that.
    pub(super) fn may_get_less(&self, guard: &Guard<'_>) -> bool {
        let refused = Refusal::limit(self.refused, guard);
        guard.arena.range().is_none() && refused != u64::MAX && refused > self.least
    }

    /// Notes the outcome of asking for more memory. Returns whether the search begins again.
    pub(super) fn note_growth<'a>(
        &mut self,
        mut guard: Guard<'a>,
        extended: Extended,
        request: &AllocRequest<'_>,
    ) -> Result<(Guard<'a>, bool), Error> {
        match extended {
            Extended::Grown => {
                // A region of a backend that did not honour the alignment must have an aligned place inside.
                self.least = request.size.saturating_add(request.alignment.max(UNIT) - UNIT);
                self.note_own(&guard, 1);
            }
            Extended::Refused => {}
            Extended::NoRoom if guard.is_bringing(u64::MAX) => {
                // The room is reserved for another thread's region, which may not come.
                guard = guard.wait_for_call()?;
                self.try_again(Once::Extend);
            }
            Extended::NoRoom => return Ok((guard, false)),
        }
        Ok((guard, true))
    }

    /// This thread itself has obtained or given back so many regions: it need not repeat for that what it tried, but
    /// growth, and other threads may have begun to grow meanwhile.
    pub(super) fn note_own(&mut self, guard: &Guard<'_>, regions: u64) {
        if let Some(seen) = &mut self.seen {
            seen.regions += regions;
        }
        self.last_call = guard.last_call();
        self.try_again(Once::Extend);
    }
}
