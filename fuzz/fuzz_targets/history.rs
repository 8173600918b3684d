//! Damaged histories: the reader of `bfc report` refuses them for a reason, or reads at most as many events as the file has
//! room for, and the timeline follows those. Both allocate no more than in proportion to what is in the file.
//!
//! A file has more than a mebibyte, which no fuzzer would come up with. An input is a list of changes to a whole one.

#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;

use bfc_formats::history::layout::{HEADER_BYTES, MOST_FRAMES, STACK_BYTES, TEXT_BYTES};
use bfc_readers::history::made::{Chunk, Made};
use bfc_readers::history::reader::parse;
use bfc_readers::history::timeline::follow;

/// The most bytes that are allocated for each byte of the file, in all.
const MOST_FOR_A_BYTE: usize = 8;

/// Counts the bytes that this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|sum| sum.set(sum.get().saturating_add(layout.size())));
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A history with events of most kinds, and with backtraces.
fn whole() -> Vec<u8> {
    let mut made = Made::new("train");
    made.stack = made.backtrace(&[0x1010, 0x2010], &[(1, 7)]);
    made.pool(1, 0, "bfc", &["weights", "cache"]);
    for number in 0..40 {
        let address = 0x10_0000 + number * 0x1000;
        let chunk = Chunk { address, bytes: 256 * (number + 1), operation: (number % 3) as u32 };
        made.alloc(1, chunk);
        if number % 4 == 3 {
            made.step(1, number);
            made.mark("step");
            made.out_of_memory(1, 1 << 20);
            made.free(1, chunk);
        }
    }
    made.destroy(1);
    made.bytes()
}

/// Changes a file: eight bytes, or the first of them, in one of its areas.
fn change(file: &mut [u8], what: &[u8; 11]) {
    let [kind, low, high, value @ ..] = what;
    let areas = [0, HEADER_BYTES, HEADER_BYTES + TEXT_BYTES, HEADER_BYTES + TEXT_BYTES + STACK_BYTES];
    let area = areas[usize::from(kind >> 1) % areas.len()];
    let most = if area == 0 { HEADER_BYTES } else { 1 << 16 };
    let bytes = if kind & 1 == 0 { 8 } else { 1 };
    let at = area + usize::from(u16::from_le_bytes([*low, *high])) % most / bytes * bytes;
    file[at..at + bytes].copy_from_slice(&value[..bytes]);
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut file = WHOLE.get_or_init(whole).clone();
    for what in input.as_chunks().0 {
        change(&mut file, what);
    }
    let before = ALLOCATED.get();
    if let Ok(mut history) = parse(&file) {
        assert!(history.events.len() <= 1024);
        history.stacks.name(|_, _, _| Vec::new());
        let named = history.events.iter().map(|event| history.frames(event.stack).len());
        // Native ones and Python's, and one that says that there are more.
        assert!(named.max() <= Some(2 * MOST_FRAMES + 1));
        let mut states = 0;
        follow(&history, |_, _| states += 1);
        assert_eq!(states, history.events.len());
    }
    let allocated = ALLOCATED.get() - before;
    assert!(allocated <= MOST_FOR_A_BYTE * file.len(), "{allocated} bytes for a file of {}", file.len());
});
