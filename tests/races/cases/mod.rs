//! Order of device work on the simulated driver (a simulation, and no device): programs in which an event that covers
//! too much, an event of the wrong context, an event that two threads use, or the remains of a stream do harm.
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

use crate::common;
use common::gpu::Gpu;
use common::simcuda::{Simulation, simulated_with};
use common::*;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// How memory is requested.
#[derive(Clone, Copy, Debug)]
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

/// Runs variants of a program on two simulated devices, each from the beginning, and reports which fail.
pub fn variants<T: Copy>(
    test: &str,
    variants: impl IntoIterator<Item = (String, T)>,
    program: impl Fn(Gpu, T) -> Result<(), String>,
) {
    variants_with(test, &[], variants, program);
}

/// Like [`variants`], with variables for the simulation.
pub fn variants_with<T: Copy>(
    test: &str,
    variables: &[(&str, &str)],
    variants: impl IntoIterator<Item = (String, T)>,
    program: impl Fn(Gpu, T) -> Result<(), String>,
) {
    simulated_with(test, variables, |sim| {
        let mut failures = Vec::new();
        let mut count = 0;
        for (name, variant) in variants {
            count += 1;
            // Shown if the variant ends the process.
            println!("{name}");
            let run = || program(begin(sim), variant);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {}
                Ok(Err(why)) => failures.push(format!("{name}: {why}")),
                Err(_) => failures.push(format!("{name}: panics, see above")),
            }
        }
        assert!(count > 0);
        let failed = failures.len();
        assert!(failures.is_empty(), "{failed} of {count} variants fail:\n{}", failures.join("\n"));
    });
}

fn begin(sim: Simulation) -> Gpu {
    assert_eq!(sim.configure(2, GIB), 0);
    Gpu::new(sim)
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
}

unsafe extern "C" fn reached(flag: *mut c_void) {
    // SAFETY: `queue` passed it to this call, which is the only one.
    unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) }.store(true, SeqCst);
}

/// Returns the text of the first violation among several conditions.
pub fn first_of<const N: usize>(wrong: [(bool, &str); N]) -> Result<(), String> {
    match wrong.iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}
