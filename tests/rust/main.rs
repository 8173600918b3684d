//! The interface for Rust, through what the crate exports to programs.

#[cfg(feature = "allocator-api2")]
mod allocator;
mod errors;
mod model;
mod ownership;
mod programs;
mod recording;
#[cfg(feature = "serde")]
mod serializable;

use bfc::{BackendKind, Builder, ErrorKind, HostPool, Pool};
use proptest::test_runner::{Config, RngSeed};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Returns the next of the ordinals that are free for any backend, so that tests run in parallel.
fn next_ordinal() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    258 + NEXT.fetch_add(1, Relaxed).rem_euclid(1024 - 258)
}

/// Creates a pool on an ordinal that no other pool has.
fn host_pool<'a>(settings: impl Fn(Builder<'a>) -> Builder<'a>) -> HostPool {
    loop {
        match settings(Pool::builder(next_ordinal()).backend(BackendKind::Host)).build_host() {
            // One that a test has left.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.expect("a pool of host memory"),
        }
    }
}

/// The same cases in each run, and others with `PROPTEST_RNG_SEED`. `PROPTEST_CASES` says how many.
fn cases() -> Config {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    Config { failure_persistence: None, rng_seed: RngSeed::Fixed(seed.unwrap_or(1)), ..Config::default() }
}
