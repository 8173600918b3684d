//! Traces from bytes, plain and gzipped: the parser of `bfc replay` and `bfc plan` refuses them for a reason, or what it reads
//! agrees with itself.

#![no_main]

#[allow(dead_code)]
#[path = "../../crates/cli/src"]
mod command {
    pub mod trace;
}

/// What the parser needs of the command.
mod output {
    pub fn progress(_: bool, _: Option<u64>, _: &str) -> indicatif::ProgressBar {
        indicatif::ProgressBar::hidden()
    }

    pub fn show(_: &indicatif::ProgressBar, _: &str) {}
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(trace) = command::trace::Trace::from_reader("fuzz", input) {
        // Each event is a line of its own.
        assert!(
            trace.incomplete.is_some()
                || input.starts_with(&[0x1f, 0x8b])
                || trace.events.len() <= input.len()
        );
        assert!(trace.chunks().iter().all(|chunk| chunk.end <= trace.events.len()));
    }
});
