//! Tests of a slot: a notification between unlocking and sleeping, broken metadata, and panics in the middle of a
//! change.

use super::call::{Call, CallKind};
use super::*;
use crate::error::{ErrorKind, fail, with_last_error};
use crate::options::{BackendKind, Flags, Options};
use crate::pool::alloc;
use crate::pool::{free, idle::trim, lifecycle};
use crate::sys::thread;
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

thread_local! {
    static IN_THE_GAP: Cell<Option<fn(&Slot)>> = const { Cell::new(None) };
}

/// Runs a test's hook between the opening of the lock and the sleep.
pub(super) fn in_the_gap(slot: &Slot) {
    if let Some(hook) = IN_THE_GAP.take() {
        hook(slot);
    }
}

/// Returns a pool that one allocation of 1 MiB fills, and its address. Further requests wait for a minute.
fn full() -> (&'static Slot, u64) {
    let options = Options {
        backend: BackendKind::Host,
        memory_limit: 1 << 20,
        retry_timeout_ms: 60_000,
        ..Options::default()
    };
    let slot = Box::leak(Box::new(Slot::new()));
    lifecycle::create(slot, 0, options.resolve(0, Flags::empty()).unwrap()).unwrap();
    (slot, alloc::alloc(slot, 1 << 20, Stream::NONE).unwrap())
}

/// Asserts that every kind of call reports the poisoned allocator.
fn is_poisoned(slot: &Slot, addr: u64) {
    let internal = Some(ErrorKind::Internal);
    assert_eq!(alloc::alloc(slot, 1, Stream::NONE).err(), internal);
    assert_eq!(
        slot.enter().and_then(|guard| alloc::serve(guard, &Request::new(1, Stream::NONE))).err(),
        internal
    );
    assert_eq!(free::free(slot, addr).err(), internal);
    assert_eq!(slot.accepts_null().err(), internal);
    assert_eq!(slot.enter().err(), internal);
    assert_eq!(trim::trim(slot, 0).err(), internal);
    assert_eq!(lifecycle::require_vacant(slot, 0).err(), internal);
    assert_eq!(lifecycle::destroy(slot, true).err(), internal);
    with_last_error(|words| assert!(words.contains("broken earlier"), "{words}"));
}

/// Runs `work` while another thread waits for memory. That thread must be notified at once.
fn while_another_waits(slot: &Slot, work: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let begun = Instant::now();
            (alloc::alloc(slot, 1, Stream::NONE), begun.elapsed())
        });
        while slot.lock().unwrap().inner().sleepers.is_empty() {
            std::thread::yield_now();
        }
        work();
        let (answer, waited) = waiter.join().unwrap();
        assert_eq!(answer, Err(ErrorKind::Internal));
        assert!(waited < Duration::from_secs(30), "{waited:?}");
    });
}

#[test]
fn a_change_between_the_look_and_the_sleep_is_not_missed() {
    let slot = Slot::new();
    IN_THE_GAP.set(Some(|slot| slot.lock().unwrap().notify()));
    let begun = Instant::now();
    slot.lock().unwrap().wait(Some(Duration::from_secs(20)));
    assert!(begun.elapsed() < Duration::from_secs(10), "slept through it");
    assert!(slot.lock().unwrap().inner().sleepers.is_empty());
}

/// A signal handler that interrupts a sleeping thread finds the lock open.
#[test]
fn a_sleeping_thread_is_served_but_cannot_destroy() {
    let (slot, addr) = full();
    IN_THE_GAP.set(Some(|slot| {
        let addr = alloc::alloc(slot, 1, Stream::NONE);
        assert_eq!(addr, Err(ErrorKind::OutOfMemory));
        assert_eq!(lifecycle::destroy(slot, true), Err(ErrorKind::Busy));
        with_last_error(|words| assert!(words.contains("signal handler"), "{words}"));
        assert!(slot.enter().is_ok());
    }));
    slot.enter().unwrap().retry = Duration::ZERO;
    slot.lock().unwrap().wait(Some(Duration::from_millis(1)));
    assert!(slot.lock().unwrap().inner().sleepers.is_empty());
    free::free(slot, addr).unwrap();
    lifecycle::destroy(slot, false).unwrap();
}

#[test]
fn a_panic_in_the_middle_of_a_change_poisons() {
    let (slot, addr) = full();
    while_another_waits(slot, || {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = slot.enter().unwrap();
            panic!("in the middle of a change");
        }));
        assert!(panicked.is_err());
    });
    is_poisoned(slot, addr);
}

/// An allocation and a free in their usual case hold the lock without a [`Guard`].
#[test]
fn a_panic_in_the_usual_case_of_a_call_poisons() {
    for frees in [false, true] {
        let (slot, addr) = full();
        if !frees {
            free::free(slot, addr).unwrap();
        }
        slot.lock().unwrap().arena.break_index();
        let panicked = catch_unwind(AssertUnwindSafe(|| match frees {
            true => free::free(slot, addr).err(),
            false => alloc::alloc(slot, 1, Stream::NONE).err(),
        }));
        assert!(panicked.is_err(), "{panicked:?}");
        assert!(!slot.lock.is_taken());
        is_poisoned(slot, addr);
    }
}

#[test]
fn a_panic_in_a_call_of_the_backend_poisons() {
    let (slot, addr) = full();
    while_another_waits(slot, || {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            slot.enter().unwrap().ask(CallKind::GivesBack(1), |_| panic!("in the backend"))
        }));
        assert!(panicked.is_err());
    });
    assert!(slot.lock().unwrap().inner().calls.is_empty(), "its frame is gone");
    is_poisoned(slot, addr);
}

