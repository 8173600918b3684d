//! The ring of events. Writers reach everything through one pointer, so that none mixes the parts of two rings.
//!
//! A ring is freed once the recording has ended, nothing is saving it, and no thread can be writing into it. A pool's
//! events are written with its lock held, and the end of a recording takes the lock of each pool. Writers without that
//! lock are counted.

use super::entry::Entry;
use super::memory::{Errno, Memory};
use crate::sys::own_pointer::OwnPointer;
use crate::sys::{self, clock};
use bfc_formats::history::layout::{
    ClockReading, Event, HEADER_BYTES, Header, MAGIC, RECORDING, TEXT_BYTES, WRITING, complete, whereabouts,
};
use bfc_hostmem::try_box;
use std::ffi::CStr;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

pub(super) struct Ring {
    memory: Memory,
    events: *mut Event,
    /// The number of events in the ring, less 1. That number is a power of two. It is kept here, because the one in the
    /// file could be overwritten from outside.
    mask: u64,
    /// The number of the recording in the process, from 1.
    recording: u32,
    stack_bytes: usize,
    /// The recording itself, and the calls that save it.
    owners: AtomicU32,
}

/// The ring to which events are written. There is one recording in a process. Null without one, and in every child: the
/// file is its parent's.
static CURRENT: OwnPointer<Ring> = OwnPointer::new();
/// The number of threads that may be writing into a ring without a pool's lock. In a forked child, threads of the
/// parent stay counted.
static WRITERS: AtomicU32 = AtomicU32::new(0);

/// An owner of a ring.
pub(super) struct Owned(NonNull<Ring>);

// SAFETY: everything mutable in a ring is atomic, or changed only with the recording locked.
unsafe impl Sync for Ring {}
// SAFETY: the last owner may free the ring in any thread.
unsafe impl Send for Owned {}

impl Owned {
    /// Creates a ring of `capacity` events with `stack_bytes` for backtraces, in a new file, or without a path in memory.
    pub(super) fn new(
        path: Option<&CStr>,
        capacity: u64,
        stack_bytes: usize,
        recording: u32,
    ) -> Result<Self, Errno> {
        let before = HEADER_BYTES + TEXT_BYTES + stack_bytes;
        let memory = Memory::new(path, before + capacity as usize * size_of::<Event>())?;
        write_header(&memory, capacity, stack_bytes);
        let (events, mask) = (memory.base().wrapping_add(before).cast(), capacity - 1);
        let owners = AtomicU32::new(1);
        let ring = try_box(Ring { memory, events, mask, recording, stack_bytes, owners });
        Ok(Owned(NonNull::from(Box::leak(ring.map_err(|_| libc::ENOMEM)?))))
    }

    /// Returns another owner.
    pub(super) fn share(&self) -> Self {
        self.owners.fetch_add(1, Relaxed);
        Owned(self.0)
    }

    /// Directs events to this ring.
    pub(super) fn publish(&self) {
        CURRENT.store(self.0.as_ptr());
    }

    /// Returns whether events go to this ring. If they do not, a parent's ring was inherited.
    pub(super) fn is_published(&self) -> bool {
        CURRENT.load(Acquire) == self.0.as_ptr()
    }
}

