//! The thread that makes new regions of host memory resident (`BFC_POPULATE`).
//!
//! One thread serves all allocators of the process. It is started when the first one is created for which the variable is
//! set, and sleeps while there is nothing to do. A forked child has no such thread until it creates an allocator itself.

use super::service::Service;
use super::table::{USED, devices_in};
use crate::pool::populating::{populate_some, seen, wait};
use crate::sys::process;
use std::sync::atomic::{AtomicI32, Ordering::*};

/// The process that the thread runs in, to distinguish a child from its parent. 0 is none.
static PROCESS: AtomicI32 = AtomicI32::new(0);

static SERVICE: Service =
    Service { thread: c"bfc-populate", variable: "BFC_POPULATE", work: populate_for_ever };

/// Takes a new allocator into account. Without the thread its requests fault their memory in.
pub(super) fn watch() {
    let process = process();
    if PROCESS.swap(process, AcqRel) != process && !SERVICE.start() {
        PROCESS.store(0, Release);
    }
}

fn populate_for_ever() {
    loop {
        let seen = seen();
        // Populates a part of each pool in turn, until nothing is left.
        while devices_in(&USED).filter(|device| populate_some(device.slot())).count() != 0 {}
        wait(seen);
    }
}
