//! Tests of single cases: which driver calls a request makes, and in which order the strategies are tried.

use super::create;
use super::device::{Call, Device, DriverCall};
use crate::error::ErrorKind;
use crate::pool::slot::Slot;
use crate::pool::{alloc, free, idle::trim, lifecycle, order};
use crate::sys::thread;
use bfc_core::stream_id::Stream;
use bfc_core::testing::Random;
use bfc_core::units::UNIT;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

struct Pool {
    slot: &'static Slot,
    device: &'static Device,
}

/// The streams of the tests: two with handles, and the default streams of two threads.
const A: Stream = Stream::DEFAULT;
const B: u64 = 11;
const THREADS: [u32; 2] = [1 << 21, 1 << 22];

fn b() -> Stream {
    Stream::of_handle(B)
}

impl Pool {
    /// Creates a pool of at most `units` units that grows by 4 units at a time.
    fn new(units: u64) -> Self {
        let (slot, device) = (&*Box::leak(Box::new(Slot::new())), Device::new(false));
        create(slot, device, true, units * UNIT);
        let mut state = device.state();
        state.add_stream(1, 0);
        state.add_stream(B, 0);
        THREADS.iter().for_each(|&thread| _ = state.add_stream(2, thread));
        drop(state);
        Pool { slot, device }
    }

    fn get(&self, units: u64, stream: Stream) -> Result<u64, ErrorKind> {
        self.device.state().begin(Call::Other);
        alloc::alloc(self.slot, units * UNIT, stream)
    }

    fn put(&self, addr: u64, stream: Stream) {
        self.device.state().begin(Call::Free);
        assert_eq!(free::free_on(self.slot, addr, stream, false), Ok(()));
    }

    /// Creates queues, as if another stream had used the pool before.
    fn tell_apart(&self) {
        self.slot.enter().unwrap().arena.streams_mut().require_queues().unwrap();
    }

    fn count(&self, what: DriverCall) -> u64 {
        self.device.state().count(what)
    }

    /// Queues a kernel. Queue 0 is A, 1 is B, and the threads' queues follow.
    fn launch(&self, queue: usize) {
        self.device.state().launch(queue);
    }

    fn run(&self, queue: usize) {
        self.device.state().run(queue);
    }

    fn forget(&self, stream: Stream) {
        self.device.state().begin(Call::Free);
        assert_eq!(order::forget(&mut self.slot.enter().unwrap(), stream), Ok(()));
    }

    fn pool_bytes(&self) -> u64 {
        self.slot.enter().unwrap().arena.stats().pool_bytes
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        thread::pretend(None);
        if !std::thread::panicking() {
            assert_eq!(self.slot.enter().unwrap().arena.check(), Ok(()));
            self.device.state().end_captures();
            assert_eq!(lifecycle::destroy(self.slot, true), Ok(()));
            let state = self.device.state();
            assert!(state.wrong.is_empty(), "{:#?}", state.wrong);
            assert_eq!((state.events_alive(), state.held), (0, 0));
        }
    }
}

#[test]
fn one_stream_never_calls_the_driver() {
    let pool = Pool::new(4096);
    let (mut random, mut live) = (Random(1), Vec::new());
    for _ in 0..20_000 {
        pool.launch(0);
        if random.below(40) >= live.len() as u64 {
            live.extend(pool.get(1 + random.below(64), A));
        } else if random.chance(50) {
            pool.put(live.swap_remove(random.below(live.len() as u64) as usize), A);
        } else {
            let addr = live.swap_remove(random.below(live.len() as u64) as usize);
            assert_eq!(free::free(pool.slot, addr), Ok(()));
        }
    }
    let state = pool.device.state();
    assert_eq!(
        state.calls,
        state.count(DriverCall::Alloc),
        "calls other than for regions: {:?}",
        state.counts
    );
}

