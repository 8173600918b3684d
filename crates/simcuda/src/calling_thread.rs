//! The state of the calling thread: the driver's function that it is in, or a function of the program run as device
//! work.

use std::cell::Cell;

thread_local! {
    /// Whether the driver's function that this thread is in is a twin for the per-thread default stream.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread runs a host function or a simulated kernel.
    static RUNS_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program as device work. Until it returns, this thread must not call the driver, unless
/// `Choice::HostFunctionsCall` is set.
pub(crate) fn run_work(function: impl FnOnce()) {
    let outer = RUNS_WORK.replace(true);
    function();
    RUNS_WORK.set(outer);
}

/// Returns whether this thread runs a host function or a simulated kernel.
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

/// Returns whether stream 0 means the calling thread's default stream in the current call.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.get()
}
