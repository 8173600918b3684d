//! `cargo xtask bench`: speed and host memory, beside TensorFlow's own allocator.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::cargo::{self, Profile};
use crate::cpu;
use crate::files;
use crate::install;
use crate::peers;
use crate::scripts;
use crate::targets;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, succeed};

/// The sections that are scripts and print their own tables.
const SCRIPTS: [&str; 5] = ["waste", "preload", "driver_calls", "instructions", "cliffs"];

/// The folder of the C++ program, which measures the other sections, and of the suite with TensorFlow's package.
const TENSORFLOW: &str = "ffi-tests/tensorflow";

/// The sections that produce no figures.
const PEERS: &str = "peers";
const LOCKS: &str = "locks";
/// The section that is measured only by name, because it takes an hour and fetches PyTorch.
const CPU: &str = "cpu";

/// The arguments of `cargo xtask bench`.
#[derive(Args)]
pub struct Bench {
    /// Measure only this; may be repeated: first_allocation, host_memory, traces, random_sizes,
    /// same_size, threads (both allocators: throughput and latencies), streams (against the plain calls), waste (the lowest limits of the
    /// traces on HOST_VMM), preload (the interposer, on the simulated driver), driver_calls (of frees and requests on
    /// streams, on the simulated driver), instructions (of a pair, by callgrind), cliffs (the worst call of each kind), peers
    /// (other allocators: table and charts in target/bench/peers), locks (kinds of locks). By name only: cpu (real programs
    /// of PyTorch, NumPy and Arrow with several allocators: tables in target/bench/cpu; an hour)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Write the figures of both allocators to FILE [default: bench/figures.json in target/]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a target in the closing table is missed. Times are noisy: on a busy machine a target may be
    /// missed by chance. A target that cannot be measured, such as a ratio without TensorFlow, does not count
    #[arg(long)]
    check: bool,
    /// Fewer sizes and rounds: a check that it runs, not for comparisons
    #[arg(long)]
    quick: bool,
}

impl Bench {
    /// Builds, measures, and prints tables.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let all = self.only.is_empty();
        let wanted = |section: &str| all || self.only.iter().any(|name| name == section);
        let no_figures = |name: &String| [PEERS, LOCKS, CPU].contains(&name.as_str());
        let has_figures = all || !self.only.iter().all(no_figures);
        // Before minutes of measurements.
        ensure!(
            has_figures || (self.json.is_none() && !self.check),
            "--json and --check are about the allocators' figures, and {PEERS}, {LOCKS} and {CPU} give none"
        );
        let is_other = |name: &String| no_figures(name) || SCRIPTS.contains(&name.as_str());
        let of_program: Vec<&String> = self.only.iter().filter(|name| !is_other(name)).collect();

        println!("Building libbfc (release)");
        let prefix = workspace.target.join("bench/prefix");
        install::install(workspace, &prefix, &cargo::build(workspace, Profile::Release)?)?;
        let mut figures = json!({"results": []});
        if all || !of_program.is_empty() {
            figures = self.allocators(workspace, &prefix, &of_program)?;
        }
        for section in SCRIPTS.into_iter().filter(|section| wanted(section)) {
            let rows = scripts::measure(workspace, &prefix, section)?;
            figures["results"].as_array_mut().context("the figures have no results")?.extend(rows);
            files::write(&self.file(workspace)?, serde_json::to_string_pretty(&figures)?)?;
        }
        if wanted(PEERS) {
            peers::measure(workspace, &prefix, self.quick)?;
        }
        if wanted(LOCKS) {
            println!("\nComparing locks");
            let locks = cargo::cargo(workspace, &["bench", "--package=libbfc", "--bench=locks"]);
            succeed(locks)?;
        }
        if self.only.iter().any(|name| name == CPU) {
            cpu::measure(workspace, &prefix, self.quick)?;
        }
        if !has_figures {
            return Ok(());
        }
        // At the very end, where it is noticed.
        let targets = targets::judge(&figures);
        print!("\n{}", targets::table(&targets));
        let missed = targets.iter().filter(|target| target.met == Some(false)).count();
        ensure!(!self.check || missed == 0, "targets that were missed: {missed}");
        Ok(())
    }

    /// Builds and runs the C++ program. Returns the figures that it wrote.
    fn allocators(&self, workspace: &Workspace, prefix: &Path, sections: &[&String]) -> Result<Value> {
        println!("Building {TENSORFLOW}/bench");
        let mut command = workspace.command(program(workspace, prefix)?);
        // TensorFlow prints messages before `main` is reached, so it has to be silenced from outside.
        command.env("TF_CPP_MIN_LOG_LEVEL", "3").env("TF_ENABLE_ONEDNN_OPTS", "0");
        let file = self.file(workspace)?;
        // An older file must not be taken for the current figures.
        files::remove(&file)?;
        command.arg("--json").arg(&file);
        command.args(self.quick.then_some("--quick"));
        for section in sections {
            command.args(["--only", section]);
        }
        command.args(traces(workspace)?);
        println!("Measuring; leave the machine alone meanwhile\n");
        succeed(command)?;
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
}

/// Compiles the C++ program with TensorFlow's own allocator, from the headers and the library in its wheel on PyPI.
/// Without the wheel the program measures libbfc alone.
fn program(workspace: &Workspace, prefix: &Path) -> Result<PathBuf> {
    let mut sources = files::below(&workspace.path(TENSORFLOW), "cc")?;
    sources
        .retain(|source| source.file_stem().is_some_and(|name| name.to_string_lossy().starts_with("bench")));
    let package = uv::packages(workspace, TENSORFLOW).map(|packages| packages.join("tensorflow"));
    let lib = prefix.join("lib");
    let mut libraries = vec![(&*lib, "libbfc.so")];
    let (define, others) = match &package {
        Ok(package) => {
            libraries.push((package, "libtensorflow_framework.so.2"));
            ("-D_GLIBCXX_USE_CXX11_ABI=1", vec![package.join("include")])
        }
        Err(why) => {
            println!("TensorFlow is unavailable, so only libbfc is measured: {why:#}\n");
            ("-DBFC_WITHOUT_TENSORFLOW", vec![])
        }
    };
    let mut command = tools::compiler_of(workspace, "c++17", &prefix.join("include"), &others);
    command.arg(define);
    let program = workspace.target.join("bench/allocators");
    tools::compile(workspace, command, &sources, &libraries, &program)?;
    Ok(program)
}

/// The recorded traces, decompressed, because the C++ program has no library for that.
fn traces(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut unpacked = Vec::new();
    for packed in files::below(&workspace.path("tests/traces"), "gz")? {
        let path = workspace.target.join("bench/traces").join(packed.file_stem().unwrap_or_default());
        files::write(&path, "")?;
        let mut gzip = workspace.command("gzip");
        gzip.args(["--decompress", "--stdout"]).arg(&packed).stdout(File::create(&path)?);
        succeed(gzip)?;
        unpacked.push(path);
    }
    ensure!(!unpacked.is_empty(), "tests/traces holds no trace");
    Ok(unpacked)
}
