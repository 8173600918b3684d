//! Random programs on several streams, against an oracle of what has to happen before what; and many threads.

mod common;
use common::*;

use std::cell::RefCell;
use std::ffi::c_void;

/// Numbers that are always the same (the high bits of a linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }
}

thread_local! {
    /// The kernels that have run, in order. Work is run by the thread that calls the driver: this one.
    static RAN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn kernel(argument: *mut c_void) {
    RAN.with(|ran| ran.borrow_mut().push(argument.addr()));
}

/// An operation with everything that has to be done before it. The oracle knows calls and the manual's rules, and
/// nothing of queues.
struct Operation {
    is_kernel: bool,
    before: Vec<usize>,
}

/// What the oracle remembers of a program.
#[derive(Default)]
struct Oracle {
    operations: Vec<Operation>,
    last: [Option<usize>; STREAMS],
    recorded: [Option<usize>; EVENTS],
}

const STREAMS: usize = 4;
const EVENTS: usize = 3;

impl Oracle {
    /// The first stream is the legacy default stream, the second does not block, the others do.
    fn add(&mut self, stream: usize, is_kernel: bool, also: Option<usize>) -> usize {
        let mut direct: Vec<usize> = also.into_iter().chain(self.last[stream]).collect();
        match stream {
            0 => direct.extend(self.last[2..].iter().flatten()),
            1 => (),
            _ => direct.extend(self.last[0]),
        }
        let mut before: Vec<usize> = direct.clone();
        for operation in direct {
            before.extend(&self.operations[operation].before);
        }
        before.sort_unstable();
        before.dedup();
        self.operations.push(Operation { is_kernel, before });
        self.last[stream] = Some(self.operations.len() - 1);
        self.operations.len() - 1
    }

    /// Every kernel came after all kernels that have to come before it.
    fn check_order(&self, seed: u64) {
        RAN.with(|ran| {
            let ran = ran.borrow();
            for (place, operation) in ran.iter().enumerate() {
                for before in self.kernels_before(*operation) {
                    assert!(ran[..place].contains(&before), "seed {seed}: {operation} before {before}");
                }
            }
        });
    }

    fn kernels_before(&self, operation: usize) -> impl Iterator<Item = usize> {
        let before = self.operations[operation].before.iter().copied();
        before.filter(|before| self.operations[*before].is_kernel)
    }

    /// What has to be done before an operation is done.
    fn check_done(&self, operation: Option<usize>, seed: u64) {
        let Some(operation) = operation else { return };
        RAN.with(|ran| {
            let ran = ran.borrow();
            let mut kernels: Vec<usize> = self.kernels_before(operation).collect();
            kernels.extend(self.operations[operation].is_kernel.then_some(operation));
            let missing = kernels.iter().find(|kernel| !ran.contains(kernel));
            assert_eq!(missing, None, "seed {seed}: operation {operation} is said to be done");
        });
    }
}

fn program(machine: &Machine, seed: u64) {
    machine.steer.reset();
    machine.init().unwrap();
    machine.enter(0);
    RAN.with(|ran| ran.borrow_mut().clear());
    let mut random = Random(seed);
    let created = [CU_STREAM_NON_BLOCKING, 0, 0].map(|flags| machine.stream(flags).unwrap());
    let streams = [LEGACY, created[0], created[1], created[2]];
    let events = [0; EVENTS].map(|_| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let mut oracle = Oracle::default();
    for stream in streams {
        if random.below(4) > 0 {
            machine.hold(stream);
        }
    }
    for _ in 0..60 {
        let (stream, event) = (random.below(STREAMS), random.below(EVENTS));
        match random.below(10) {
            0..4 => {
                // The kernel may run before the oracle knows it, but not before it is checked.
                let number = oracle.operations.len();
                assert_eq!(machine.steer.launch(streams[stream].cast(), kernel, number as *mut c_void), 0);
                oracle.add(stream, true, None);
            }
            4 => {
                machine.record(events[event], streams[stream]).unwrap();
                oracle.recorded[event] = Some(oracle.add(stream, false, None));
            }
            5 | 6 => {
                machine.stream_wait(streams[stream], events[event], 0).unwrap();
                oracle.add(stream, false, oracle.recorded[event]);
            }
            7 => {
                machine.step(streams[stream], 1 + random.below(3) as u64);
            }
            8 => {
                if machine.event_query(events[event]).is_ok() {
                    oracle.check_done(oracle.recorded[event], seed);
                }
                if machine.stream_query(streams[stream]).is_ok() {
                    oracle.check_done(oracle.last[stream], seed);
                }
            }
            _ if random.below(4) > 0 => (),
            _ => {
                machine.event_synchronize(events[event]).unwrap();
                oracle.check_done(oracle.recorded[event], seed);
                assert_eq!(machine.event_query(events[event]), Ok(()));
                machine.stream_synchronize(streams[stream]).unwrap();
                oracle.check_done(oracle.last[stream], seed);
            }
        }
        oracle.check_order(seed);
    }
    machine.steer.release_all();
    oracle.check_order(seed);
    let kernels = oracle.operations.iter().filter(|operation| operation.is_kernel).count();
    RAN.with(|ran| assert_eq!(ran.borrow().len(), kernels, "seed {seed}"));
    for stream in streams {
        assert_eq!(machine.stream_query(stream), Ok(()));
    }
    machine.was_well_used();
}

#[test]
fn work_happens_in_an_order_that_the_program_allows() {
    let machine = machine(1);
    for seed in 0..3000 {
        program(&machine, seed);
    }
}

#[test]
fn threads_share_the_driver() {
    let machine = ready();
    let context = machine.current().unwrap() as usize;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let machine = &machine;
            scope.spawn(move || {
                machine.set_current(context as CUcontext).unwrap();
                let mut random = Random(thread);
                let streams = [0; 2].map(|_| machine.stream(CU_STREAM_NON_BLOCKING).unwrap());
                let event = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
                for round in 1..500_u64 {
                    let memory = machine.alloc(4096).unwrap();
                    if random.below(2) == 0 {
                        machine.hold(streams[0]);
                    }
                    machine.fill(streams[0], memory, 4096, round).unwrap();
                    machine.record(event, streams[0]).unwrap();
                    machine.stream_wait(streams[1], event, 0).unwrap();
                    machine.expect(streams[1], memory, 4096, round).unwrap();
                    match random.below(3) {
                        0 => machine.stream_synchronize(streams[1]).unwrap(),
                        1 => machine.synchronize().unwrap(),
                        _ => machine.release(streams[0]),
                    }
                    machine.free(memory).unwrap();
                }
            });
        }
    });
    machine.was_well_used();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::ALLOCATIONS)), (0, 0));
}
