//! Plans from bytes, and programs that follow them or not: see `tests/plan_files`, which `tests/plan.rs` runs on seeds.

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/plan_files/mod.rs"]
mod plan_files;

libfuzzer_sys::fuzz_target!(|program: &[u8]| plan_files::run(program, 258));