/// No other driver calls are made, and the events are reused.
#[test]
fn several_streams_with_enough_memory_record_an_event_a_free() {
    let pool = Pool::new(256);
    let streams = [A, b()];
    let turn = || {
        for (queue, stream) in streams.into_iter().enumerate() {
            let chunks: Vec<u64> = (1..8).map(|units| pool.get(units, stream).unwrap()).collect();
            pool.launch(queue);
            chunks.into_iter().for_each(|addr| pool.put(addr, stream));
        }
    };
    turn();
    let calls = || pool.device.state().calls;
    let (before, recorded, created) =
        (calls(), pool.count(DriverCall::Record), pool.count(DriverCall::Create));
    (0..1000).for_each(|_| turn());
    assert_eq!(pool.count(DriverCall::Record) - recorded, 14_000);
    let created = pool.count(DriverCall::Create) - created;
    assert_eq!(calls() - before - created, 3 * 14_000, "a record between two looks for a capture");
    assert!(created <= 2 * 32, "{created} events");
    assert_eq!(pool.count(DriverCall::IsDone), 0);
}

/// Memory freed while there was only one stream has no event. It gets a late one, which may be queried at any time. It
/// is waited for only as a last resort.
#[test]
fn what_one_stream_freed_alone_is_asked_about_early_and_waited_for_last() {
    let pool = Pool::new(8);
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    assert_eq!(pool.count(DriverCall::Record), 0, "it is alone");
    // The work is still pending, so growth comes first.
    let second = pool.get(4, b()).unwrap();
    assert_ne!(second, first);
    assert_eq!(
        (pool.count(DriverCall::Record), pool.count(DriverCall::IsDone)),
        (1, 1),
        "a late event, for asking only"
    );
    assert_eq!(pool.get(4, b()), Ok(first));
    let waits =
        [DriverCall::MakeWait, DriverCall::WaitFor, DriverCall::Synchronize].map(|what| pool.count(what));
    assert_eq!(waits, [0, 0, 1]);
    pool.put(first, b());
    pool.put(second, b());

    let pool = Pool::new(8);
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    pool.run(0);
    assert_eq!(pool.get(4, b()), Ok(first), "done, as the late event says");
    assert_eq!((pool.pool_bytes(), pool.count(DriverCall::Synchronize)), (4 * UNIT, 0));
}

/// A created stream may have been destroyed since all its memory was freed. Nothing is recorded there until it is named
/// again.
#[test]
fn what_a_created_stream_freed_alone_waits_until_it_is_named() {
    let pool = Pool::new(8);
    let first = pool.get(4, b()).unwrap();
    pool.put(first, b());
    assert_eq!(pool.get(4, A).map(|addr| addr != first), Ok(true), "the pool grows");
    assert_eq!(pool.count(DriverCall::Record), 0);
    // A request on the stream that its own memory cannot serve names it to the driver.
    assert_eq!(pool.get(8, b()), Err(ErrorKind::OutOfMemory));
    assert_eq!(pool.count(DriverCall::Record), 1);
    assert_eq!(pool.get(4, A), Ok(first));
}

/// Work that another stream queued after the free is not waited for, because it may itself wait for this stream.
#[test]
fn a_wait_ends_with_the_work_before_the_free() {
    let pool = Pool::new(4);
    pool.tell_apart();
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    // For example a receive, which ends when B has sent something.
    pool.launch(0);
    assert_eq!(pool.get(4, b()), Ok(first));
    assert_eq!(
        (pool.count(DriverCall::Record), pool.count(DriverCall::MakeWait)),
        (2, 1),
        "one more for what B has now"
    );
    let mut state = pool.device.state();
    state.step(0);
    state.step(0);
    assert!(state.step(1), "B goes on behind the kernel and the event, and in front of the receive");
    drop(state);
    pool.put(first, b());
}

