//! The context of a suite: the workspace, what was built already, and the count of its tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::install;
use crate::progress::Progress;
use crate::simcuda;
use crate::tally::{self, Skip, Tally};
use crate::uv;
use crate::workspace::{Ended, Workspace, plainly, without};

/// How the tests of a program are counted.
#[derive(Clone, Copy)]
pub enum Count {
    /// The program is one test.
    One,
    /// It prints them as `cargo test` does.
    Cargo,
    /// It writes a report in JUnit's XML to the file that this option names.
    Junit(&'static str),
}

/// What tests in Python need from the checkout.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Needs {
    Nothing,
    /// An installed library.
    Prefix,
    /// The installed library, and the simulated driver and runtimes.
    Simulation,
}

/// What a suite runs in.
pub struct Context {
    /// The checkout.
    pub workspace: Workspace,
    /// The user's arguments for the tools that run tests.
    pub arguments: Vec<String>,
    /// The suite that runs.
    pub suite: &'static str,
    tally: Tally,
    prefix: Option<PathBuf>,
}

impl Context {
    /// Nothing has run yet.
    pub fn new(workspace: Workspace, arguments: Vec<String>) -> Self {
        Self { workspace, arguments, suite: "", tally: Tally::default(), prefix: None }
    }

    /// The results since the last time.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Whether nothing was counted since then.
    pub fn is_empty(&self) -> bool {
        self.tally == Tally::default()
    }

    /// The library, the interposer and the command.
    pub fn built(&self, profile: Profile) -> Result<Built> {
        let name = if profile == Profile::Debug { "debug" } else { "release" };
        println!("   building libbfc.so ({name})");
        cargo::build(&self.workspace, profile)
    }

    /// A folder in which the library is installed, from the release build.
    pub fn prefix(&mut self) -> Result<PathBuf> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix.clone());
        }
        let prefix = self.workspace.target.join("install-test/prefix");
        let built = self.built(Profile::Release)?;
        install::install(&self.workspace, &prefix, &built)?;
        Ok(self.prefix.insert(prefix).clone())
    }

    /// A command of cargo without the variables that control the library, because a test must not depend on the user's
    /// settings.
    pub fn cargo(&self, args: &[&str]) -> Command {
        self.plain(cargo::cargo(&self.workspace, args))
    }

    /// The same of any command.
    pub fn plain(&self, mut command: Command) -> Command {
        without(&mut command, &["BFC_"]);
        command
    }

    /// A program that is a test, or contains many.
    pub fn program(&mut self, name: &str, mut command: Command, count: Count) -> Result<Ended> {
        let report = self.workspace.log(name).with_extension("xml");
        if let Count::Junit(option) = count {
            files::remove(&report)?;
            command.arg(option).arg(&report);
        }
        let mut progress = Progress::begin(name, self.workspace.verbose);
        let start = Instant::now();
        let ended = self.workspace.run_watched(name, command, |line| {
            if let Some((passed, test)) = tally::ended(line.trim_end()) {
                progress.count(passed, test);
            } else if line.trim_start().starts_with("Compiling ") {
                progress.line(line.trim());
            }
        })?;
        let took = start.elapsed().as_secs_f64();
        let (mut tally, mut troubles) = match count {
            Count::One => (Tally::default(), String::new()),
            Count::Cargo => Tally::of_cargo(&ended.text),
            Count::Junit(_) if report.exists() => Tally::of_junit(&files::read(&report)?)?,
            Count::Junit(_) => (Tally::default(), String::new()),
        };
        // It may have failed outside of its tests: a compiler's error, a crash.
        if !ended.success && tally.failed.is_empty() {
            tally.failed.push(name.to_owned());
            troubles.clone_from(&ended.text);
        } else if matches!(count, Count::One) {
            tally.passed = 1;
            tally.seconds.push((name.to_owned(), took));
        } else if tally.passed + tally.failed.len() + tally.skipped.len() == 0 {
            tally.failed.push(format!("{name}: it ran no test"));
        }
        let skipped = match tally.skipped.len() {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        if tally.failed.is_empty() {
            progress.end(true, &format!("{} passed{skipped} ({took:.1} s)", tally.passed));
        } else {
            let (status, log) = (&ended.status, ended.log.display());
            progress.end(false, &format!("FAILED ({took:.1} s): {status}; all of it: {log}"));
            indent(&troubles);
        }
        self.tally.add(tally);
        Ok(ended)
    }

    /// The tests of a folder of ffi-tests, in its virtual environment in the user's cache. What they need from the
    /// checkout is built first, and passed to them by variables, together with `more`; see ffi-tests/conftest.py.
    pub fn pytest(&mut self, suite: &str, needs: Needs, more: &[(&str, &Path)]) -> Result<()> {
        let folder = self.workspace.path("ffi-tests").join(suite);
        let python = uv::environment(&self.workspace, &folder)?;
        let mut command = self.workspace.command(&python);
        plainly(&mut command);
        command.env(uv::CACHE, uv::cache()?).env("PATH", uv::path(&python)?);
        // A subfolder may need another version of the same packages.
        for inner in files::entries(&folder)?.iter().filter(|inner| inner.join("requirements.txt").exists()) {
            let name = inner.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let python = uv::environment(&self.workspace, inner)?;
            let environment = python.ancestors().nth(2).context("it is in bin")?;
            command.env(format!("LIBBFC_TESTS_ENV_{}", name.replace('-', "_")), environment);
        }
        command.env("LIBBFC_TESTS_SCRATCH", self.workspace.target.join("tests"));
        if needs >= Needs::Prefix {
            command.env("LIBBFC_TESTS_PREFIX", self.prefix()?);
        }
        if needs == Needs::Simulation {
            let simulation = simcuda::build(&self.workspace)?;
            command.env("LIBBFC_TESTS_SIMULATION", &simulation).env("LD_LIBRARY_PATH", simulation);
            command.env("SIMCUDA_DEVICES", "2");
        }
        command.envs(more.iter().copied());
        command.args("-m pytest -n 2 --dist loadgroup -v -rfEs --color=no".split(' '));
        command.arg(folder).args(&self.arguments);
        self.program(&format!("pytest {suite}"), command, Count::Junit("--junit-xml")).map(drop)
    }

    /// A test that consists of work which may fail.
    pub fn check(&mut self, name: &str, work: impl FnOnce(&Workspace) -> Result<()>) {
        let progress = Progress::begin(name, self.workspace.verbose);
        let start = Instant::now();
        match work(&self.workspace) {
            Ok(()) => {
                let seconds = start.elapsed().as_secs_f64();
                progress.end(true, &format!("ok ({seconds:.1} s)"));
                self.tally.seconds.push((name.to_owned(), seconds));
                self.tally.passed += 1;
            }
            Err(error) => {
                progress.end(false, "FAILED");
                indent(&format!("{error:#}"));
                self.tally.failed.push(name.to_owned());
            }
        }
    }

    /// Records a failure outside of any test.
    pub fn fail(&mut self, name: &str, why: &str) {
        println!("   {name}");
        indent(why);
        let line = why.lines().next().unwrap_or_default();
        self.tally.failed.push(format!("{name}: {line}"));
    }

    /// Records that something cannot run here. The summary at the end gives the reason.
    pub fn skip(&mut self, name: &str, why: &str) {
        let line = why.lines().next().unwrap_or_default();
        println!("   {name} ... skipped: {line}");
        self.tally.skipped.push(Skip::new(name, line));
    }
}

/// Prints the last lines of a text.
fn indent(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(120)..] {
        println!("     | {line}");
    }
}
