//! Order of device work on the simulated driver (a simulation, and no device): no memory is handed out while work that
//! was queued before its free may still touch it, no request waits for later work, and no capture breaks.
//!
//! A random program is written once, as steps on streams whose work is held ([`world`]). A [driver](driver::Driver)
//! executes it: `library` by the C functions of libbfc, `hooked` by the functions of CUDA in a process with the
//! interposer preloaded. `cases` has one program for each defect found.
//!
//! # Random harnesses of the repository
//!
//! Three run whole programs against a model:
//!
//! | harness | covers |
//! |---|---|
//! | `crates/bfc-core/src/tests`: `model`, `queues`, `remap`, `stamp_bounds` | the core without a backend: every address, statistics, plans, streams, granules, stamps |
//! | `tests/interpreter`, by seeds in `tests/programs.rs` and by `fuzz/fuzz_targets/abi.rs` | the C ABI with hostile arguments, custom sub-allocators, stamps |
//! | `tests/races` | device work in flight: streams, events, contexts, captures, receives, threads, failing calls of the driver, and the interposer |
//!
//! The others check what none of these models has:
//!
//! | harness | covers |
//! |---|---|
//! | `src/pool/order/tests/threads.rs` | threads on several streams, for the thread sanitizer, on a device without a driver |
//! | `tests/conformance` (`contents_are_kept` and its threads) | contents of chunks over each backend |
//! | `tests/host_vmm` (`random_programs_keep_every_byte`) | contents while granules of real memory move, and refusals |
//! | `tests/threads.rs` | threads that create, destroy, wait and fail at once |
//! | `tests/conformance/guard.rs`, `tests/guard/host.rs`, `tests/allocation/regions.rs` | guard bytes, and the region callback |
//! | `crates/simcuda/tests/random.rs` | the simulated driver itself |
//!
//! RACES_PROGRAMS is the number of random programs that each kind runs. RACES_SEED runs a single program. The log of a
//! failing program is shown, and a run of minutes reports its progress. `cargo xtask test --suite races` runs many in
//! the release build.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod contexts;
mod driver;
mod graphs;
mod harness;
mod hooked;
mod judge;
mod kind;
mod library;
mod receives;
mod shadow;
mod together;
mod worker;
mod world;
