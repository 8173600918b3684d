//! Traces from bytes, plain and gzipped: the parser of `bfc replay` and `bfc plan` refuses them for a reason, or what it reads
//! agrees with itself.

#![no_main]

use bfc_readers::trace::Trace;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(trace) = Trace::from_reader("fuzz", input) {
        // Each event is a line of its own.
        assert!(
            trace.incomplete.is_some()
                || input.starts_with(&[0x1f, 0x8b])
                || trace.events.len() <= input.len()
        );
        assert!(trace.chunks().iter().all(|chunk| chunk.end <= trace.events.len()));
    }
});
