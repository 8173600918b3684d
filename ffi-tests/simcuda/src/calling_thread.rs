//! What the calling thread is in: a function of the driver, or a function of the program's whose turn has come.

use std::cell::Cell;

thread_local! {
    /// Whether the driver's function that this thread is in is a twin.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread runs a host function or a simulated kernel.
    static RUNS_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program's whose turn has come. Until it returns, this thread may not call the driver.
pub(crate) fn run_work(function: impl FnOnce()) {
    let outer = RUNS_WORK.replace(true);
    function();
    RUNS_WORK.set(outer);
}

/// Whether this thread runs a host function or a simulated kernel.
pub(crate) fn runs_work() -> bool {
    RUNS_WORK.get()
}

/// Runs the body of a driver's function, which may be a twin for the per-thread default stream.
pub(crate) fn in_function<T>(is_per_thread: bool, body: impl FnOnce() -> T) -> T {
    let outer = PER_THREAD.replace(is_per_thread);
    let result = body();
    PER_THREAD.set(outer);
    result
}

/// Whether stream 0 means the calling thread's default stream, in the call that this thread is in.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.get()
}