impl Deref for Owned {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        // SAFETY: the ring exists as long as an owner does.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The last owner frees the ring, which is no longer published. Threads counted later find no ring.
        if self.owners.fetch_sub(1, SeqCst) == 1 && WRITERS.load(SeqCst) == 0 {
            // SAFETY: it came from a box, and nothing refers to it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// Stops directing events to a ring.
pub(super) fn unpublish() {
    CURRENT.store(null_mut());
}

/// Returns the ring of a recording, unless it has ended.
///
/// # Safety
/// The lock of a pool that records is held as long as the ring is used.
#[inline(always)]
pub(super) unsafe fn of_locked<'a>(recording: u32) -> Option<&'a Ring> {
    // SAFETY: null, or not freed before the recording's end has taken the lock.
    let ring = unsafe { CURRENT.load(Acquire).as_ref() }?;
    if ring.recording == recording { Some(ring) } else { None }
}

/// Runs `write` with the ring of a recording, unless it has ended, without a lock.
#[cold]
pub(super) fn with_counted(recording: u32, write: impl FnOnce(&Ring)) {
    WRITERS.fetch_add(1, SeqCst);
    // SAFETY: null, or not freed while a thread is counted.
    let ring = unsafe { CURRENT.load(SeqCst).as_ref() };
    if let Some(ring) = ring.filter(|ring| ring.recording == recording) {
        write(ring);
    }
    WRITERS.fetch_sub(1, SeqCst);
}

impl Ring {
    pub(super) fn header(&self) -> &Header {
        // SAFETY: the memory is mapped, aligned to a page and large enough. Its mutable parts are atomic.
        unsafe { &*self.memory.base().cast() }
    }

    /// The text area.
    pub(super) fn texts(&self) -> *mut u8 {
        self.memory.base().wrapping_add(HEADER_BYTES)
    }

    /// The area of backtraces, if there is one.
    pub(super) fn stacks(&self) -> Option<*mut u64> {
        (self.stack_bytes != 0).then(|| self.texts().wrapping_add(TEXT_BYTES).cast())
    }

    pub(super) fn recording(&self) -> u32 {
        self.recording
    }

    /// Writes an event of a pool. Neither locks nor allocates. Returns its number.
    #[inline(always)]
    pub(super) fn write(&self, pool: u16, entry: &Entry) -> u64 {
        let number = self.header().written.fetch_add(1, Relaxed);
        // SAFETY: the mask keeps it within the ring, which is mapped.
        let event = unsafe { &*self.events.wrapping_add((number & self.mask) as usize) };
        // This thread may be so late that the ring has wrapped around. No other thread writes to the place until its event
        // is complete, which is then an old one: otherwise the later event would be complete with words of both.
        if event.stamp.swap(WRITING, Acquire) == WRITING {
            return number;
        }
        // A reader, even of the file of a killed process, never takes a half-written event for complete.
        fence(Release);
        event.ticks.store(clock::ticks(), Relaxed);
        event.address.store(entry.address, Relaxed);
        event.bytes.store(entry.bytes, Relaxed);
        event.requested.store(entry.requested, Relaxed);
        event.stream.store(entry.stream, Relaxed);
        event.in_use.store(entry.in_use, Relaxed);
        let what = u64::from(entry.kind as u8)
            | u64::from(entry.cause) << 8
            | u64::from(pool) << 16
            | u64::from(entry.number) << 32;
        event.what.store(what, Relaxed);
        event.stamp.store(complete(number, entry.stack), Release);
        number
    }

    /// Reads the clock for the times of the events so far.
    #[cold]
    #[inline(never)]
    pub(super) fn note_clock(&self) {
        read_clock(&self.header().last);
    }

    /// Copies the recording to a new file, while recording continues. The header comes first, so that everything it
    /// counts is in the copy.
    pub(super) fn save(&self, path: &CStr) -> Result<(), Errno> {
        self.memory.copy_to(path, HEADER_BYTES + TEXT_BYTES + self.stack_bytes)
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Keeps writes of a forked child out of the parent's file.
    pub(super) fn leave_in_child(&self) {
        self.memory.leave_in_child();
    }
}

fn write_header(memory: &Memory, capacity: u64, stack_bytes: usize) {
    let header: *mut Header = memory.base().cast();
    // SAFETY: the memory is new, zeroed, aligned to a page and large enough, and nothing else refers to it.
    let header = unsafe { &mut *header };
    header.magic = MAGIC;
    (header.header_bytes, header.event_bytes) = (HEADER_BYTES as u32, size_of::<Event>() as u32);
    (header.text_bytes, header.capacity) = (TEXT_BYTES as u64, capacity);
    header.stack_bytes = stack_bytes as u64;
    (header.process, header.started) = (std::process::id(), sys::process_started());
    header.whereabouts = whereabouts(&sys::boot(), sys::process_namespace());
    header.state.store(RECORDING, Relaxed);
    read_clock(&header.first);
    read_clock(&header.last);
}

fn read_clock(reading: &ClockReading) {
    let (ticks, nanoseconds) = (clock::ticks(), clock::unix_ns());
    reading.ticks.store(ticks, Relaxed);
    reading.nanoseconds.store(nanoseconds, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::memory::{EVENT_WORDS, copy_event};
    use bfc_formats::history::layout::Kind;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    fn words(ring: &Ring) -> &[AtomicU64; EVENT_WORDS] {
        // SAFETY: the first event, as its words.
        unsafe { &*ring.events.cast() }
    }

    fn entry(value: u64) -> Entry {
        let (address, bytes, requested, stream, in_use) = (value, value, value, value, value);
        Entry { address, bytes, requested, stream, in_use, ..Entry::of(Kind::Alloc) }
    }

    /// All events have one place here, so that each writer is overtaken all the time.
    #[test]
    fn a_complete_event_is_that_of_one_writer() {
        let ring = Owned::new(None, 1, 0, 1).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 1..=2 {
                let (ring, is_done) = (&*ring, &is_done);
                scope.spawn(move || {
                    for round in 0.. {
                        ring.write(1, &entry(writer << 32 | round));
                        if is_done.load(Relaxed) {
                            break;
                        }
                    }
                });
            }
            let (mut complete, mut copy) = (0, [0; EVENT_WORDS]);
            let mut torn = None;
            // However busy the machine is, the writers have their turns.
            for round in 0_u64.. {
                if complete > 1000 && round >= 5_000_000 {
                    break;
                }
                if round % 100_000 == 0 {
                    std::thread::yield_now();
                }
                copy_event(&mut copy, words(&ring));
                let [stamp, _, address, values @ .., _] = copy;
                if stamp & 1 != 0 {
                    complete += 1;
                    torn = torn.or((values != [address; 4]).then_some(copy));
                }
            }
            is_done.store(true, Relaxed);
            assert_eq!(torn, None);
        });
    }

    #[test]
    fn an_event_is_not_written_into_a_place_that_another_writer_has() {
        let ring = Owned::new(None, 1, 0, 1).unwrap();
        ring.write(1, &entry(5));
        words(&ring)[0].store(WRITING, Relaxed);
        assert_eq!(ring.write(1, &entry(6)), 1);
        assert_eq!((words(&ring)[0].load(Relaxed), words(&ring)[2].load(Relaxed)), (WRITING, 5));
    }

    /// The others of this test binary record nothing.
    #[test]
    fn a_ring_exists_until_its_owners_and_its_writers_are_done() {
        let ring = Owned::new(None, 1024, 0, 7).unwrap();
        ring.publish();
        let mut calls = 0;
        with_counted(6, |_| calls += 1);
        // SAFETY: as if a lock were held: the test ends the recording itself.
        calls += u32::from(unsafe { of_locked(6) }.is_some());
        assert_eq!(calls, 0, "the recording is over");
        with_counted(7, |now| {
            let saves = ring.share();
            unpublish();
            drop(ring);
            assert_eq!(saves.write(1, &entry(1)), 0);
            drop(saves);
            // The recording is stopped, but this thread goes on.
            assert_eq!(now.write(1, &entry(2)), 1);
            with_counted(7, |_| calls += 1);
        });
        assert_eq!(calls, 0);
    }
}
