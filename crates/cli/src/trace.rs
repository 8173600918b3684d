//! Reading the traces that a user names, with a progress bar.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use bfc_readers::trace::Trace;

use crate::output::{self, progress};

/// Reads a trace file, with a progress bar unless `is_quiet`; `-` is standard input.
pub fn read(path: &Path, is_quiet: bool) -> Result<Trace> {
    if path.as_os_str() == "-" {
        return from_source("standard input", io::stdin().lock(), None, is_quiet);
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    // A pipe has no length.
    let length = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
    from_source(&name, file, length, is_quiet)
}

fn from_source(name: &str, input: impl Read, length: Option<u64>, is_quiet: bool) -> Result<Trace> {
    let template = match length {
        Some(_) => "{msg} {wide_bar} {percent:>3}% {eta}",
        None => "{msg} ({binary_bytes})",
    };
    let bar = progress(is_quiet, length, template);
    output::show(&bar, &format!("reading {name}"));
    let trace = Trace::from_reader(name, bar.wrap_read(input));
    bar.finish_and_clear();
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read(Path::new("/nonexistent/x.trace"), true).expect_err("no file");
        assert!(format!("{error:#}").starts_with("cannot open /nonexistent/x.trace: "), "{error:#}");
    }
}
