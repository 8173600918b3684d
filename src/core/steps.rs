//! Steps that a call takes: nodes and rows that it looks at, chunks that it moves. Counted in tests only, for bounds that do
//! not depend on the machine.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// One more; nothing outside of tests.
#[inline(always)]
pub(in crate::core) fn count() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// How many steps some work takes, and its result.
#[cfg(test)]
pub(in crate::core) fn of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.get();
    let result = work();
    (STEPS.get() - before, result)
}
