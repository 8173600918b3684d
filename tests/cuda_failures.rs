//! Every call of the (simulated) driver made to fail, one after the other, in programs that use everything there is:
//! the library says so or serves otherwise, hands out nothing too early, loses nothing, and its books are right.

mod common;

use common::failing::*;
use common::*;
use cuda_sys::*;

const KIND: Kind = Kind { backend: BFC_BACKEND_CUDA, unit: 1 << 10, filled: u64::MAX, programs: &PROGRAMS };

#[test]
fn nothing_fails_by_itself() {
    nothing_fails("nothing_fails_by_itself", KIND);
}

#[test]
fn every_call_is_out_of_memory() {
    let answers = [BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
    every_call_fails("every_call_is_out_of_memory", KIND, CUDA_ERROR_OUT_OF_MEMORY, &answers);
}

#[test]
fn every_call_fails_for_no_known_reason() {
    let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
    every_call_fails("every_call_fails_for_no_known_reason", KIND, CUDA_ERROR_UNKNOWN, &answers);
}

/// From then on everything in the context fails.
#[test]
fn every_call_finds_the_context_broken() {
    let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
    every_call_fails("every_call_finds_the_context_broken", KIND, CUDA_ERROR_ILLEGAL_ADDRESS, &answers);
}

#[test]
fn every_call_finds_the_driver_down() {
    let answers = [BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
    every_call_fails("every_call_finds_the_driver_down", KIND, CUDA_ERROR_DEINITIALIZED, &answers);
}
