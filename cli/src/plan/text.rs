//! The text of a plan (docs/plan-format.md), written so that a reader never sees half of it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

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

/// Writes a file beside the one wanted and renames it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = File::create(&beside)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Of what could not be written nothing stays.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}
