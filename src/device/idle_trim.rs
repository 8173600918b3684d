//! The thread that releases the memory of idle allocators (`BFC_TRIM_AFTER`).
//!
//! One thread serves all allocators of the process. It is started when the first one is created for which the variable is
//! set, and sleeps while there is none. A forked child has no such thread until it creates an allocator itself.

use super::service::Service;
use super::table::{USED, devices_in};
use crate::pool::idle::trim::trim_if_idle;
use crate::sys::clock::monotonic_ms;
use crate::sys::{futex, process};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use std::time::Duration;

/// The process that the thread runs in, to distinguish a child from its parent. 0 is none.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Incremented to wake the thread.
static WAKE: AtomicU32 = AtomicU32::new(0);

/// The thread sleeps at least this long, however short the idle time is after which memory is released.
const SHORTEST_SLEEP: Duration = Duration::from_millis(10);

static SERVICE: Service = Service { thread: c"bfc-trim", variable: "BFC_TRIM_AFTER", work: trim_for_ever };

/// Takes a new allocator into account. Without the thread its memory is not released.
pub(super) fn watch() {
    WAKE.fetch_add(1, Release);
    futex::wake(&WAKE, 1);
    let process = process();
    if PROCESS.swap(process, AcqRel) != process && !SERVICE.start() {
        PROCESS.store(0, Release);
    }
}

fn trim_for_ever() {
    loop {
        let seen = WAKE.load(Acquire);
        let next = devices_in(&USED).filter_map(|device| trim_if_idle(device.slot(), monotonic_ms())).min();
        futex::wait(&WAKE, seen, next.map(|time| time.max(SHORTEST_SLEEP)));
    }
}
