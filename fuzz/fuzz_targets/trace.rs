//! Traces from bytes, plain and gzipped: the parser of `bfc replay` and `bfc plan` refuses them for a reason, or what it reads
//! agrees with itself.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bfc_cli::fuzzing::trace(input));
