//! Order of device work on the simulated driver (a simulation, and no device): no memory is handed out while work that
//! was queued before its free may still touch it, no request waits for later work, and no capture breaks.
//!
//! A random program is written once, as steps on streams whose work is held ([`world`]). A [driver](driver::Driver)
//! executes it: `library` by the C functions of libbfc, `hooked` by the functions of CUDA in a process with the
//! interposer preloaded. `cases` has one program for each defect found.
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
