//! `cargo xtask bench`: speed and host memory, beside TensorFlow's own allocator.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use crate::cargo::{self, Profile};
use crate::cliffs;
use crate::driver_calls;
use crate::files;
use crate::install;
use crate::instructions;
use crate::interposer;
use crate::peers;
use crate::remap_overhead;
use crate::targets;
use crate::tensorflow;
use crate::workspace::Workspace;

/// The name of the comparison of locks, which is not the C++ program's.
const LOCKS: &str = "locks";

/// What `cargo xtask bench` takes.
#[derive(Args)]
pub struct Bench {
    /// Measure only this; may be repeated: first_allocation, host_memory, traces, random_sizes,
    /// same_size, threads (both allocators: throughput and latencies), streams (against the plain calls), waste (the least limits of the
    /// traces on HOST_VMM), preload (the interposer, on the simulated driver), driver_calls (of frees and requests on
    /// streams, on the simulated driver), instructions (of a pair, by callgrind), cliffs (the worst call of each kind), peers
    /// (other allocators: table and charts in target/bench/peers), locks (kinds of locks)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Write the figures of both allocators to FILE [default: bench/figures.json in target/]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End with an error if one of the targets in the closing table is missed. Times are noisy: on a
    /// machine that does other things meanwhile a target may be missed by chance. What cannot be measured,
    /// such as a ratio without TensorFlow, is not missed
    #[arg(long)]
    check: bool,
    /// Fewer sizes and rounds: to see that it runs, not to compare
    #[arg(long)]
    quick: bool,
}

impl Bench {
    /// Builds, measures, and prints tables.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let others = [
            LOCKS,
            peers::SECTION,
            remap_overhead::SECTION,
            interposer::SECTION,
            driver_calls::SECTION,
            instructions::SECTION,
            cliffs::SECTION,
        ];
        let sections = self.only.iter().map(String::as_str).filter(|name| !others.contains(name));
        let sections: Vec<&str> = sections.collect();
        let wanted = |section: &str| self.only.is_empty() || self.only.iter().any(|name| name == section);
        let locks = wanted(LOCKS);
        // Before anything is measured for minutes.
        let without_figures = [LOCKS, peers::SECTION];
        let has_figures =
            self.only.is_empty() || self.only.iter().any(|name| !without_figures.contains(&&**name));
        if !has_figures && (self.json.is_some() || self.check) {
            bail!(
                "--json and --check are about the allocators' figures, and {} give none",
                without_figures.join(" and ")
            );
        }
        let mut figures = None;
        if self.only.is_empty() || !sections.is_empty() {
            figures = Some(self.allocators(workspace, &sections)?);
        }
        if wanted(remap_overhead::SECTION) {
            figures = Some(self.further(workspace, figures, |prefix| {
                let rows = remap_overhead::measure(workspace, prefix)?;
                print!("\n{}", remap_overhead::table(&rows));
                Ok(rows)
            })?);
        }
        if wanted(interposer::SECTION) {
            figures = Some(self.further(workspace, figures, |prefix| {
                let rows = interposer::measure(workspace, prefix, &traces(workspace)?)?;
                print!("{}", interposer::table(&rows));
                Ok(rows)
            })?);
        }
        if wanted(driver_calls::SECTION) {
            figures = Some(self.further(workspace, figures, |prefix| {
                let rows = driver_calls::measure(workspace, prefix)?;
                print!("{}", driver_calls::table(&rows));
                Ok(rows)
            })?);
        }
        if wanted(instructions::SECTION) {
            figures = Some(self.further(workspace, figures, |prefix| {
                let rows = instructions::measure(workspace, prefix)?;
                print!("{}", instructions::table(&rows));
                Ok(rows)
            })?);
        }
        if wanted(cliffs::SECTION) {
            figures = Some(self.further(workspace, figures, |prefix| {
                let rows = cliffs::measure(workspace, prefix)?;
                print!("{}", cliffs::table(&rows));
                Ok(rows)
            })?);
        }
        if wanted(peers::SECTION) {
            println!("\nBuilding libbfc (release), and other allocators");
            let prefix = prefix(workspace);
            install::install(workspace, &prefix, Profile::Release)?;
            peers::measure(workspace, &prefix, self.quick)?;
        }
        if locks {
            compare_locks(workspace)?;
        }
        // At the very end, where it is seen.
        let Some(figures) = figures else {
            return Ok(());
        };
        let targets = targets::judge(&figures);
        print!("\n{}", targets::table(&targets));
        let missed = targets.iter().filter(|target| target.met == Some(false)).count();
        if self.check && missed > 0 {
            bail!("targets that were missed: {missed}");
        }
        Ok(())
    }

    /// Builds and runs the C++ program; the figures it wrote.
    fn allocators(&self, workspace: &Workspace, sections: &[&str]) -> Result<Value> {
        println!("Building libbfc (release)");
        let prefix = prefix(workspace);
        install::install(workspace, &prefix, Profile::Release)?;

        let tensorflow = tensorflow::find(workspace);
        if let Err(error) = &tensorflow {
            println!("TensorFlow cannot be had, so libbfc is measured alone. Why: {error:#}\n");
        }
        println!("Building ffi-tests/tensorflow/bench");
        let tensorflow = tensorflow.ok();
        let program = tensorflow::compile(workspace, &prefix, tensorflow.as_deref())?;

        let mut command = tensorflow::command(workspace, &program);
        let file = self.file(workspace)?;
        // An older one must not be taken for what is measured now.
        files::remove(&file)?;
        command.arg("--json").arg(&file);
        if self.quick {
            command.arg("--quick");
        }
        for section in sections {
            command.args(["--only", section]);
        }
        command.args(traces(workspace)?);
        println!("Measuring; leave the machine alone meanwhile\n");
        let status = command.status().context("cannot start the bench program")?;
        if !status.success() {
            bail!("the bench program: {status}; it says why above");
        }
        println!("\nThe figures are in {}", file.display());
        let figures = files::read(&file)?;
        serde_json::from_str(&figures).with_context(|| format!("{} is no JSON", file.display()))
    }

    /// Where the figures are written.
    fn file(&self, workspace: &Workspace) -> Result<PathBuf> {
        match &self.json {
            Some(file) => Ok(std::path::absolute(file)?),
            None => Ok(workspace.target.join("bench/figures.json")),
        }
    }

    /// The figures with those of another section, in the file too.
    fn further(
        &self,
        workspace: &Workspace,
        figures: Option<Value>,
        measure: impl FnOnce(&Path) -> Result<Vec<Value>>,
    ) -> Result<Value> {
        let prefix = prefix(workspace);
        let mut figures = match figures {
            Some(figures) => figures,
            None => {
                println!("Building libbfc (release)");
                install::install(workspace, &prefix, Profile::Release)?;
                json!({"results": []})
            }
        };
        let rows = measure(&prefix)?;
        figures["results"].as_array_mut().context("the figures have no results")?.extend(rows);
        files::write(&self.file(workspace)?, &serde_json::to_string_pretty(&figures)?)?;
        Ok(figures)
    }
}

