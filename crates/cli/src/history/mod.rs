//! `bfc report` of a history: what the library recorded by `BFC_HISTORY_FILE` or `bfc_history_start`.

mod advice;
#[cfg(test)]
mod damage;
pub mod diff;
mod format;
mod holders;
mod leaks;
mod memory_viz;
mod moment;
mod page;
mod perfetto;
mod picture;
#[cfg(test)]
mod samples;
mod snapshot;
mod summary;
mod symbols;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bfc_formats::history::layout;
use bfc_readers::history::reader::{self, History};
use bfc_readers::history::source::Source;
use bfc_readers::process::{self, Liveness};
use indicatif::ProgressBar;

use crate::library::Library;
use crate::output::{self, Output, progress};
use format::Format;
use leaks::Leaks;
use summary::Summary;

pub use leaks::LeaksArgs;
pub use moment::FORMS as MOMENTS;

/// Returns whether a file begins like a history.
pub fn is_one(path: &Path) -> bool {
    let mut begin = [0; reader::FAMILY.len()];
    fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == *reader::FAMILY)
}

/// Returns whether a file is a history of the version that this command reads.
pub fn is_readable(path: &Path) -> bool {
    let mut begin = [0; layout::MAGIC.len()];
    fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == layout::MAGIC)
}

/// Returns the process that records into a history, if it runs.
pub fn running(path: &Path) -> Option<u32> {
    let mut head = Vec::new();
    fs::File::open(path).ok()?.take(layout::HEADER_BYTES as u64).read_to_end(&mut head).ok()?;
    let (process, started) = reader::writer(&head)?;
    (process::liveness(process, started) == Liveness::Running).then_some(process)
}

/// Reads a history.
fn read(path: &Path) -> Result<History> {
    let name = path.display();
    let file = fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
    // Most of a ring may be a hole in the file.
    let bytes = file.metadata().map(|about| about.blocks() * 512).ok();
    let bar = progress(false, bytes, "{msg} {wide_bar} {percent:>3}% {eta}");
    output::show(&bar, &format!("reading {name}"));
    let parsed = reader::parse(&Shown { file: &file, bar: &bar });
    bar.finish_and_clear();
    let mut history = parsed.map_err(|why| anyhow!("{name} {why}"))?;
    history.file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bar = progress(false, None, "{msg} ({pos})");
    bar.set_message("naming the frames of backtraces");
    symbols::resolve(&mut history, &bar);
    bar.finish_and_clear();
    Ok(history)
}

/// A file whose reading moves a progress bar.
struct Shown<'a> {
    file: &'a fs::File,
    bar: &'a ProgressBar,
}

impl Source for Shown<'_> {
    fn bytes(&self) -> io::Result<u64> {
        Source::bytes(self.file)
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.bar.inc(buffer.len() as u64);
        Source::read_at(self.file, at, buffer)
    }

    fn written(&self, from: u64) -> Option<(u64, u64)> {
        self.file.written(from)
    }
}

/// Returns whether two paths lead to the same file.
fn is_same(a: &Path, b: &Path) -> bool {
    let file = |path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    file(a).is_some() && file(a) == file(b)
}

/// What to make of a history.
pub struct Wanted<'a> {
    pub as_json: bool,
    /// The file to write, in the format that its extension names.
    pub to_file: Option<&'a Path>,
    /// The library to replay with, if advice is requested.
    pub advice_by: Option<&'a Library>,
}

/// Prints a history, or writes it to a file.
pub fn report(path: &Path, wanted: &Wanted<'_>, output: &mut Output) -> Result<()> {
    let format = wanted.to_file.map(|file| Format::of(file).map(|format| (format, file))).transpose()?;
    let history = read(path)?;
    let process = process::liveness(history.process, history.started);
    if let Some((_, file)) = format
        && is_same(path, file)
    {
        bail!("cannot write {}: it is the history itself; name another file", file.display());
    }
    let mut summary = Summary::new(&history, process);
    if let Some(library) = wanted.advice_by {
        let bar = progress(false, None, "{msg} {wide_bar} {pos}/{len}");
        bar.set_message("replaying the history");
        summary = summary.with_advice(advice::advise(&history, library, &bar)?);
    }
    if let Some((format, file)) = format {
        let bar = progress(false, None, "{msg} {elapsed}");
        output::show(&bar, &format!("writing {}", file.display()));
        // No measurement is running that a thread could disturb.
        bar.enable_steady_tick(Duration::from_millis(250));
        let written = format.write(&history, &summary, file);
        bar.finish_and_clear();
        return written;
    }
    if wanted.as_json { output.write_json(&summary) } else { output.write(&summary.text()) }
}

/// Prints what was allocated and not freed.
pub fn report_leaks(path: &Path, args: &LeaksArgs, as_json: bool, output: &mut Output) -> Result<()> {
    let leaks = Leaks::new(&read(path)?, args).with_context(|| path.display().to_string())?;
    if as_json { output.write_json(&leaks) } else { output.write(&leaks.text()) }
}

/// Returns what is live at the end of a history as text, and whether anything is. Returns nothing for a history that
/// began before `began`, in nanoseconds since 1970: it is another program's.
pub fn leaks_of(path: &Path, began: u64) -> Result<Option<(String, bool)>> {
    let history = read(path)?;
    if history.began < began {
        return Ok(None);
    }
    let leaks = Leaks::new(&history, &LeaksArgs::ALL).with_context(|| path.display().to_string())?;
    Ok(Some((leaks.text(), leaks.any())))
}
