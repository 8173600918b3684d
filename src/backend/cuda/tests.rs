use super::*;
use crate::backend::order::{Capture, Context, Event, Order, State, Stream, Streams};
use crate::error::ErrorKind;
use cuda_sys::*;
use std::ptr;

#[path = "../../../tests/common/cargo.rs"]
mod cargo;
#[allow(dead_code)]
#[path = "../../../tests/common/child.rs"]
mod child;
#[allow(dead_code)]
#[path = "../../../tests/common/simcuda.rs"]
mod simcuda;

#[test]
fn what_is_free_less_the_larger_reserve() {
    const MIB: u64 = 1 << 20;
    for (free, limit) in [
        (0, 0),
        (300 * MIB, 0),
        (1000 * MIB, 700 * MIB),
        (6000 * MIB, 5700 * MIB),
        (80_000 * MIB, 76_000 * MIB),
        (u64::MAX, u64::MAX - u64::MAX / 20),
    ] {
        assert_eq!(less_reserve(free), limit, "{free}");
    }
}

#[test]
fn codes_are_told_apart() {
    let refused = |code| Failure::Refused { call: "cuMemAlloc", code };
    assert!(refused(CUDA_ERROR_OUT_OF_MEMORY).is(CUDA_ERROR_OUT_OF_MEMORY));
    assert!(!refused(CUDA_ERROR_ILLEGAL_ADDRESS).is(CUDA_ERROR_OUT_OF_MEMORY));
    assert!(refused(CUDA_ERROR_DEINITIALIZED).is_the_end());
    let missing = cuda_sys::Missing { symbol: "cuMemAlloc_v2", since: 3020, driver: 2000 };
    assert!(!Failure::from(missing).is_the_end());
}

const MIB: u64 = 1 << 20;

fn new_stream(cuda: &Cuda, flags: CUstream_flags) -> Stream {
    let mut stream = ptr::null_mut();
    let create = |driver: Driver| {
        // SAFETY: the pointer is valid.
        let code = unsafe { driver.cuStreamCreate()?(&mut stream, flags) };
        assert_eq!(code, CUDA_SUCCESS);
        Ok(())
    };
    inside(cuda, create).unwrap();
    Stream { handle: stream as u64, context: 0 }
}

fn order<T>(cuda: &Cuda, work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>) -> Result<T, ErrorKind> {
    (cuda as &dyn Streams).run(work)
}

fn destroy(cuda: &Cuda, event: Event) {
    let destroyed = order(cuda, |order| {
        order.destroy_event(event);
        Ok(())
    });
    // The driver may be down, in which case the failure does not matter.
    let _ = destroyed;
}

/// Runs on the simulated driver.
#[test]
fn events_say_what_is_done() {
    simcuda::simulated("backend::cuda::tests::events_say_what_is_done", |sim| {
        let cuda = Cuda::open(0).unwrap();
        let granted = cuda.alloc(256, MIB).unwrap().unwrap();
        let [first, second] = [0; 2].map(|_| new_stream(&cuda, CU_STREAM_NON_BLOCKING));
        let [one, other] = [first, second].map(|stream| stream.handle as *mut std::ffi::c_void);
        sim.hold(one);
        sim.fill(one, granted.base, MIB, 7);
        let [event, later] = [0; 2].map(|_| order(&cuda, |order| order.create_event(Context::OWN)).unwrap());
        assert_eq!(order(&cuda, |order| order.state(event)), Ok(State::Done), "of no work");
        order(&cuda, |order| order.record(event, first)).unwrap();
        assert_eq!(order(&cuda, |order| order.state(event)), Ok(State::Pending));

        order(&cuda, |order| order.make_wait(second, event)).unwrap();
        sim.expect(other, granted.base, MIB, 7);
        order(&cuda, |order| order.record(later, second)).unwrap();
        assert_eq!(
            order(&cuda, |order| order.state(later)),
            Ok(State::Pending),
            "it waits for the other stream"
        );
        sim.step(one, 2);
        assert_eq!(
            (order(&cuda, |order| order.state(event)), order(&cuda, |order| order.state(later))),
            (Ok(State::Done), Ok(State::Done))
        );

        sim.fill(one, granted.base, MIB, 8);
        order(&cuda, |order| order.record(event, first)).unwrap();
        order(&cuda, |order| order.wait_for(event)).unwrap();
        assert_eq!(sim.pending(one), 0);
        sim.fill(one, granted.base, MIB, 9);
        order(&cuda, |order| order.synchronize()).unwrap();
        assert_eq!((sim.pending(one), sim.mismatches()), (0, 0));

        [event, later].into_iter().for_each(|event| destroy(&cuda, event));
        cuda.free(granted).unwrap();
        cuda.close();
        sim.assert_clean();
    });
}

