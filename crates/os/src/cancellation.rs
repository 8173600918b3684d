//! Thread cancellation, disabled where it would unwind through the library.
//!
//! A thread that is cancelled in a callback, or during file operations of the interposer, would unwind through
//! functions that must not unwind, and abort the process. With cancellation disabled the request stays pending until
//! the program's next cancellation point. `pthread_exit` cannot be deferred like this.

use std::os::raw::c_int;

/// `PTHREAD_CANCEL_DISABLE` of the C libraries of Linux.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Calls `work` with cancellation of the calling thread disabled. The previous state is restored afterwards.
pub fn disabled<T>(work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: the state is a valid one, and the place is writable.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let result = work();
    // SAFETY: the state is the one that was in force.
    unsafe { pthread_setcancelstate(before, &mut before) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        let mut state = 0;
        // SAFETY: both calls have a valid state and a writable place. The second restores the state that the first has
        // changed.
        unsafe { pthread_setcancelstate(DISABLE, &mut state) };
        let mut ignored = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(state, &mut ignored) };
        state
    }

    #[test]
    fn the_former_state_returns() {
        let before = state();
        assert_ne!(before, DISABLE);
        disabled(|| {
            assert_eq!(state(), DISABLE);
            disabled(|| assert_eq!(state(), DISABLE));
            assert_eq!(state(), DISABLE, "it was disabled before the inner call");
        });
        assert_eq!(state(), before);
    }
}