#[test]
fn what_is_done_comes_before_growth_and_growth_before_a_wait() {
    let pool = Pool::new(8);
    pool.tell_apart();
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    assert_eq!(pool.get(4, A), Ok(first), "at once on its own stream");
    pool.put(first, A);
    // The work is still pending, so the pool grows.
    let second = pool.get(4, b()).unwrap();
    assert_ne!(second, first);
    assert_eq!((pool.pool_bytes(), pool.count(DriverCall::MakeWait)), (8 * UNIT, 0));
    pool.launch(1);
    pool.put(second, b());
    // The pool cannot grow any more. B waits for A's work on the device, but the call does not wait.
    let whole = [pool.get(4, b()).unwrap(), pool.get(4, b()).unwrap()];
    assert_eq!(whole, [second, first]);
    assert_eq!(
        (
            pool.count(DriverCall::MakeWait),
            pool.count(DriverCall::WaitFor),
            pool.count(DriverCall::Synchronize)
        ),
        (1, 0, 0)
    );
    assert_eq!(pool.device.state().queues[0].done, 0, "nobody waited for it");
    // Work that is done needs neither a wait nor growth.
    pool.put(first, b());
    pool.run(0);
    pool.run(1);
    assert_eq!(pool.get(4, A), Ok(first));
    assert_eq!((pool.count(DriverCall::MakeWait), pool.count(DriverCall::Synchronize)), (1, 0));
}

/// A request without a stream has no stream that could wait, so the call itself waits.
#[test]
fn a_plain_request_waits_itself() {
    let pool = Pool::new(4);
    pool.tell_apart();
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    assert_eq!(pool.get(4, Stream::NONE), Ok(first));
    assert_eq!((pool.count(DriverCall::WaitFor), pool.count(DriverCall::Synchronize)), (1, 0));
    // Memory freed without a stream becomes reusable by a stream only after a synchronization.
    assert_eq!(free::free(pool.slot, first), Ok(()));
    assert_eq!(pool.get(4, b()), Ok(first));
    assert_eq!((pool.count(DriverCall::MakeWait), pool.count(DriverCall::Synchronize)), (0, 1));
}

/// Work is done in order, so a few queries suffice to find out how much is done.
#[test]
fn many_events_take_few_questions() {
    let pool = Pool::new(2048);
    pool.tell_apart();
    let chunks: Vec<u64> = (0..2000).map(|_| pool.get(1, A).unwrap()).collect();
    let freed: Vec<u64> = chunks.iter().copied().step_by(2).collect();
    for &addr in &freed {
        pool.launch(0);
        pool.put(addr, A);
    }
    assert_eq!(pool.count(DriverCall::Record), 1000, "each has its own, for none of them touch");
    // Each has a kernel and the mark of its event.
    (0..2 * 700).for_each(|_| assert!(pool.device.state().step(0)));
    (0..48).for_each(|_| _ = pool.get(1, b()).unwrap());
    let asked = pool.count(DriverCall::IsDone);
    assert_eq!(pool.get(1, b()), Ok(freed[0]));
    assert!(asked + 24 >= pool.count(DriverCall::IsDone), "{} questions", pool.count(DriverCall::IsDone));
    let before = pool.count(DriverCall::IsDone);
    for &addr in &freed[1..700] {
        assert_eq!(pool.get(1, b()), Ok(addr));
    }
    assert_eq!(pool.count(DriverCall::IsDone), before, "all that is done was found at once");
}

#[test]
fn a_recorded_stream_is_waited_for() {
    let pool = Pool::new(4);
    let first = pool.get(4, A).unwrap();
    assert_eq!(order::record_use(pool.slot, first, b()), Ok(()));
    pool.launch(1);
    pool.put(first, A);
    assert_eq!(pool.get(4, A), Ok(first), "behind B's work");
    assert_eq!((pool.count(DriverCall::MakeWait), pool.device.state().queues[1].done), (1, 0));
    pool.put(first, A);
    assert_eq!(pool.get(4, A), Ok(first), "which was waited for");
    assert_eq!(pool.count(DriverCall::MakeWait), 1);
}

#[test]
fn a_forgotten_stream_leaves_its_memory_to_others() {
    let pool = Pool::new(4);
    let first = pool.get(4, b()).unwrap();
    pool.launch(1);
    pool.put(first, b());
    pool.forget(b());
    assert_eq!(pool.count(DriverCall::Record), 1, "the last event");
    let mut state = pool.device.state();
    state.destroy_stream(B, 0);
    let again = state.add_stream(B, 0);
    drop(state);
    // The handle now belongs to another stream, which must wait like any other.
    assert_eq!(pool.get(4, b()), Ok(first));
    assert_eq!((pool.count(DriverCall::MakeWait), pool.count(DriverCall::Synchronize)), (1, 0));
    let state = pool.device.state();
    assert_eq!(
        (state.queues[1].done, state.queues[again].queued),
        (0, 2),
        "it waits for the first one's work, and has an event behind that"
    );
}

