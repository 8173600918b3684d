//! The file of `bfc run --report=FILE`, damaged: the reader of `bfc report` refuses it for a reason, or returns each record before the damage.

#![no_main]

use bfc_formats::counters::MAGIC;
use bfc_readers::counters::{BYTES, read};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // Records without their first bytes, which no fuzzer would come up with: each input is two of them.
    let mut file = Vec::new();
    let (first, second) = input.split_at(input.len() / 2);
    for record in [first, second] {
        file.extend(MAGIC);
        file.extend(record);
        // One input in a few is cut off.
        if input.first().is_none_or(|byte| byte & 7 != 0) {
            file.resize(file.len().next_multiple_of(BYTES), 0);
        }
    }
    let (records, damage) = read(&file[..]).expect("a buffer can be read");
    let whole = file.len() / BYTES;
    assert!(records.len() <= whole && (damage.is_some() || records.len() == whole));
});