#[test]
fn whoever_finds_the_books_broken_poisons() {
    let (slot, addr) = full();
    while_another_waits(slot, || slot.enter().unwrap().poison());
    is_poisoned(slot, addr);
}

/// A step that all memory was forgotten in does not hide that the allocator has ended meanwhile.
#[test]
fn a_new_life_of_an_allocator_that_has_ended_is_no_success() {
    let (slot, _) = full();
    let mut guard = slot.enter().unwrap();
    assert_eq!(or_reborn(Err(Interrupted::Reborn), &guard, 7), Ok(7));
    guard.inner_mut().phase = Phase::Destroying;
    assert_eq!(or_reborn(Err(Interrupted::Reborn), &guard, 7), Err(ErrorKind::ShuttingDown));
    guard.inner_mut().phase = Phase::Live;
}

/// The message of a failure that ends a call is stored, although those of others in the same step are not.
#[test]
fn the_error_that_ends_a_call_keeps_its_message() {
    let (slot, _) = full();
    let mut guard = slot.enter().unwrap();
    let fails = |_: &mut Guard<'_>| Err::<(), _>(Interrupted::from(fail!(ErrorKind::Busy, "the reason")));
    assert!(matches!(unsaid_outside(&mut guard, fails), Err(Interrupted::Ended(ErrorKind::Busy))));
    with_last_error(|words| assert_eq!(words, "the reason"));
    let _ = fail!(ErrorKind::Internal, "an older one");
    let driver =
        |_: &mut Guard<'_>| Err::<(), _>(Interrupted::failure(|| fail!(ErrorKind::BackendFailed, "unsaid")));
    assert!(matches!(unsaid_outside(&mut guard, driver), Err(Interrupted::Driver(_))));
    with_last_error(|words| assert_eq!(words, "an older one"));
}

/// Runs `work` while another thread does `meanwhile`, which gets a function that waits for the end of `work`, also by a
/// panic.
fn beside(meanwhile: impl FnOnce(&dyn Fn()) + Send, work: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (begin, begun) = mpsc::channel();
        let (_end, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            meanwhile(&|| {
                begin.send(()).expect("the other thread waits for it");
                assert!(ended.recv().is_err());
            });
        });
        begun.recv().expect("the other thread waits");
        work();
    });
}

/// A thread that holds one slot and calls another runs a signal handler.
#[test]
fn a_handler_waits_neither_for_the_lock_nor_for_a_call_of_another_slot() {
    // The tests of other modules have slots from 1001 on.
    const USED: usize = 900;
    table::USED[USED / 64].fetch_or(1 << (USED % 64), Relaxed);
    for held in [table::slot(USED), table::slot(USED + 1)] {
        let unused = table::slot(USED + 2);
        let (slot, addr) = full();
        let guard = held.lock().unwrap();
        let holding = |slot: &'static Slot| {
            move |wait: &dyn Fn()| {
                let _guard = slot.lock().unwrap();
                wait();
            }
        };
        beside(holding(unused), || assert_eq!(unused.enter().err(), Some(ErrorKind::Busy)));
        beside(holding(slot), || {
            assert_eq!(slot.enter_for_long().err(), Some(ErrorKind::Busy));
            assert_eq!(free::free(slot, addr), Err(ErrorKind::Busy));
            assert_eq!(alloc::alloc(slot, 1, Stream::NONE), Err(ErrorKind::Busy));
        });
        assert_eq!(alloc::alloc(slot, 1, Stream::NONE), Err(ErrorKind::OutOfMemory));
        let calling = |wait: &dyn Fn()| slot.enter().unwrap().ask(CallKind::GivesBack(1), |_| wait());
        beside(calling, || {
            assert_eq!(lifecycle::destroy(slot, true), Err(ErrorKind::Busy));
            assert_eq!(alloc::alloc(slot, 1, Stream::NONE), Err(ErrorKind::Busy));
            with_last_error(|words| assert!(words.contains("signal handler"), "{words}"));
        });
        drop(guard);
        lifecycle::destroy(slot, true).unwrap();
    }
}

#[test]
fn calls_under_way_are_known_by_thread() {
    let slot = Slot::new();
    let this = thread::current();
    let other = std::thread::scope(|scope| scope.spawn(thread::current).join().unwrap());
    let id = slot.id();
    let call = |thread| Call {
        thread,
        number: 1,
        what: CallKind::GivesBack(1),
        begun: 0,
        next: Cell::new(std::ptr::null()),
        slot: id,
        outer: Cell::new(std::ptr::null()),
        is_in_circle: Cell::new(false),
    };
    let calls = [call(this), call(other), call(this), call(other)];
    let mut guard = slot.lock().unwrap();
    for call in &calls {
        guard.inner_mut().calls.push(call);
    }
    assert!(guard.is_called_by_this_thread() && guard.is_bringing(1) && !guard.is_bringing(0));
    guard.inner_mut().calls.remove(&calls[2]);
    guard.inner_mut().calls.keep(|call| call.thread != this);
    assert!(!guard.is_called_by_this_thread() && guard.is_bringing(1));
    guard.inner_mut().calls.remove(&calls[3]);
    guard.inner_mut().calls.remove(&calls[1]);
    assert!(!guard.is_bringing(1) && guard.inner().calls.is_empty());
}