/// The declaration covers the stream that has the handle now, not an earlier one that may still have work.
#[test]
fn a_synchronised_stream_says_nothing_of_a_forgotten_one() {
    let pool = Pool::new(4);
    let first = pool.get(4, b()).unwrap();
    pool.launch(1);
    pool.put(first, b());
    pool.forget(b());
    let mut state = pool.device.state();
    state.destroy_stream(B, 0);
    state.add_stream(B, 0);
    drop(state);
    order::declare_done(&mut pool.slot.enter().unwrap(), b());
    assert_eq!(pool.get(4, A), Ok(first));
    assert_eq!(pool.count(DriverCall::MakeWait), 1);
}

#[test]
fn the_default_stream_of_a_thread_that_ended_strands_nothing() {
    let pool = Pool::new(8);
    let [own, other] = THREADS.map(Stream::of_thread);
    thread::pretend(Some(THREADS[0]));
    let (first, second) = (pool.get(4, own).unwrap(), pool.get(4, own).unwrap());
    pool.launch(2);
    pool.put(first, own);
    assert_eq!(pool.count(DriverCall::Record), 1, "at the free: nobody else could");
    thread::pretend(Some(THREADS[1]));
    assert_eq!(pool.get(4, other), Ok(first));
    assert_eq!((pool.count(DriverCall::MakeWait), pool.count(DriverCall::Synchronize)), (1, 0));
    // A free without a stream by another thread records no event, so synchronizing the context is the last resort.
    assert_eq!(free::free(pool.slot, second), Ok(()));
    assert_eq!(pool.get(4, other), Ok(second));
    assert_eq!(pool.count(DriverCall::Synchronize), 1);
}

