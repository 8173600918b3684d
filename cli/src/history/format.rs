//! Writing a history to a file: the extension chooses the format.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::reader::History;
use super::summary::Summary;
use super::{memory_dump, memory_viz, page, perfetto, picture};

/// What `bfc report -o` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A page that a browser shows.
    Page,
    /// The summary, as `--json` prints it.
    Json,
    /// A picture of memory over time.
    Svg,
    /// A snapshot for PyTorch's memory viewer.
    MemoryViz,
    /// A trace for Perfetto.
    Perfetto,
    /// TensorFlow's memory dump.
    MemoryDump,
}

impl Format {
    /// The extensions in lower case, without the dot.
    const EXTENSIONS: [(&str, Format); 6] = [
        ("html", Format::Page),
        ("json", Format::Json),
        ("svg", Format::Svg),
        ("pickle", Format::MemoryViz),
        ("perfetto-trace", Format::Perfetto),
        ("memory-dump", Format::MemoryDump),
    ];

    /// Returns the format of a file by the extension of its name.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let found = Self::EXTENSIONS.iter().find(|(extension, _)| name.ends_with(&format!(".{extension}")));
        let Some(&(_, format)) = found else {
            let known: Vec<_> =
                Self::EXTENSIONS.iter().map(|(extension, _)| format!(".{extension}")).collect();
            bail!(
                "cannot write {}: the extension chooses the format and must be one of {}",
                path.display(),
                known.join(", ")
            );
        };
        Ok(format)
    }

    /// Writes a history to a file that only its owner may read. A file that is there is replaced once the new one is
    /// complete, and stays as it is after a failure.
    pub fn write(self, history: &History, summary: &Summary, path: &Path) -> Result<()> {
        let part = part_of(path);
        let written = create(&part).and_then(|file| {
            let mut out = BufWriter::new(file);
            self.write_to(history, summary, &mut out)?;
            out.flush()?;
            std::fs::rename(&part, path)?;
            Ok(())
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_to(self, history: &History, summary: &Summary, out: &mut dyn Write) -> Result<()> {
        match self {
            Format::Page => page::write(history, summary, out)?,
            Format::Svg => out.write_all(picture::svg(history)?.as_bytes())?,
            Format::MemoryViz => memory_viz::write(history, out)?,
            Format::Perfetto => perfetto::write(history, out)?,
            Format::MemoryDump => memory_dump::write(history, out)?,
            Format::Json => out.write_all(summary.json()?.as_bytes())?,
        }
        Ok(())
    }
}

/// The name of the unfinished file, in the same folder so that it can be renamed.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn create(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have taken more away.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_chooses_the_format() {
        assert_eq!(Format::of(Path::new("a/b.JSON")).ok(), Some(Format::Json));
        assert_eq!(Format::of(Path::new("report.html")).ok(), Some(Format::Page));
        for path in ["b", "json", "b.json/c", "b.doc", ".."] {
            let error = Format::of(Path::new(path)).expect_err(path).to_string();
            assert!(error.contains("must be one of .html, .json"), "{error}");
        }
    }
}
