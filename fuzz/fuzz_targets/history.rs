//! Damaged histories: the reader of `bfc report` refuses them for a reason, or reads at most as many events as the file has
//! room for, and the timeline follows those.
//!
//! A file has more than a mebibyte, which no fuzzer would come up with. An input is a list of changes to a whole one.

#![no_main]

use std::sync::OnceLock;

#[allow(dead_code)]
#[path = "../../cli/tests/cli/history/made.rs"]
mod made;

/// The reader of `bfc report`.
#[allow(dead_code)]
#[path = "."]
mod history {
    #[path = "../../src/history/layout.rs"]
    pub mod layout;
    #[path = "../../cli/src/history/reader.rs"]
    pub mod reader;
    #[path = "../../cli/src/history/stacks.rs"]
    pub mod stacks;
    #[path = "../../cli/src/history/timeline.rs"]
    pub mod timeline;
}

use history::layout::{HEADER_BYTES, MOST_FRAMES, STACK_BYTES, TEXT_BYTES};
use history::reader::parse;
use history::timeline::follow;

/// A history with events of most kinds, and with backtraces.
fn whole() -> Vec<u8> {
    let mut made = made::Made::new("train");
    made.stack = made.backtrace(&[0x1010, 0x2010], &[(1, 7)]);
    made.pool(1, 0, "bfc", &["weights", "cache"]);
    for number in 0..40 {
        let address = 0x10_0000 + number * 0x1000;
        let chunk = made::Chunk { address, bytes: 256 * (number + 1), operation: (number % 3) as u32 };
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
    if let Ok(history) = parse(&file) {
        assert!(history.events.len() <= 1024);
        let named = history.events.iter().map(|event| history.frames(event.stack).len());
        // Native ones and Python's, and one that says that there are more.
        assert!(named.max() <= Some(2 * MOST_FRAMES + 1));
        let mut states = 0;
        follow(&history, |_, _| states += 1);
        assert_eq!(states, history.events.len());
    }
});
