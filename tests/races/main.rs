//! Order of device work on the simulated driver (a simulation, and no device): no memory is handed out while work that
//! was queued before its free may still touch it, no request waits for later work, and no capture breaks.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod hooked;
mod library;
mod progress;
mod shadow;
mod worker;
