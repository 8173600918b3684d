//! `bfc report` of a history: what the library recorded by `BFC_HISTORY_FILE` or `bfc_history_start`.

mod holders;
#[path = "../../../src/history/layout.rs"]
#[allow(dead_code)] // The library's part of it.
mod layout;
mod reader;
mod stacks;
mod summary;
mod timeline;

use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::output::Output;
use crate::process::{self, Liveness};
use summary::Summary;

/// Larger files are no history.
const MOST_BYTES: u64 = 20 << 30;

/// Returns whether a file begins as a history does.
pub fn is_one(path: &Path) -> bool {
    let mut begin = [0; reader::FAMILY.len()];
    fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == *reader::FAMILY)
}

/// Returns the process that records into a history, if it runs.
pub fn running(path: &Path) -> Option<u32> {
    let mut head = Vec::new();
    fs::File::open(path).ok()?.take(layout::HEADER_BYTES as u64).read_to_end(&mut head).ok()?;
    let (process, started) = reader::writer(&head)?;
    (process::liveness(process, started) == Liveness::Running).then_some(process)
}

/// Prints what a history says.
pub fn report(path: &Path, as_json: bool, output: &mut Output) -> Result<()> {
    let name = path.display();
    let bytes = fs::metadata(path).with_context(|| format!("cannot open {name}"))?.len();
    if bytes > MOST_BYTES {
        bail!("{name} has {bytes} bytes, more than any history");
    }
    let file = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let history = match reader::parse(&file) {
        Ok(history) => history,
        Err(why) => bail!("{name} {why}"),
    };
    drop(file);
    let summary = Summary::new(&history, process::liveness(history.process, history.started));
    if as_json {
        let mut text = serde_json::to_string_pretty(&summary).context("cannot write JSON")?;
        text.push('\n');
        return output.write(&text);
    }
    output.write(&summary.text())
}
