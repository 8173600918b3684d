//! golden.tsv: what TensorFlow's own allocator did with the recorded traces.

use std::path::Path;

use anyhow::{Result, bail};

use crate::files;

/// One trace in one mode.
#[derive(Debug, PartialEq)]
pub struct Golden {
    /// The trace's name.
    pub trace: String,
    /// What it was run with, see `flags` and `mode_in_words`.
    pub mode: String,
    /// The pool's limit in bytes.
    pub limit: String,
    /// The simulated device's capacity in bytes.
    pub capacity: String,
    /// The hash of all addresses, in hexadecimal digits.
    pub hash: String,
    /// Requests that failed.
    pub failed: u64,
}

/// The table's rows.
pub fn read(path: &Path) -> Result<Vec<Golden>> {
    let text = files::read(path)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(Golden::parse).collect()
}

impl Golden {
    fn parse(line: &str) -> Result<Self> {
        let columns: Vec<&str> = line.split('\t').collect();
        let [trace, mode, limit, capacity, hash, failed, ..] = columns[..] else {
            bail!("golden.tsv has a short row: {line}");
        };
        Ok(Self {
            trace: trace.to_owned(),
            mode: mode.to_owned(),
            limit: limit.to_owned(),
            capacity: capacity.to_owned(),
            hash: hash.to_owned(),
            failed: failed.parse()?,
        })
    }

    /// The options of `bfc replay` for the mode.
    pub fn flags(&self) -> Result<&'static [&'static str]> {
        Ok(match &*self.mode {
            "fixed" | "tight" => &[],
            "growth" => &["--growth"],
            "growth_gc" | "backpedal" => &["--growth", "--gc"],
            other => bail!("golden.tsv has a mode {other} that xtask does not know"),
        })
    }

    /// The mode, for a reader who has not seen it before.
    pub fn mode_in_words(&self) -> &'static str {
        match &*self.mode {
            "fixed" => "one region, roomy",
            "tight" => "one region, too small for all",
            "growth" => "regions on demand",
            "growth_gc" => "on demand, empty ones given back",
            "backpedal" => "on demand, a device nearly full",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_and_a_short_one_refused() {
        let row = Golden::parse("vit\tgrowth\t10\t20\tabc\t3\t7\t0").expect("a row");
        assert_eq!((&*row.trace, &*row.hash, row.failed), ("vit", "abc", 3));
        assert_eq!(row.flags().expect("a mode"), ["--growth"]);
        assert!(Golden::parse("vit\tgrowth\t10").is_err());
        assert!(Golden { mode: "new".into(), ..row }.flags().is_err());
    }
}
