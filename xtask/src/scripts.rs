//! Commands in Python: scripts in ffi-tests, with the installed library and the simulated driver.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::cargo::{self, Profile};
use crate::workspace::{Workspace, succeed};
use crate::{files, install, simcuda};

pub const BUDGET: &str = "budget/budget.py";
pub const CLIFFS: &str = "cliffs/search.py";

/// What such a chore takes.
#[derive(Args)]
pub struct Script {
    /// Arguments of the script; `-- --help` lists them
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Script {
    pub fn run(&self, workspace: &Workspace, script: &str) -> Result<()> {
        let prefix = workspace.target.join("bench/prefix");
        install::install(workspace, &prefix, &cargo::build(workspace, Profile::Release)?)?;
        run(workspace, &prefix, script, &self.arguments)
    }
}

fn run(workspace: &Workspace, prefix: &Path, script: &str, arguments: &[String]) -> Result<()> {
    let folder = workspace.path("ffi-tests");
    let mut command = workspace.command("python3");
    command.arg(folder.join(script)).args(arguments).env("PYTHONPATH", folder);
    command.env("LIBBFC_TESTS_PREFIX", prefix).env("LIBBFC_TESTS_SCRATCH", workspace.target.join("tests"));
    command.env("LIBBFC_TESTS_SIMULATION", simcuda::build_driver(workspace)?);
    succeed(command)
}

/// Runs a section of the benchmark, which prints its own table. Returns its rows, or nothing if it needs valgrind and
/// that is missing.
pub fn measure(workspace: &Workspace, prefix: &Path, section: &str) -> Result<Vec<Value>> {
    let file = workspace.target.join("bench").join(section).with_extension("json");
    let path = file.display().to_string();
    let (script, arguments) = match section {
        "cliffs" => (CLIFFS, vec!["--benchmark".to_owned(), path]),
        "instructions" => ("budget/pairs.py", vec![path]),
        _ => ("bench/sections.py", vec![section.to_owned(), path]),
    };
    if !script.starts_with("bench") && files::program("valgrind").is_none() {
        println!("There is no valgrind: the section {section} is left out");
        return Ok(Vec::new());
    }
    files::write(&file, "")?;
    run(workspace, prefix, script, &arguments)?;
    Ok(serde_json::from_str(&files::read(&file)?)?)
}
