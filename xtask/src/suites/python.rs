//! The suites `python` and `manylinux`: the package bfc (python/) as a wheel, in a clean virtual environment elsewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::context::{Context, Count};
use crate::files;
use crate::pages::owned::Owned;
use crate::python::{Packages, plainly};
use crate::simcuda;
use crate::tools;
use crate::wheel;
use crate::workspace::{Workspace, capture};

const MYPY: Packages =
    Packages { name: "mypy", about: "mypy (20 MB)", pip: &["--only-binary=:all:", "mypy==2.4.1"] };

/// A virtual environment with the wheel, in a folder where nothing of the source is.
struct Installed {
    folder: PathBuf,
    /// The package bfc in it.
    package: PathBuf,
}

impl Installed {
    /// Installs a wheel, or a folder with a package's source.
    fn new(
        workspace: &Workspace,
        name: &str,
        what: &Path,
        adjust: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let folder = workspace.target.join("python").join(name);
        files::remove_all(&folder)?;
        tools::virtual_environment(workspace, &folder.join("venv"), &["--no-index", "pip"])?;
        let mut command = workspace.command(folder.join("venv/bin/python"));
        plainly(&mut command);
        command.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
        adjust(command.arg(what));
        workspace.run_well(&format!("pip install, {name}"), command)?;
        let pythons = files::entries(&folder.join("venv/lib"))?;
        let mut packages = pythons.iter().map(|python| python.join("site-packages/bfc"));
        let package = packages.find(|package| package.exists());
        let package = package.with_context(|| format!("pip put no package bfc into {}", folder.display()))?;
        Ok(Self { folder, package })
    }

    /// A command of the environment, in a folder of its own.
    fn command(&self, workspace: &Workspace, name: &str) -> Command {
        let mut command = workspace.command(self.folder.join("venv/bin").join(name));
        plainly(&mut command);
        command.current_dir(&self.folder);
        // What shims are compiled for these tests is theirs.
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        command
    }
}

/// The wheel for this system, and `pip install .`.
pub fn run(context: &mut Context) -> Result<()> {
    if !is_possible(context) {
        return Ok(());
    }
    let Some(installed) = installed(context, false)? else { return Ok(()) };
    tested(context, &installed)?;
    doctests(context, &installed)?;
    interposed(context, &installed)?;
    typed(context, &installed)?;
    from_a_copy(context)
}

/// The wheel for old systems, with what looks at such wheels.
pub fn manylinux(context: &mut Context) -> Result<()> {
    if !is_possible(context) {
        return Ok(());
    }
    let Some(installed) = installed(context, true)? else { return Ok(()) };
    let wrong = wheel::wrong(&context.workspace, &installed.package, true)?;
    context.gate("its libraries run with glibc 2.28 and have the system's unwinder", &wrong);
    // With this system's they are newer: the gate sees it.
    let built = context.built(crate::cargo::Profile::Release)?;
    context.check("the libraries of this system would be found out", |workspace| {
        let copy = installed.folder.join("newer");
        files::remove_all(&copy)?;
        files::copy_all(&installed.package, &copy)?;
        files::copy(&built.shared, &copy.join("_prefix/lib/libbfc.so.0"))?;
        match wheel::wrong(workspace, &copy, true)?.iter().any(|words| words.contains("GLIBC_2.34")) {
            true => Ok(()),
            false => bail!("they were not, or this system is as old"),
        }
    });
    unwound(context, &installed);
    tested(context, &installed)?;
    interposed(context, &installed)
}

