//! The file of `bfc run --report=FILE`, damaged: `bfc report` refuses it for a reason, or shows each record before the damage.

#![no_main]

#[allow(dead_code)]
#[path = "../../crates/cli/src/names.rs"]
mod names;
#[allow(dead_code)]
#[path = "../../crates/cli/src/process.rs"]
mod process;

#[allow(dead_code)]
#[path = "../../crates/cli/src/counters.rs"]
mod counters;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // Records without their first bytes, which no fuzzer would come up with: each input is two of them.
    let mut file = Vec::new();
    let (first, second) = input.split_at(input.len() / 2);
    for record in [first, second] {
        file.extend(counters::MAGIC);
        file.extend(record);
        // One input in a few is cut off.
        if input.first().is_none_or(|byte| byte & 7 != 0) {
            file.resize(file.len().next_multiple_of(counters::BYTES), 0);
        }
    }
    match counters::summaries(&*file, &"fuzz") {
        Err(error) => panic!("a buffer can be read: {error}"),
        Ok((summaries, end)) => {
            let whole = file.len() / counters::BYTES;
            assert!(summaries.len() <= whole && (end.is_err() || summaries.len() == whole));
            assert!(summaries.iter().all(|summary| summary.starts_with("process ")));
        }
    }
});
