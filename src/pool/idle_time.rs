//! How long a pool has been idle (`BFC_TRIM_AFTER`).
//!
//! Idle means that no allocation and no free was counted. Requests do nothing for it: a thread compares the counters from
//! time to time.

use std::ffi::c_void;
use std::time::Duration;

/// The type of the callback before memory is given back. It receives the caller's pointer and the device.
pub type IdleFunction = unsafe extern "C" fn(user_data: *mut c_void, device: i32);

/// A callback with its pointer.
#[derive(Clone, Copy)]
pub(crate) struct IdleCallback {
    function: IdleFunction,
    user_data: *mut c_void,
}

// SAFETY: the caller that sets a callback promises that it may be called, with its pointer, from any thread.
unsafe impl Send for IdleCallback {}
// SAFETY: as above.
unsafe impl Sync for IdleCallback {}

impl IdleCallback {
    pub(crate) fn new(function: IdleFunction, user_data: *mut c_void) -> Self {
        IdleCallback { function, user_data }
    }

    pub(super) fn call(self, device: i32) {
        // SAFETY: the caller that set the callback guarantees that this call is valid.
        unsafe { (self.function)(self.user_data, device) };
    }
}

/// What was counted in a pool when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Activity {
    /// Allocations and frees.
    pub(super) calls: u64,
    /// How often work was found to be done, so that free memory may have become reusable.
    pub(super) settled: u64,
}

/// The time since the last request that was noticed.
pub(super) struct IdleTime {
    /// After which time the pool gives its free memory back. `None` is never.
    after: Option<Duration>,
    seen: Activity,
    /// When the number of calls was noticed, in milliseconds of the monotonic clock.
    since: u64,
    /// Whether the memory was given back since then.
    is_trimmed: bool,
    /// Called before memory is given back.
    pub(super) callback: Option<IdleCallback>,
}

impl IdleTime {
    /// Creates the state of a new pool.
    pub(super) fn new(after: Option<Duration>) -> Self {
        IdleTime { after, seen: Activity::default(), since: 0, is_trimmed: true, callback: None }
    }

    /// Returns after which time of rest the pool gives its free memory back.
    pub(super) fn after(&self) -> Option<Duration> {
        self.after
    }

    /// Takes note of what was counted at the time `now`. Returns whether memory is to be given back: once for each time of
    /// rest, and again in it when more work was found to be done.
    pub(super) fn is_due(&mut self, counted: Activity, now: u64) -> bool {
        let Some(after) = self.after else { return false };
        let seen = std::mem::replace(&mut self.seen, counted);
        if seen.calls != counted.calls {
            (self.since, self.is_trimmed) = (now, false);
            return false;
        }
        self.is_trimmed &= seen.settled == counted.settled;
        let is_due = !self.is_trimmed && u128::from(now.saturating_sub(self.since)) >= after.as_millis();
        self.is_trimmed |= is_due;
        is_due
    }

    /// Takes note of the work that was found to be done before memory was given back.
    pub(super) fn note_settled(&mut self, settled: u64) {
        self.seen.settled = settled;
    }

    /// Makes the memory due again after another time of rest, because it could not be given back now.
    pub(super) fn try_again(&mut self, now: u64) {
        (self.since, self.is_trimmed) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl IdleTime {
        fn is_due_after(&mut self, calls: u64, now: u64) -> bool {
            self.is_due(Activity { calls, settled: self.seen.settled }, now)
        }
    }

    #[test]
    fn work_that_is_found_to_be_done_has_memory_given_back_again() {
        let mut idle = IdleTime::new(Some(Duration::from_millis(100)));
        let counted = |calls, settled| Activity { calls, settled };
        assert!(!idle.is_due(counted(7, 0), 2000) && !idle.is_due(counted(7, 1), 2050));
        assert!(idle.is_due(counted(7, 2), 2100) && !idle.is_due(counted(7, 2), 2101));
        assert!(idle.is_due(counted(7, 3), 2102) && !idle.is_due(counted(7, 3), 2103));
        idle.note_settled(4);
        assert!(!idle.is_due(counted(7, 4), 2104));
        assert!(!idle.is_due(counted(8, 5), 2105) && idle.is_due(counted(8, 5), 2205));
    }

    #[test]
    fn memory_is_given_back_once_for_each_time_of_rest() {
        let mut idle = IdleTime::new(Some(Duration::from_millis(100)));
        assert!(!idle.is_due_after(0, 1000), "a new pool holds nothing");
        assert!(!idle.is_due_after(7, 2000) && !idle.is_due_after(7, 2099));
        assert!(idle.is_due_after(7, 2100) && !idle.is_due_after(7, 2101) && !idle.is_due_after(7, 9000));
        assert!(!idle.is_due_after(8, 9001) && !idle.is_due_after(9, 9101), "a call begins the time again");
        assert!(idle.is_due_after(9, 9201));
        idle.try_again(9202);
        assert!(!idle.is_due_after(9, 9301) && idle.is_due_after(9, 9302) && !idle.is_due_after(9, 9402));
        // Counters that were set back are calls too.
        assert!(!idle.is_due_after(0, 9500) && idle.is_due_after(0, 9600));
    }

    #[test]
    fn without_a_time_it_never_is() {
        let mut idle = IdleTime::new(None);
        assert!(!idle.is_due_after(7, 1) && !idle.is_due_after(7, u64::MAX));
    }
}
