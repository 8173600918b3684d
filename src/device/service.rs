//! The library's own threads.

use crate::log::{self, Level};
use crate::sys::thread;
use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;

/// The function of a thread, and its environment variable.
pub(super) struct Service {
    /// The name for debuggers and `top`: 15 bytes at most.
    pub(super) thread: &'static CStr,
    pub(super) variable: &'static str,
    pub(super) work: fn(),
}

impl Service {
    /// Starts the thread. Returns false if the system refuses, which is logged as a warning.
    pub(super) fn start(&'static self) -> bool {
        let is_started = thread::spawn_detached(run, std::ptr::from_ref(self).cast_mut().cast());
        if !is_started {
            let variable = self.variable;
            log::emit(Level::Warn, format_args!("{variable} is ignored: the system starts no thread for it"));
        }
        is_started
    }
}

extern "C" fn run(service: *mut c_void) -> *mut c_void {
    // SAFETY: this is the argument of `start`, which is static.
    let service = unsafe { &*service.cast::<Service>() };
    thread::set_name(service.thread);
    // A panic poisoned its allocator.
    if catch_unwind(service.work).is_err() {
        let variable = service.variable;
        log::emit(Level::Error, format_args!("the thread for {variable} has ended by a panic"));
    }
    std::ptr::null_mut()
}
