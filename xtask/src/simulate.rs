//! Running a program on the simulated CUDA driver, with libbfc and the bfc command of this checkout.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{self, Built, Profile};
use crate::workspace::{Workspace, capture, plainly};
use crate::{simcuda, uv};

#[derive(Args)]
pub struct Simulate {
    /// Run a Python script with PyTorch: with PyTorch 2.15 of the tests' environment (600 MB, fetched once), the package
    /// bfc of this checkout, and stubs of NVIDIA's other libraries. Kernels compute nothing, so losses have no meaning
    #[arg(long)]
    pytorch: bool,
    /// With --pytorch: another interpreter, such as venv/bin/python. It needs PyTorch 2.15.0, which `pip install --no-deps`
    /// installs without NVIDIA's libraries, and the package bfc
    #[arg(long, value_name = "PYTHON", requires = "pytorch")]
    python: Option<PathBuf>,
    /// The program and its arguments. With --pytorch a Python script, or bfc run ... -- python3 SCRIPT. bfc is the command
    /// of this checkout
    #[arg(trailing_var_arg = true, required = true, value_names = ["PROGRAM", "ARGS"])]
    words: Vec<OsString>,
}

/// Shown after the options.
pub const EXAMPLES: &str = "\
Examples:
  cargo xtask simulate -- ./app                           libbfc in the program
  cargo xtask simulate -- bfc run --limit 1GiB -- ./app   libbfc under it
  cargo xtask simulate --pytorch train.py                 PyTorch, with or without bfc.torch.use()
  cargo xtask simulate --pytorch -- bfc run --history h -- python3 train.py
                                                          the same with libbfc under it
  SIMCUDA_MEMORY=8589934592 cargo xtask simulate ./app    a device of 8 GiB

The program runs in the current folder. crates/simcuda/README.md lists the variables that control the driver.";

impl Simulate {
    /// Builds what is needed and becomes the program. Returns only if it cannot be started.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        if let Some(python) = &self.python {
            check(workspace, python)?;
        }
        self.check_script()?;
        let built = cargo::build(workspace, Profile::Release)?;
        let mut libraries = vec![simcuda::build(workspace)?];
        let folder = built.shared.parent().context("it is in a folder")?.to_owned();
        let mut folders = vec![folder.clone()];
        let mut command = if self.pytorch {
            let python = uv::environment(workspace, &workspace.path("ffi-tests/pytorch"))?;
            libraries.push(stubs(workspace, &python, &libraries[0])?);
            let interpreter = self.python.as_ref().unwrap_or(&python);
            folders.extend(interpreter.parent().map(Path::to_owned));
            let mut command = of_python(&built, interpreter, &self.words);
            if self.python.is_none() {
                command.env("PYTHONPATH", in_front(&[workspace.path("python/src")], "PYTHONPATH")?);
                command.env("BFC_LIBRARY", &built.shared);
            }
            command
        } else {
            let mut command = Command::new(program(&built, &self.words[0]));
            command.args(&self.words[1..]).env("BFC_LIBRARY", &built.shared);
            command
        };
        libraries.push(folder);
        command.env("LD_LIBRARY_PATH", in_front(&libraries, "LD_LIBRARY_PATH")?);
        command.env("PATH", in_front(&folders, "PATH")?);
        let error = command.exec();
        Err(error).with_context(|| format!("cannot run {}", self.words[0].display()))
    }
}

impl Simulate {
    /// Fails if there is no such script, which Python would say only after the build.
    fn check_script(&self) -> Result<()> {
        let script = self.words.first().filter(|_| self.pytorch).map(Path::new);
        // `bfc` finds its program itself, and Python has options such as -c.
        let is_script = |name: &&Path| {
            name.as_os_str() != "bfc" && !name.as_os_str().as_encoded_bytes().starts_with(b"-")
        };
        if let Some(script) = script.filter(is_script) {
            ensure!(script.exists(), "there is no script {} in the current folder", script.display());
        }
        Ok(())
    }
}

/// The interpreter with a script, or the bfc command of this checkout, which finds that interpreter as python3.
fn of_python(built: &Built, python: &Path, words: &[OsString]) -> Command {
    let is_command = words.first().is_some_and(|word| word == "bfc");
    let mut command = Command::new(if is_command { &built.command } else { python });
    command.args(&words[usize::from(is_command)..]);
    command
}

/// The program, or for `bfc` the command of this checkout.
fn program<'a>(built: &'a Built, name: &'a OsStr) -> &'a OsStr {
    if name == "bfc" { built.command.as_os_str() } else { name }
}

/// Fails if the PyTorch of an interpreter cannot run on the simulated driver, because its own errors would not say why.
fn check(workspace: &Workspace, python: &Path) -> Result<()> {
    let mut command = Command::new(python);
    let why = capture(command.arg(workspace.path("ffi-tests/pytorch/usable.py")))?;
    ensure!(why.is_empty(), "{} cannot run on the simulated driver: {}", python.display(), why.trim_end());
    Ok(())
}

/// Builds replacements for NVIDIA's libraries that PyTorch is linked with. Returns their folder.
pub fn stubs(workspace: &Workspace, python: &Path, simulation: &Path) -> Result<PathBuf> {
    const PROGRAM: &str =
        "import running, stub_libraries; print(stub_libraries.build(running.TORCH / 'lib'))";
    let mut command = workspace.command(python);
    plainly(&mut command);
    let folders = [workspace.path("ffi-tests/pytorch"), workspace.path("ffi-tests")];
    command.env("PYTHONPATH", env::join_paths(folders)?);
    command.env("LIBBFC_TESTS_SCRATCH", workspace.target.join("tests"));
    command.env("LIBBFC_TESTS_SIMULATION", simulation);
    command.args(["-c", PROGRAM]);
    let said = workspace.run_well("stubs of NVIDIA's libraries", command)?;
    Ok(said.lines().last().context("it names the folder")?.into())
}

/// The value of a variable that lists folders, with these first.
fn in_front(folders: &[PathBuf], variable: &str) -> Result<OsString> {
    let rest = env::var_os(variable).filter(|rest| !rest.is_empty());
    let rest = rest.iter().flat_map(env::split_paths);
    env::join_paths(folders.iter().cloned().chain(rest))
        .with_context(|| format!("a folder has a colon in its name, which {variable} cannot have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_not_there_is_refused_before_the_build() {
        let checked = |words: &[&str], pytorch| {
            let words = words.iter().map(OsString::from).collect();
            Simulate { pytorch, python: None, words }.check_script()
        };
        let error = checked(&["nothere.py", "-v"], true).expect_err("there is none").to_string();
        assert!(error.contains("nothere.py"), "{error}");
        for words in [&["bfc", "run", "--", "python3", "train.py"][..], &["-c", "0"], &["/dev/null"]] {
            assert!(checked(words, true).is_ok(), "{words:?}");
        }
        assert!(checked(&["ls"], false).is_ok(), "it is looked up in PATH");
    }

    #[test]
    fn bfc_run_takes_a_script_too() {
        let file = |name: &str| PathBuf::from("/target").join(name);
        let built = Built {
            profile: Profile::Release,
            shared: file("libbfc.so"),
            archive: file("libbfc.a"),
            interposer: file("libbfc_preload.so"),
            command: file("bfc"),
        };
        let line = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            let command = of_python(&built, Path::new("/env/bin/python"), &words);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(&["train.py", "--epochs", "1"]), "/env/bin/python train.py --epochs 1");
        let words = ["bfc", "run", "--history", "h", "--", "python3", "train.py"];
        assert_eq!(line(&words), "/target/bfc run --history h -- python3 train.py");
    }
}