/// A C++ exception passes through the library, whose unwinder zig would have replaced.
fn unwound(context: &mut Context, installed: &Installed) {
    context.check("a C++ exception passes through the library", |workspace| {
        let (program, prefix) = (installed.folder.join("unwinding"), installed.package.join("_prefix"));
        let lib = prefix.join("lib");
        let mut command = workspace.command(tools::cxx_compiler());
        command.args(["-std=c++17", "-o"]).arg(&program).arg(workspace.path("python/tests/unwinding.cpp"));
        command.arg("-I").arg(prefix.join("include")).arg("-L").arg(&lib).arg("-lbfc");
        command.arg(format!("-Wl,-rpath,{}", lib.display()));
        workspace.run_well("compile python/tests/unwinding.cpp", command)?;
        let mut command = workspace.command(&program);
        plainly(&mut command);
        command.env("BFC_BACKEND", "host").env("BFC_MEMORY_LIMIT", "64M");
        workspace.run_well("unwinding", command).map(drop)
    });
}

fn is_possible(context: &mut Context) -> bool {
    let compilers = [tools::c_compiler(), tools::cxx_compiler()];
    let missing = compilers.iter().find(|compiler| !tools::works(compiler));
    let missing = missing.map(|compiler| compiler.display().to_string());
    let others = ["python3", "nm", "readelf"].into_iter().find(|name| files::program(name).is_none());
    let Some(missing) = missing.or(others.map(str::to_owned)) else { return true };
    context.skip("all of it", &format!("there is no {missing}"));
    false
}

/// Builds a wheel and installs it. Without PyPI it is skipped.
fn installed(context: &mut Context, manylinux: bool) -> Result<Option<Installed>> {
    let tools = wheel::tools(&context.workspace, manylinux);
    if context.or_skip("all of it", tools)?.is_none() {
        return Ok(None);
    }
    let mut installed = None;
    context.check("the wheel is built and installed", |workspace| {
        let wheel = wheel::build(workspace, manylinux)?;
        if manylinux {
            let said = wheel::audited(workspace, &wheel)?;
            let words: Vec<&str> = said.split_whitespace().collect();
            if !words.join(" ").contains("following platform tag: \"manylinux_2_28_") {
                bail!("auditwheel says\n{said}");
            }
        }
        let name = if manylinux { "manylinux" } else { "linux" };
        let offline = |command: &mut Command| {
            command.args(["--no-index", "--no-deps"]);
        };
        installed = Some(Installed::new(workspace, name, &wheel, offline)?);
        Ok(())
    });
    Ok(installed)
}

/// The tests of python/tests.
fn tested(context: &mut Context, installed: &Installed) -> Result<()> {
    let mut command = installed.command(&context.workspace, "python");
    command.args(["-m", "unittest", "discover", "--start-directory"]);
    command.arg(context.workspace.path("python/tests"));
    let ended = context.program("python/tests", command, Count::One)?;
    // Some are for an installed package only, and this is one.
    context.check("python/tests: all of them", |_| match ended.text.lines().last() {
        Some("OK") => Ok(()),
        last => bail!("it ended with {last:?}"),
    });
    Ok(())
}

fn doctests(context: &mut Context, installed: &Installed) -> Result<()> {
    let mut command = installed.command(&context.workspace, "python");
    command.arg(context.workspace.path("python/tests/doctests.py"));
    context.program("examples in docstrings", command, Count::One)?;
    page(context, installed)
}

/// The code of docs/python.md, and its commands on the simulated driver.
fn page(context: &mut Context, installed: &Installed) -> Result<()> {
    let pages = Owned::of_suite(&context.workspace, "python")?;
    let mut command = installed.command(&context.workspace, "python");
    command.args(["-c", "from page import Page; Page('python').run_all()"]);
    command.env("PYTHONPATH", context.workspace.path("ffi-tests"));
    Owned::tell(&context.workspace, &mut command);
    context.program("docs/python.md", command, Count::One)?;

    let simulation = simcuda::build(&context.workspace)?;
    let folder = installed.folder.join("page");
    files::copy(&context.workspace.path("python/tests/interposed.py"), &folder.join("train.py"))?;
    let mut command = context.workspace.command("sh");
    plainly(&mut command);
    let own = installed.folder.join("venv/bin");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    command.env("PATH", std::env::join_paths([own].into_iter().chain(std::env::split_paths(&paths)))?);
    command.env("LD_LIBRARY_PATH", simulation).current_dir(folder).arg("-e").arg(pages[0].file("sh-2")?);
    context.check("docs/python.md: the commands", |workspace| {
        workspace.run_well("commands of docs/python.md", command)?;
        pages[0].ran("sh-2")
    });
    context.all_ran(&pages);
    Ok(())
}

