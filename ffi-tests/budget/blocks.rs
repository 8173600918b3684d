//! Pairs of an allocation and its free, through the interface for Rust or the C ABI. test_rust.py compiles it.

use bfc::capi::{bfc_alloc, bfc_alloc_async, bfc_free, bfc_free_async};
use bfc::{BackendKind, Pool, RawStream};
use std::hint::black_box;
use std::ptr::null_mut;

const DEVICE: i32 = 258;
const BYTES: usize = 1000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let pairs: usize = args[2].parse().unwrap();
    let pool = Pool::builder(DEVICE).backend(BackendKind::Host).memory_limit(1 << 20).build().unwrap();
    // SAFETY: this is no CUDA backend.
    let stream = unsafe { pool.stream(RawStream::from(0x1000)) };
    let handle = stream.raw().into();
    match args[1].as_str() {
        "rust" => (0..pairs).for_each(|_| drop(black_box(pool.alloc(black_box(BYTES))).unwrap())),
        "rust_stream" => (0..pairs).for_each(|_| drop(black_box(stream.alloc(black_box(BYTES))).unwrap())),
        "c" => (0..pairs).for_each(|_| {
            let mut pointer = null_mut();
            // SAFETY: the pointer is valid for writing.
            assert_eq!(unsafe { bfc_alloc(DEVICE, black_box(BYTES), &mut pointer) }, 0);
            assert_eq!(bfc_free(DEVICE, black_box(pointer)), 0);
        }),
        "c_stream" => (0..pairs).for_each(|_| {
            let mut pointer = null_mut();
            // SAFETY: the pointer is valid for writing.
            assert_eq!(unsafe { bfc_alloc_async(DEVICE, black_box(BYTES), handle, &mut pointer) }, 0);
            assert_eq!(bfc_free_async(DEVICE, black_box(pointer), handle), 0);
        }),
        other => panic!("{other}"),
    }
}
