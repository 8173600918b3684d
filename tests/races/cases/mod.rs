//! Programs in which an event that covers too much, an event of the wrong context, an event that two threads use, or the
//! remains of a stream did harm: one for each defect found.
//!
//! Each test runs all variants of its program and reports every one that fails.

mod age;
mod begins;
mod contexts;
mod defaults;
mod destroyed;
mod growth;
mod lasting;
mod late;
mod preloaded;
mod shared_events;

use crate::common::gpu::Gpu;
use crate::common::receive::Receive;
use crate::common::simcuda::simulated_with;
use crate::common::*;
use crate::harness;
use std::ffi::c_void;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// How memory is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// `bfc_alloc`: any stream may use the memory at once.
    Plain,
    /// `bfc_alloc_async`.
    Async,
    /// `bfc_alloc_ex` with `BFC_REQUEST_ON_STREAM`.
    Ex,
}

/// All of them.
pub const REQUESTS: [Request; 3] = [Request::Plain, Request::Async, Request::Ex];

/// What was wrong.
pub type Outcome = Result<(), String>;

impl Request {
    /// Requests this many bytes.
    pub fn make(self, pool: &Pool, bytes: u64, stream: u64) -> Result<u64, String> {
        let result = match self {
            Request::Plain => pool.alloc(bytes),
            Request::Async => pool.alloc_on(bytes, stream),
            Request::Ex => {
                let mut wanted = request(bytes as usize);
                (wanted.flags, wanted.stream) = (BFC_REQUEST_ON_STREAM, pointer(stream));
                pool.alloc_ex(&wanted)
            }
        };
        result.map_err(|status| format!("the request fails with status {status}: {}", last_error()))
    }
}

/// A pool of one region, which cannot grow.
pub fn fixed_pool(backend: u32, limit: u64) -> Pool {
    Pool::on_device(0, |options| {
        (options.backend, options.flags, options.memory_limit) = (backend, BFC_SPLIT_ALWAYS, limit);
    })
}

/// All pairs.
pub fn pairs<A: Copy, B: Copy>(
    firsts: impl IntoIterator<Item = A>,
    seconds: impl IntoIterator<Item = B>,
) -> Vec<(A, B)> {
    let seconds: Vec<B> = seconds.into_iter().collect();
    firsts.into_iter().flat_map(|first| seconds.iter().map(move |&second| (first, second))).collect()
}

/// Runs variants of a program on two simulated devices, each from the beginning, and reports which fail.
pub fn variants<T: Copy + Debug>(variants: impl IntoIterator<Item = T>, program: impl Fn(Gpu, T) -> Outcome) {
    variants_with(&[], variants, program);
}

/// Like [`variants`], with variables for the simulation.
pub fn variants_with<T: Copy + Debug>(
    variables: &[(&str, &str)],
    variants: impl IntoIterator<Item = T>,
    program: impl Fn(Gpu, T) -> Outcome,
) {
    simulated_with(&harness::test(), variables, |sim| {
        let (mut failures, mut count) = (Vec::new(), 0);
        for variant in variants {
            count += 1;
            // Shown if the variant ends the process.
            println!("{variant:?}");
            let run = || {
                assert_eq!(sim.configure(2, GIB), 0);
                program(Gpu::new(sim), variant)
            };
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {}
                Ok(Err(why)) => failures.push(format!("{variant:?}: {why}")),
                Err(_) => failures.push(format!("{variant:?}: panics, see above")),
            }
        }
        assert!(count > 0);
        let failed = failures.len();
        assert!(failures.is_empty(), "{failed} of {count} variants fail:\n{}", failures.join("\n"));
    });
}

/// Records whether the work before it on a stream has completed.
pub struct Mark(Arc<AtomicBool>);

impl Mark {
    /// Queues it.
    pub fn queue(gpu: Gpu, stream: u64) -> Mark {
        let flag = Arc::new(AtomicBool::new(false));
        let argument = Arc::into_raw(flag.clone()).cast_mut().cast();
        assert_eq!(gpu.sim.launch(pointer(stream), reached, argument), 0);
        Mark(flag)
    }

    /// Returns whether it has run.
    pub fn is_reached(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Returns whether work that is queued on a stream now runs before it.
    pub fn is_overtaken(&self, gpu: Gpu, stream: u64) -> bool {
        Mark::queue(gpu, stream).is_reached() && !self.is_reached()
    }
}

unsafe extern "C" fn reached(flag: *mut c_void) {
    // SAFETY: `queue` passed it to this call, which is the only one.
    unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) }.store(true, SeqCst);
}

/// Returns the text of the first violation among several conditions.
pub fn first_of<const N: usize>(wrong: [(bool, &str); N]) -> Outcome {
    match wrong.iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}

/// Returns the misuses of the driver.
pub fn misuses(gpu: Gpu) -> Outcome {
    let texts = gpu.sim.misuse_texts();
    if texts.is_empty() { Ok(()) } else { Err(format!("misuse: {}", texts.join("; "))) }
}

/// Fills a chunk on a stream, and frees it there.
pub fn fill_and_free(gpu: Gpu, pool: &Pool, chunk: u64, bytes: u64, stream: u64) {
    gpu.fill(stream, chunk, bytes, 1);
    pool.put_on(chunk, stream);
}

/// Sends from memory that was requested after a receive, and checks that no call has waited for the receive and that the
/// send was not ordered after it. `held` are streams that have run nothing so far.
pub fn send(
    gpu: Gpu,
    receive: Receive,
    got: Result<u64, String>,
    bytes: u64,
    stream: u64,
    held: &[u64],
) -> Outcome {
    let is_forced = receive.is_forced();
    if let Ok(address) = &got {
        gpu.fill(stream, *address, bytes, 2);
    }
    receive.send(gpu, stream);
    // As far as possible without the receive. The streams may wait for each other repeatedly.
    while held.iter().map(|&stream| gpu.step(stream, u64::MAX)).sum::<u64>() != 0 {}
    let is_sent = receive.is_sent();
    receive.deliver(gpu);
    gpu.sim.release_all();
    if let Ok(address) = &got {
        gpu.expect(stream, *address, bytes, 2);
    }
    first_of([
        (is_forced, "deadlock: a call has waited in the host for the receive"),
        (!is_sent, "deadlock: the send was ordered after the receive"),
        (gpu.sim.mismatches() != 0, "wrong data"),
    ])?;
    got.map(drop)
}
