//! The handle with which a pool records its events.

use super::entry::Entry;
use super::ring;
use std::num::NonZeroU16;

/// The number of events between two readings of the clock.
const EVENTS_PER_READING: u64 = 4096;

/// A pool's number in the file, from 1, and its recording. It is as small as possible, because calls of the
/// backend keep a copy on the stack. A copy may be older than the recording, and then records nothing.
#[derive(Clone, Copy)]
pub(crate) struct Recorder {
    pub(super) pool: NonZeroU16,
    pub(super) recording: u32,
}

impl Recorder {
    /// Returns whether the recording has ended.
    pub(crate) fn is_over(self) -> bool {
        let mut is_over = true;
        ring::with_counted(self.recording, |_| is_over = false);
        is_over
    }

    /// Writes an event, with the pool's lock held. Neither locks nor allocates.
    #[inline(always)]
    pub(crate) fn record(self, entry: &Entry) {
        // SAFETY: the lock is held.
        if let Some(ring) = unsafe { ring::of_locked(self.recording) }
            && ring.write(self.pool.get(), entry).is_multiple_of(EVENTS_PER_READING)
        {
            ring.note_clock();
        }
    }

    /// Writes a rare event, with a reading of the clock. The pool's lock may be open.
    #[cold]
    pub(crate) fn record_rare_event(self, entry: &Entry) {
        ring::with_counted(self.recording, |ring| {
            ring.write(self.pool.get(), entry);
            ring.note_clock();
        });
    }
}
