//! The progress of a long run. The programs run in a child whose output is kept until its end, so the lines go to the
//! standard error of the parent.

use std::env;
use std::time::{Duration, Instant};

/// The file descriptor to which the lines are written.
pub const VARIABLE: &str = "RACES_PROGRESS";

/// Seconds between two lines: a short run prints none.
const PAUSE: Duration = Duration::from_secs(60);

/// The variable for the child: in the parent, a copy of its standard error, which the child inherits.
pub fn output(test: &str) -> String {
    if crate::common::child::is_child(test) {
        return env::var(VARIABLE).unwrap_or_default();
    }
    // SAFETY: a copy of an open file descriptor, which lives as long as this process.
    let copy = unsafe { libc::dup(2) };
    copy.to_string()
}

/// Reports how many programs have run.
pub struct Progress<'a> {
    test: &'a str,
    count: u64,
    last: Instant,
}

impl<'a> Progress<'a> {
    pub fn new(test: &'a str, count: u64) -> Progress<'a> {
        Progress { test, count, last: Instant::now() }
    }

    /// Records that this many have run.
    pub fn note(&mut self, done: u64) {
        if self.last.elapsed() < PAUSE {
            return;
        }
        self.last = Instant::now();
        let Ok(Ok(descriptor)) = env::var(VARIABLE).map(|text| text.parse::<i32>()) else { return };
        let line = format!("{}: {done} of {} programs\n", self.test, self.count);
        // SAFETY: the buffer has that many bytes; an invalid descriptor is an error, which does not matter.
        let _ = unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) };
    }
}
