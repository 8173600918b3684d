//! Random programs of C ABI calls with hostile arguments, compared with a model: the interpreter of the fuzz target
//! on bytes from seeds, so that it runs everywhere and deterministically.
//!
//! A failing program is minimized before it is shown. `BFC_PROGRAMS=n` runs n programs
//! of each length instead of some thousands.

mod common;
mod interpreter;

use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

type Ordinals = [i32; interpreter::DEVICES];

/// Returns whether a program fails. A failure that poisons an allocator uses up its ordinal.
fn fails(program: &[u8], ordinals: &mut Ordinals) -> bool {
    let failed = catch_unwind(AssertUnwindSafe(|| interpreter::run(program, *ordinals))).is_err();
    for ordinal in ordinals {
        if bfc_check(*ordinal) == BFC_ERROR_INTERNAL {
            *ordinal = fresh_device();
        }
    }
    failed
}

/// Leaves out parts and zeroes bytes, as long as the program fails.
fn smallest(mut program: Vec<u8>, ordinals: &mut Ordinals) -> Vec<u8> {
    // Sufficient to understand it, because ordinals are few.
    let mut tries = 600;
    let mut still_fails = |program: &[u8]| {
        tries -= 1;
        tries > 0 && fails(program, ordinals)
    };
    let mut length = program.len() / 2;
    while length > 0 {
        let mut at = 0;
        while at + length <= program.len() {
            let shorter = [&program[..at], &program[at + length..]].concat();
            if still_fails(&shorter) {
                program = shorter;
            } else {
                at += length;
            }
        }
        length /= 2;
    }
    for at in 0..program.len() {
        let old = std::mem::replace(&mut program[at], 0);
        if old != 0 && !still_fails(&program) {
            program[at] = old;
        }
    }
    program
}

/// Runs `count` programs of a family of seeds.
fn run_programs(family: u64, longest: u64) {
    let count = std::env::var("BFC_PROGRAMS").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(if cfg!(debug_assertions) { 1500 } else { 6000 });
    let mut ordinals = [fresh_device(), fresh_device(), fresh_device()];
    for seed in 0..count {
        let mut random = Random::new(family << 32 | seed);
        let length = random.between(10, longest);
        let program: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
        if fails(&program, &mut ordinals) {
            static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
            let _guard = ONE_AT_A_TIME.lock();
            let program = smallest(program, &mut ordinals);
            eprintln!("the smallest program, {} bytes: {program:?}", program.len());
            interpreter::run(&program, ordinals);
            panic!("seed {seed} of family {family} failed, but not a second time");
        }
    }
}

#[test]
fn short_programs() {
    run_programs(1, 100);
}

#[test]
fn programs() {
    run_programs(2, 1000);
}

#[test]
fn long_programs() {
    run_programs(3, 6000);
}

/// Regression tests for the fuzzer's findings.
#[test]
fn found_by_fuzzing() {
    let ordinals = [fresh_device(), fresh_device(), fresh_device()];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join("regressions");
    let mut ran = 0;
    for file in std::fs::read_dir(&folder).expect("the folder is part of the source") {
        let path = file.expect("a directory entry").path();
        println!("{}", path.display());
        interpreter::run(&std::fs::read(path).expect("a file"), ordinals);
        ran += 1;
    }
    assert!(ran > 0, "{} is empty", folder.display());
}
