//! What the bfc command says of itself, as a page; and which options it has.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use crate::workspace::{Workspace, capture};

/// The command without a word, and its subcommands.
const SUBCOMMANDS: [&str; 5] = ["", "run", "report", "replay", "info"];

/// `bfc --help` and that of each subcommand.
pub fn page(workspace: &Workspace, command: &Path) -> Result<String> {
    let mut page = String::from(
        "# The bfc command\n\nWhat it says of itself. [run.md](run.md) tells more about `bfc run`, and\n[trace-format.md](trace-format.md) what `bfc replay` reads.\n",
    );
    for subcommand in SUBCOMMANDS {
        let name = format!("bfc {subcommand}");
        let _ = write!(
            page,
            "\n## {}\n\n```text\n{}```\n",
            name.trim_end(),
            help(workspace, command, subcommand)?
        );
    }
    Ok(page)
}

/// The long options of a subcommand.
pub fn options(workspace: &Workspace, command: &Path, subcommand: &str) -> Result<Vec<String>> {
    Ok(of_help(&help(workspace, command, subcommand)?))
}

fn help(workspace: &Workspace, command: &Path, subcommand: &str) -> Result<String> {
    let mut command = workspace.command(command);
    command.args(Some(subcommand).filter(|word| !word.is_empty())).arg("--help");
    capture(&mut command)
}

/// The options that a help has lines for.
pub fn of_help(help: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in help.lines().map(str::trim_start) {
        let line = match line.split_once(", ") {
            Some((short, rest)) if short.len() == 2 && short.starts_with('-') => rest,
            _ => line,
        };
        if let Some(rest) = line.strip_prefix("--") {
            let end = rest
                .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
                .unwrap_or(rest.len());
            found.push(format!("--{}", &rest[..end]));
        }
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::of_help;

    #[test]
    fn options_are_read_from_a_help() {
        let help = "Usage: bfc [OPTIONS]\n\n      --report[=<FILE>]\n          or --no option\n  -h, --help\n      --min <N>  x";
        assert_eq!(of_help(help), ["--report", "--help", "--min"]);
    }
}
