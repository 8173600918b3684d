//! Writing a history to a file: the extension chooses the format.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};

use super::summary::Summary;
use super::{memory_viz, page, perfetto, picture};
use crate::new_file;
use bfc_readers::history::reader::History;

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
}

impl Format {
    /// The extensions in lower case, without the dot.
    pub(super) const EXTENSIONS: [(&str, Format); 5] = [
        ("html", Format::Page),
        ("json", Format::Json),
        ("svg", Format::Svg),
        ("pickle", Format::MemoryViz),
        ("perfetto-trace", Format::Perfetto),
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

    /// Writes a history to a file, as [`new_file::write`] does.
    pub fn write(self, history: &History, summary: &Summary, path: &Path) -> Result<()> {
        new_file::write(path, |out| self.write_to(history, summary, out))
    }

    pub(super) fn write_to(self, history: &History, summary: &Summary, out: &mut dyn Write) -> Result<()> {
        match self {
            Format::Page => page::write(history, summary, out)?,
            Format::Svg => out.write_all(picture::svg(history)?.as_bytes())?,
            Format::MemoryViz => memory_viz::write(history, out)?,
            Format::Perfetto => perfetto::write(history, out)?,
            Format::Json => crate::output::write_json(out, summary)?,
        }
        Ok(())
    }
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
