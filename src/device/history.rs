//! Recording the history of all allocators.

use super::table::{USED, devices_in};
use crate::error::ErrorKind;
use crate::pool::lifecycle;
use crate::{history, options, scope};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The number of events if none is given: 16 MiB.
const EVENTS: u64 = 1 << 18;

/// Starts recording the last `events` events of all allocators into a new file, or without a path into memory. 0 events
/// stands for 262,144. `stacks` selects the backtraces, as bits.
pub fn start(path: Option<&CStr>, events: u64, stacks: u32) -> Result<(), ErrorKind> {
    history::begin(path, if events == 0 { EVENTS } else { events }, stacks)?;
    scope::observe_all(stacks != 0);
    devices_in(&USED).try_for_each(|device| lifecycle::begin_history(device.slot()))
}

/// Starts recording with the backtraces that the environment selects.
pub fn start_with_default_stacks(path: Option<&CStr>, events: u64) -> Result<(), ErrorKind> {
    options::with_history_stacks(|stacks| start(path, events, stacks))
}

/// Stops recording.
pub fn stop() -> Result<(), ErrorKind> {
    history::close()?;
    scope::observe_all(false);
    let mut is_used = false;
    for device in devices_in(&USED) {
        // A pool cannot be notified if this signal handler has interrupted a call on it, or must not wait for it.
        is_used |= lifecycle::end_history(device.slot()).is_err();
    }
    history::end(is_used)
}

/// Writes a copy of the history so far to a new file.
pub fn save(path: &CStr) -> Result<(), ErrorKind> {
    history::save(path)
}

/// Marks this moment in the history.
pub fn mark(name: &str) -> Result<(), ErrorKind> {
    history::mark(name, scope::hash(name.as_bytes()))
}

/// Starts recording if the environment requests it, at the first creation of an allocator in the process. Out of line,
/// so that its frame is not part of each creation.
#[inline(never)]
pub(super) fn start_as_the_environment_says() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.load(Relaxed) && !IS_DONE.swap(true, Relaxed) {
        options::start_history_as_set(start_with_default_stacks);
    }
}