/// Runs on the simulated driver.
#[test]
fn a_capture_is_seen_and_breaks_no_event_of_others() {
    simcuda::simulated("backend::cuda::tests::a_capture_is_seen_and_breaks_no_event_of_others", |sim| {
        const LEGACY: Stream = Stream { handle: 1, context: 0 };
        let cuda = Cuda::open(0).unwrap();
        let [blocking, free] =
            [CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING].map(|flags| new_stream(&cuda, flags));
        let event = order(&cuda, |order| order.create_event(Context::OWN)).unwrap();
        let captured = |stream: Stream, work: &dyn Fn()| {
            let stream = stream.handle as CUstream;
            // SAFETY: the stream exists.
            let code = unsafe {
                cuda.driver.cuStreamBeginCapture_v2().unwrap()(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
            };
            assert_eq!(code, CUDA_SUCCESS);
            work();
            let mut graph = ptr::null_mut();
            // SAFETY: the stream exists, and the pointer is valid.
            let code = unsafe { cuda.driver.cuStreamEndCapture().unwrap()(stream, &mut graph) };
            assert_eq!(code, CUDA_SUCCESS, "the capture is whole");
        };
        let seen = || {
            [blocking, free, LEGACY]
                .map(|stream| order(&cuda, |order| order.capture_of(stream)).unwrap() == Capture::Active)
        };
        assert_eq!(seen(), [false; 3]);
        captured(blocking, &|| {
            assert_eq!(seen(), [true, false, true]);
            assert_eq!(order(&cuda, |order| order.synchronize()), Err(ErrorKind::BackendFailed));
            // Calls that concern other streams are legal.
            order(&cuda, |order| order.record(event, free)).unwrap();
            assert_eq!(order(&cuda, |order| order.state(event)), Ok(State::Done));
            order(&cuda, |order| order.wait_for(event)).unwrap();
        });
        captured(free, &|| assert_eq!(seen(), [false, true, false]));
        assert_eq!(seen(), [false; 3]);
        destroy(&cuda, event);
        cuda.close();
        assert_eq!(sim.misuses(), 0);
    });
}

/// Runs on the simulated driver.
#[test]
fn a_driver_past_its_end_is_told_from_one_that_fails() {
    simcuda::simulated("backend::cuda::tests::a_driver_past_its_end_is_told_from_one_that_fails", |sim| {
        let cuda = Cuda::open(0).unwrap();
        let event = order(&cuda, |order| order.create_event(Context::OWN)).unwrap();
        sim.fail(Some("cuEventQuery"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(order(&cuda, |order| order.state(event)), Err(ErrorKind::BackendFailed));
        crate::error::with_last_error(|words| {
            assert!(words.contains("cuEventQuery failed with CUDA_ERROR_UNKNOWN (999)"), "{words}");
        });
        sim.shutdown();
        assert_eq!(order(&cuda, |order| order.state(event)), Err(ErrorKind::ShuttingDown));
        assert_eq!(
            order(&cuda, |order| order.record(event, Stream { handle: 1, context: 0 })),
            Err(ErrorKind::ShuttingDown)
        );
        assert_eq!(order(&cuda, |order| order.create_event(Context::OWN)), Err(ErrorKind::ShuttingDown));
        destroy(&cuda, event);
        cuda.close();
    });
}