fn prefix(workspace: &Workspace) -> PathBuf {
    workspace.target.join("bench/prefix")
}

/// The recorded traces, decompressed: the C++ program does without a library for that.
fn traces(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut unpacked = Vec::new();
    for packed in files::below(&workspace.path("tests/traces"), "gz")? {
        let name = packed.file_stem().unwrap_or_default();
        let path = workspace.target.join("bench/traces").join(name);
        unpack(&packed, &path).with_context(|| format!("cannot unpack {}", packed.display()))?;
        unpacked.push(path);
    }
    if unpacked.is_empty() {
        bail!("tests/traces holds no trace");
    }
    Ok(unpacked)
}

fn unpack(packed: &Path, path: &Path) -> Result<()> {
    let mut from = MultiGzDecoder::new(File::open(packed)?);
    files::write(path, "")?;
    io::copy(&mut from, &mut File::create(path)?)?;
    Ok(())
}

/// A benchmark of cargo's; which lock is the right one depends on the machine.
fn compare_locks(workspace: &Workspace) -> Result<()> {
    if !workspace.path("benches/locks.rs").exists() {
        println!("\nbenches/locks.rs is not there: the locks are not compared");
        return Ok(());
    }
    println!("\nComparing locks");
    let status = cargo::cargo(workspace, &["bench", "--package=libbfc", "--bench=locks"])
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo bench --bench locks: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    #[test]
    fn a_trace_is_unpacked_and_a_broken_one_is_an_error() {
        let folder = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let (packed, path) = (folder.join("x.trace.gz"), folder.join("x.trace"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"+ 1 256 0\n- 1 0\n").expect("in memory");
        let bytes = encoder.finish().expect("in memory");
        files::write(&packed, &bytes).expect("writable");
        unpack(&packed, &path).expect("a good file");
        assert_eq!(files::read(&path).expect("text"), "+ 1 256 0\n- 1 0\n");
        files::write(&packed, &bytes[..bytes.len() - 6]).expect("writable");
        assert!(unpack(&packed, &path).is_err());
        files::remove_all(&folder).expect("removed");
    }
}
