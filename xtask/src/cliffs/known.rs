//! benches/cliffs/known.txt: programs with what their worst calls take, one a line.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::program::Program;
use crate::files;
use crate::workspace::Workspace;

/// Chunks at which the figures of the file are measured.
pub const SCALE: u64 = 10_000;

/// A kind of call may take one instruction for each chunk, and 10,000 in a small pool.
pub fn bound(scale: u64) -> u64 {
    scale.max(SCALE)
}

/// A line: the worst call of a kind in a program.
pub struct Row {
    pub kind: String,
    pub instructions: u64,
    pub program: Program,
    /// What of the program is to be seen, or why it costs so much.
    pub why: String,
}

/// The file: its comments at the top, and its rows.
pub struct Known {
    pub head: String,
    pub rows: Vec<Row>,
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.path("benches/cliffs/known.txt")
}

impl Known {
    pub fn read(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        Self::parse(&files::read(&path)?).with_context(|| format!("in {}", path.display()))
    }

    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        files::write(&path(workspace), self.text())
    }

    /// The most that a kind of call is known to take; 0 if it has no row.
    pub fn most(&self, kind: &str) -> u64 {
        let of_kind = self.rows.iter().filter(|row| row.kind == kind);
        of_kind.map(|row| row.instructions).max().unwrap_or_default()
    }

    fn parse(text: &str) -> Result<Self> {
        let is_row = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let head = text.lines().take_while(|line| !is_row(line)).map(|line| format!("{line}\n")).collect();
        let rows = text.lines().filter(is_row).map(|line| Row::parse(line).with_context(|| line.to_owned()));
        Ok(Self { head, rows: rows.collect::<Result<_>>()? })
    }

    fn text(&self) -> String {
        let mut text = self.head.clone();
        for Row { kind, instructions, program, why } in &self.rows {
            let _ = writeln!(text, "{instructions} | {kind} | {program} | {why}");
        }
        text
    }
}

impl Row {
    fn parse(line: &str) -> Result<Self> {
        let columns: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
        let [instructions, kind, program, why] =
            columns.try_into().ok().context("not four columns, with | between them")?;
        let instructions = instructions.parse().context("the first column is no number")?;
        Ok(Self {
            kind: kind.to_owned(),
            instructions,
            program: Program::parse(program)?,
            why: why.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_as_it_was_read() {
        let text = "# What it is.\n\n12 | alloc | ; alloc k=1 | one\n10001 | free streams | split; trim | all | of it\n";
        let known = Known::parse(text).expect("a good file");
        assert_eq!(known.text(), text);
        assert_eq!(known.rows[1].why, "all | of it");
        assert_eq!(["free streams", "alloc", "trim"].map(|kind| known.most(kind)), [10_001, 12, 0]);
        assert!(Known::parse("12 | alloc | ; alloc k=1\n").is_err());
        assert!(Known::parse("dear | alloc | ; alloc k=1 | one\n").is_err());
        assert!(Known::parse("12 | alloc | ; jump | one\n").is_err());
    }
}
