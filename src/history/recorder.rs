//! Writing events into the ring.

use super::layout::{ClockReading, Event, Header, Kind};
use crate::sys::clock;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

/// How many events pass between two readings of the clock.
const EVENTS_PER_READING: u64 = 4096;

/// What a pool records its events with. Valid until the recording stops, which no pool outlives with a recorder.
#[derive(Clone, Copy)]
pub(crate) struct Recorder {
    pub(super) header: *const Header,
    pub(super) events: *const Event,
    /// The number of events in the ring, less 1. That number is a power of two.
    pub(super) mask: u64,
    /// The pool's number, shifted to where `what` of an event has it.
    pub(super) pool: u64,
}

// SAFETY: it points to memory that stays mapped as long as a recorder exists, and all fields there that change are
// atomic.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

/// The parameters of an event. [`Event`] says what they mean for each kind.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) cause: u8,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) in_use: u64,
    pub(crate) number: u32,
}

impl Entry {
    pub(crate) fn of(kind: Kind) -> Self {
        Entry { kind, cause: 0, address: 0, bytes: 0, requested: 0, stream: 0, in_use: 0, number: 0 }
    }
}

impl Recorder {
    pub(super) fn header(&self) -> &Header {
        // SAFETY: mapped as long as a recorder exists.
        unsafe { &*self.header }
    }

    /// Writes an event. Neither locks nor allocates.
    #[inline(always)]
    pub(crate) fn record(&self, entry: &Entry) {
        let index = self.header().written.fetch_add(1, Relaxed);
        let event = self.events.wrapping_add((index & self.mask) as usize);
        // SAFETY: the mask keeps it within the ring, which is mapped as long as a recorder exists.
        let event = unsafe { &*event };
        // A reader, also one that reads the file of a killed process, takes no half-written event for complete.
        event.stamp.store(0, Relaxed);
        fence(Release);
        event.ticks.store(clock::ticks(), Relaxed);
        event.address.store(entry.address, Relaxed);
        event.bytes.store(entry.bytes, Relaxed);
        event.requested.store(entry.requested, Relaxed);
        event.stream.store(entry.stream, Relaxed);
        event.in_use.store(entry.in_use, Relaxed);
        let what = u64::from(entry.kind as u8)
            | u64::from(entry.cause) << 8
            | self.pool
            | u64::from(entry.number) << 32;
        event.what.store(what, Relaxed);
        event.stamp.store(index + 1, Release);
        if index.is_multiple_of(EVENTS_PER_READING) {
            self.read_clock();
        }
    }

    /// Writes a rare event, with a reading of the clock.
    #[cold]
    pub(crate) fn record_rarely(&self, entry: &Entry) {
        self.record(entry);
        self.read_clock();
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_clock(&self) {
        read_clock(&self.header().last);
    }
}

pub(super) fn read_clock(reading: &ClockReading) {
    let (ticks, nanoseconds) = (clock::ticks(), clock::unix_ns());
    reading.ticks.store(ticks, Relaxed);
    reading.nanoseconds.store(nanoseconds, Relaxed);
}