#[test]
fn a_captured_stream_asks_for_nothing() {
    let pool = Pool::new(8);
    let first = pool.get(4, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    pool.device.state().queues[1].capturing = true;
    let second = pool.get(4, b()).unwrap();
    assert_ne!(second, first, "the pool grows");
    assert_eq!(pool.get(4, b()), Err(ErrorKind::OutOfMemory), "and then there is no more");
    let state = pool.device.state();
    let all: u64 = state.counts.values().sum();
    assert_eq!(
        all,
        state.count(DriverCall::IsCapturing) + state.count(DriverCall::Alloc),
        "{:?}",
        state.counts
    );
}

/// A request on the captured stream itself records nothing there, and so learns nothing of it.
#[test]
fn a_request_on_a_captured_stream_does_not_hide_the_capture() {
    let pool = Pool::new(8);
    let (first, second) = (pool.get(4, A).unwrap(), pool.get(4, b()).unwrap());
    pool.device.state().queues[1].capturing = true;
    pool.put(second, b());
    assert_eq!(pool.get(8, b()), Err(ErrorKind::OutOfMemory), "half of the pool is in use");
    assert_eq!(pool.get(4, A), Err(ErrorKind::OutOfMemory), "nothing may wait for the device");
    assert_eq!(pool.count(DriverCall::Synchronize), 0, "which would have broken the capture");
    pool.device.state().queues[1].capturing = false;
    assert_eq!(pool.get(4, A), Ok(second), "the work before the free is waited for");
    pool.put(first, A);
}

/// A thread learns that a stream is not captured. Before it has the lock again, a capture begins there and another thread
/// sees it.
#[test]
fn an_older_answer_does_not_hide_a_capture() {
    static DEVICE: OnceLock<&Device> = OnceLock::new();
    fn poll(slot: &Slot) {
        assert!(order::poll(&mut slot.enter().unwrap(), b()).is_ok());
    }
    let pool = Pool::new(8);
    DEVICE.set(pool.device).ok().expect("once");
    let (first, second) = (pool.get(4, A).unwrap(), pool.get(4, b()).unwrap());
    pool.launch(1);
    pool.put(second, b());
    // In the call after the one that asks about the stream.
    pool.device.state().in_a_call = Some(|_| {
        DEVICE.get().unwrap().state().in_a_call = Some(|slot| {
            DEVICE.get().unwrap().state().queues[1].capturing = true;
            std::thread::spawn(|| poll(slot)).join().unwrap();
        });
    });
    poll(pool.slot);
    assert!(pool.device.state().in_a_call.is_none(), "it was called");
    assert!(pool.slot.enter().unwrap().events.captured().any(|stream| stream == b()));
    pool.device.state().queues[1].capturing = false;
    pool.put(first, A);
}

/// One free asks about a captured stream and about one whose capture has ended. Each answer is about its own stream.
#[test]
fn an_answer_about_one_stream_leaves_that_about_another() {
    let pool = Pool::new(8);
    let c = Stream::of_handle(12);
    let queue = pool.device.state().add_stream(12, 0);
    let (first, second) = (pool.get(2, b()).unwrap(), pool.get(2, c).unwrap());
    pool.device.state().queues[1].capturing = true;
    pool.put(first, b());
    assert_eq!(order::record_use(pool.slot, second, b()), Ok(()));
    pool.device.state().queues[1].capturing = false;
    pool.device.state().queues[queue].capturing = true;
    pool.put(second, c);
    let captured: Vec<Stream> = pool.slot.enter().unwrap().events.captured().collect();
    assert_eq!(captured, [c]);
    pool.device.state().queues[queue].capturing = false;
}

/// A call that forgets a stream does not return while another thread is about to record on it, because the stream may
/// be destroyed afterwards.
#[test]
fn forgetting_waits_for_those_who_record() {
    static FORGOTTEN: AtomicBool = AtomicBool::new(false);
    let (slot, device) = (&*Box::leak(Box::new(Slot::new())), Device::new(true));
    create(slot, device, true, 64 * UNIT);
    let pool = Pool { slot, device };
    pool.device.state().add_stream(1, 0);
    pool.device.state().add_stream(B, 0);
    let first = pool.get(16, b()).unwrap();
    pool.launch(1);
    pool.tell_apart();
    pool.device.state().in_a_call = Some(|slot| {
        std::thread::spawn(move || {
            let mut guard = slot.enter().unwrap();
            let forgotten = order::forget(&mut guard, b());
            FORGOTTEN.store(true, SeqCst);
            drop(guard);
            assert_eq!(forgotten, Ok(()));
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!FORGOTTEN.load(SeqCst), "the stream could be gone by now");
    });
    pool.put(first, b());
    let begun = Instant::now();
    while !FORGOTTEN.load(SeqCst) {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is never forgotten");
        std::thread::yield_now();
    }
}

#[test]
fn another_thread_comes_in_while_the_driver_is_called() {
    let pool = Pool::new(64);
    let first = pool.get(32, A).unwrap();
    pool.launch(0);
    pool.put(first, A);
    pool.device.state().in_a_call = Some(|slot| {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| alloc::alloc(slot, UNIT, A)).join().unwrap();
            assert!(inside.is_ok(), "{inside:?}");
        });
    });
    pool.get(32, b()).unwrap();
    assert!(pool.device.state().in_a_call.is_none(), "it was called");
}

/// This holds even for a pool with a single stream and no pending work, because giving a region back waits for the
/// device.
#[test]
fn nothing_goes_back_while_a_stream_is_captured() {
    let pool = Pool::new(8);
    let first = pool.get(4, A).unwrap();
    pool.put(first, A);
    pool.device.state().queues[0].capturing = true;
    assert_eq!(pool.get(8, A), Err(ErrorKind::OutOfMemory), "the free region would have to make room");
    assert_eq!(trim::trim(pool.slot, 0), Err(ErrorKind::BackendFailed));
    assert_eq!(trim::trim(pool.slot, 4 * UNIT), Ok(0), "nothing was to go back");
    assert_eq!(pool.pool_bytes(), 4 * UNIT);
    assert_eq!(pool.count(DriverCall::Synchronize), 0);
    pool.device.state().queues[0].capturing = false;
    assert!(pool.get(8, A).is_ok());
    assert_eq!(pool.pool_bytes(), 8 * UNIT);
}
