//! The text of a plan (docs/plan-format.md).

use std::fmt::Write;

use super::packing::Packing;
use super::program::Program;
use crate::replay::fnv1a64;

/// The text of a plan with its checksum.
pub fn text(program: &Program, packing: &Packing, alignment: u64) -> String {
    let prologue = program.repeated_from;
    let repeated = program.requests.len() - prologue;
    let bytes = packing.bytes;
    let mut text = format!(
        "bfc-plan 1\nalignment {alignment}\nbytes {bytes}\nprologue {prologue}\nrepeated {repeated}\n"
    );
    for &(size, item) in &program.requests {
        // Writing to a string does not fail.
        let _ = match item {
            Some(item) => writeln!(text, "{size} {}", packing.offsets[item]),
            None => writeln!(text, "{size} -"),
        };
    }
    let _ = writeln!(text, "checksum {:016x}", fnv1a64(text.bytes()));
    text
}
