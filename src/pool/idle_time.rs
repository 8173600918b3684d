//! How long a pool has been idle (`BFC_TRIM_AFTER`).
//!
//! Idle means that no allocation and no free was counted. Requests do nothing for it: a thread compares the counters from
//! time to time.

use std::time::Duration;

/// The time since the last request that was noticed.
pub(super) struct IdleTime {
    /// After which time the pool gives its free memory back. `None` is never.
    after: Option<Duration>,
    /// The number of requests and frees that were counted.
    calls: u64,
    /// When that number was noticed, in milliseconds of the monotonic clock.
    since: u64,
    /// Whether the memory was given back since then.
    is_trimmed: bool,
}

impl IdleTime {
    /// Creates the state of a new pool.
    pub(super) fn new(after: Option<Duration>) -> Self {
        IdleTime { after, calls: 0, since: 0, is_trimmed: true }
    }

    /// Returns after which time of rest the pool gives its free memory back.
    pub(super) fn after(&self) -> Option<Duration> {
        self.after
    }

    /// Takes note of the number of calls at the time `now`. Returns whether memory is to be given back, which is so once
    /// for each time of rest.
    pub(super) fn is_due(&mut self, calls: u64, now: u64) -> bool {
        let Some(after) = self.after else { return false };
        if calls != self.calls {
            (self.calls, self.since, self.is_trimmed) = (calls, now, false);
            return false;
        }
        let is_due = !self.is_trimmed && u128::from(now.saturating_sub(self.since)) >= after.as_millis();
        self.is_trimmed |= is_due;
        is_due
    }

    /// Has memory given back after another such time, because it was not possible now.
    pub(super) fn try_again(&mut self, now: u64) {
        (self.since, self.is_trimmed) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_for_each_time_of_rest() {
        let mut idle = IdleTime::new(Some(Duration::from_millis(100)));
        assert!(!idle.is_due(0, 1000), "a new pool holds nothing");
        assert!(!idle.is_due(7, 2000) && !idle.is_due(7, 2099));
        assert!(idle.is_due(7, 2100) && !idle.is_due(7, 2101) && !idle.is_due(7, 9000));
        assert!(!idle.is_due(8, 9001) && !idle.is_due(9, 9101), "a call begins the time again");
        assert!(idle.is_due(9, 9201));
        idle.try_again(9202);
        assert!(!idle.is_due(9, 9301) && idle.is_due(9, 9302) && !idle.is_due(9, 9402));
        // Counters that were set back are calls too.
        assert!(!idle.is_due(0, 9500) && idle.is_due(0, 9600));
    }

    #[test]
    fn without_a_time_it_never_is() {
        let mut idle = IdleTime::new(None);
        assert!(!idle.is_due(7, 1) && !idle.is_due(7, u64::MAX));
    }
}