/// `bfc run` of the environment, with its interposer.
fn interposed(context: &mut Context, installed: &Installed) -> Result<()> {
    let simulation = simcuda::build(&context.workspace)?;
    let mut command = installed.command(&context.workspace, "bfc");
    command.args(["run", "--check", "--"]).arg(installed.folder.join("venv/bin/python"));
    command.arg(context.workspace.path("python/tests/interposed.py")).env("LD_LIBRARY_PATH", simulation);
    let ended = context.program("bfc run on the simulated driver", command, Count::One)?;
    let library = installed.package.join("_prefix/lib/libbfc.so.0");
    context.check("bfc run: it took hold, with the package's library", |_| {
        let wanted = ["interposition took hold".to_owned(), library.display().to_string()];
        match wanted.iter().find(|words| !ended.text.contains(*words)) {
            None => Ok(()),
            Some(words) => bail!("it does not say {words:?}:\n{}", ended.text),
        }
    });
    Ok(())
}

/// mypy, over the source.
fn typed(context: &mut Context, installed: &Installed) -> Result<()> {
    let Some(environment) = context.or_skip("mypy --strict", MYPY.find(&context.workspace))? else {
        return Ok(());
    };
    let mypy = |workspace: &Workspace| {
        let mut command = workspace.command(environment.bin("mypy"));
        plainly(&mut command);
        command.arg("--config-file").arg(workspace.path("pyproject.toml"));
        command.arg("--cache-dir").arg(installed.folder.join("mypy"));
        command
    };
    let mut command = mypy(&context.workspace);
    command.current_dir(context.workspace.path("python/src")).args(["--package", "bfc"]);
    context.program("mypy --strict", command, Count::One)?;
    // As a user's program sees it, by py.typed.
    let program = installed.folder.join("typed.py");
    files::write(&program, "import bfc\n\naddress: str = bfc.alloc(0, 1)\n")?;
    let mut command = mypy(&context.workspace);
    command.current_dir(&installed.folder).arg("--python-executable");
    command.arg(installed.folder.join("venv/bin/python")).arg(&program);
    let ended = context.workspace.run("mypy of a program", command)?;
    context.check("mypy finds a program's mistake by py.typed", |_| {
        match ended.text.contains("Incompatible types in assignment (expression has type \"int\"") {
            true => Ok(()),
            false => bail!("{}", ended.text),
        }
    });
    Ok(())
}

/// `pip install .` in a copy of the source, where nothing was built or staged.
fn from_a_copy(context: &mut Context) -> Result<()> {
    let copy = context.workspace.target.join("python/copy");
    files::remove_all(&copy)?;
    // What git knows: who forgot a file finds out here.
    let mut command = context.workspace.command("git");
    let Ok(listed) = capture(command.args(["ls-files", "-z"])) else {
        context.skip("pip install ., in a copy", "this is no checkout of git's");
        return Ok(());
    };
    for name in listed.split_terminator('\0') {
        files::copy(&context.workspace.path(name), &copy.join(name))?;
    }
    let mut installed = None;
    context.check("pip install ., in a copy", |workspace| {
        // The second time only what is the project's own is built again, and quickly at any time: how fast the library
        // is does not matter here.
        let target = workspace.target.join("python/copy-target");
        let elsewhere = |command: &mut Command| {
            command.env("CARGO_TARGET_DIR", target);
            command
                .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")]);
        };
        installed = Some(Installed::new(workspace, "copied", &copy, elsewhere)?);
        Ok(())
    });
    match installed {
        Some(installed) => tested(context, &installed),
        None => Ok(()),
    }
}
