//! Writing events into the ring.

use super::layout::{ClockReading, Event, Header, Kind, complete};
use crate::sys::clock;
use std::num::NonZeroU16;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, fence};

/// How many events pass between two readings of the clock.
const EVENTS_PER_READING: u64 = 4096;

/// Where events are written. There is one recording in a process. Null without one.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
static EVENTS: AtomicPtr<Event> = AtomicPtr::new(null_mut());
/// The number of events in the ring, less 1. That number is a power of two. It is kept here, because the one in the file
/// could be overwritten from outside.
static MASK: AtomicU64 = AtomicU64::new(0);

/// Directs events to a ring of `capacity` events, which stays mapped until [`unset_ring`] or for ever.
pub(super) fn set_ring(header: *mut Header, events: *mut Event, capacity: u64) {
    MASK.store(capacity - 1, Relaxed);
    EVENTS.store(events, Relaxed);
    HEADER.store(header, Release);
}

/// Makes recorders do nothing, of which there should be none.
pub(super) fn unset_ring() {
    HEADER.store(null_mut(), Relaxed);
}

/// Returns the header of the recording, if there is one.
pub(super) fn header() -> Option<&'static Header> {
    // SAFETY: null, or mapped until the ring is unset. Callers do not keep the reference.
    unsafe { HEADER.load(Acquire).as_ref() }
}

/// What a pool records its events with: its number in the file, from 1. It is as small as possible, because calls of the
/// backend keep a copy on the stack.
#[derive(Clone, Copy)]
pub(crate) struct Recorder(pub(super) NonZeroU16);

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
    pub(crate) stack: u32,
}

impl Entry {
    pub(crate) fn of(kind: Kind) -> Self {
        Entry {
            kind,
            cause: 0,
            address: 0,
            bytes: 0,
            requested: 0,
            stream: 0,
            in_use: 0,
            number: 0,
            stack: 0,
        }
    }
}

impl Recorder {
    /// Writes an event. Neither locks nor allocates.
    #[inline(always)]
    pub(crate) fn record(self, entry: &Entry) {
        let header = HEADER.load(Relaxed);
        if header.is_null() {
            return;
        }
        // SAFETY: a pool has a recorder only while its ring is mapped.
        let index = unsafe { &*header }.written.fetch_add(1, Relaxed);
        let event = EVENTS.load(Relaxed).wrapping_add((index & MASK.load(Relaxed)) as usize);
        // SAFETY: the mask keeps it within the ring, which is mapped as above.
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
            | u64::from(self.0.get()) << 16
            | u64::from(entry.number) << 32;
        event.what.store(what, Relaxed);
        event.stamp.store(complete(index, entry.stack), Release);
        if index.is_multiple_of(EVENTS_PER_READING) {
            note_clock();
        }
    }

    /// Writes a rare event, with a reading of the clock.
    #[cold]
    pub(crate) fn record_rarely(self, entry: &Entry) {
        self.record(entry);
        note_clock();
    }
}

/// Reads the clock for the times of the events so far.
#[cold]
#[inline(never)]
pub(super) fn note_clock() {
    if let Some(header) = header() {
        read_clock(&header.last);
    }
}

pub(super) fn read_clock(reading: &ClockReading) {
    let (ticks, nanoseconds) = (clock::ticks(), clock::unix_ns());
    reading.ticks.store(ticks, Relaxed);
    reading.nanoseconds.store(nanoseconds, Relaxed);
}
