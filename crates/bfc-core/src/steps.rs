//! Counts the steps of a call: nodes and queues visited, chunks moved. Only tests count them, for bounds that do not
//! depend on the machine.

#[cfg(test)]
use core::cell::Cell;

#[cfg(test)]
std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one step. Does nothing outside of tests.
#[inline(always)]
pub(crate) fn count() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Returns how many steps some work takes, and its result.
#[cfg(test)]
pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.get();
    let result = work();
    (STEPS.get() - before, result)
}
