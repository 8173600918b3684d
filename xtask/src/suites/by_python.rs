//! A page whose Python is one program, and what a program with libbfc must not say.

use std::process::Command;

use anyhow::Result;

use super::context::{Context, Count};
use crate::pages::owned::Owned;

/// Runs all of a page's Python.
pub fn run(context: &mut Context, page: &Owned, mut python: Command) -> Result<()> {
    python.arg(page.together("python")?).env("BFC_LOG", "warn");
    let name = format!("the Python of {}", page.page);
    let ended = context.program(&name, python, Count::One)?;
    context.gate(&format!("{name}: no complaint"), &complaints(&ended.text));
    if ended.success { page.ran_together("python") } else { Ok(()) }
}

/// What libbfc complains of on the standard error stream, with BFC_LOG=warn, and what Python swallows at its end.
pub fn complaints(said: &str) -> Vec<String> {
    const SIGNS: [&str; 4] =
        ["libbfc warn", "libbfc error", "libbfc: a tensor's memory", "Exception ignored"];
    let is_one = |line: &&str| SIGNS.iter().any(|sign| line.starts_with(sign));
    said.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_from_what_is_usual() {
        let said =
            "done\nlibbfc: can't allocate\nException ignored in: <x>\nlibbfc: a tensor's memory at 0x1: no\n";
        assert_eq!(complaints(said).len(), 2);
        // As src/log.rs writes them.
        let said = "libbfc error: device 0: x\nlibbfc warning: y\nlibbfc info: z\n";
        assert_eq!(complaints(said).len(), 2);
    }
}
