//! The suite `package`: the installed library, as clients use it who know nothing of cargo.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::context::{Context, Count};
use super::{default_streams, examples, find_package, pkg_config};
use crate::cargo::Profile;
use crate::files;
use crate::gates::elf;
use crate::install::SYSTEM_LIBRARIES;
use crate::tools::{self, CMake};
use crate::workspace::{Workspace, capture};

/// Installs, builds and runs the C and C++ programs against it, moves the tree, and does it again.
pub fn run(context: &mut Context) -> Result<()> {
    let prefix = context.prefix()?;
    no_path_of_this_machine(context, &prefix)?;
    archive_libraries(context)?;
    pkg_config::run(context, &prefix, "installed")?;
    default_streams::run(context, &prefix)?;

    let cmake = cmake_or_skip(context);
    if let Some(cmake) = &cmake {
        find_package::run(context, cmake, &prefix)?;
        let project = Project { cmake, name: "package", prefix: &prefix, defines: &[], sample: false };
        project.build_and_test(context)?;
        examples::run(context, cmake, &prefix)?;
    }
    let elsewhere = context.workspace.target.join("install-test/moved/to/here");
    move_tree(&prefix, &elsewhere)?;
    let mut moved = || -> Result<()> {
        pkg_config::run(context, &elsewhere, "moved")?;
        if let Some(cmake) = &cmake {
            // That all of it is found, linked and loaded is what a move may spoil; what the tests test
            // was tested before.
            Project { cmake, name: "package moved", prefix: &elsewhere, defines: &[], sample: true }
                .build_and_test(context)?;
        }
        Ok(())
    };
    // The later suites want it where it was, whatever came of this.
    moved().and(move_tree(&elsewhere, &prefix))
}

fn move_tree(from: &Path, to: &Path) -> Result<()> {
    files::remove_all(to)?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::rename(from, to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

/// CMake, or the skipping of what needs it.
pub fn cmake_or_skip(context: &mut Context) -> Option<CMake> {
    match CMake::find(&context.workspace) {
        Ok(cmake) => Some(cmake),
        Err(error) => {
            let why = format!("{error:#}");
            let line = why.lines().next().unwrap_or_default();
            let hint = "install cmake, and make or ninja, or make PyPI reachable";
            context.skip("what needs CMake", &format!("{line}; {hint}"));
            None
        }
    }
}

/// The CMake project ffi-tests/, which is a project of its own and finds the library as a package.
pub struct Project<'a> {
    /// What builds it.
    pub cmake: &'a CMake,
    /// What this run of it is called.
    pub name: &'a str,
    /// Where the library is installed.
    pub prefix: &'a Path,
    /// Options of the project.
    pub defines: &'a [&'a str],
    /// Run every tenth test only.
    pub sample: bool,
}

impl Project<'_> {
    /// Configures, builds and runs the tests. Each is a test of the suite; one that fails ends this.
    pub fn build_and_test(&self, context: &mut Context) -> Result<()> {
        let name = self.name;
        let source = context.workspace.path("ffi-tests");
        let folder = context.workspace.target.join("ffi").join(name.replace(' ', "-"));
        // Anew: a cache of CMake's would remember the package's place, which is what is tested.
        files::remove_all(&folder)?;

        let mut command = self.cmake.configure(&context.workspace, &source, &folder);
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
        // Debug: the programs' own assertions are what it is about.
        command.arg("-DCMAKE_BUILD_TYPE=Debug");
        let defines = self.defines.iter().map(|define| format!("-D{define}"));
        command.args(defines);
        let configured = context.program(&format!("{name}: configure"), command, Count::One)?;
        if !configured.success {
            return Ok(());
        }
        if configured.text.contains("Manually-specified variables were not used") {
            let defines = self.defines.join(" ");
            bail!("ffi-tests/CMakeLists.txt knows nothing of {defines}");
        }
        let mut command = context.workspace.command(&self.cmake.cmake);
        command.arg("--build").arg(&folder).args(["--parallel", "2"]);
        let built = context.program(&format!("{name}: build"), command, Count::One)?;
        if !built.success {
            return Ok(());
        }
        let mut command = context.workspace.command(&self.cmake.ctest);
        command.arg("--test-dir").arg(&folder).args(["--parallel", "2"]);
        // Verbose, for the reason why a test was skipped is in what it says.
        command.args(["--verbose", "--no-tests=error"]);
        if self.sample {
            command.args(["--tests-information", "1,,10"]);
        }
        let command = context.plain(command);
        context.program(&format!("{name}: ctest"), command, Count::Ctest)?;
        Ok(())
    }
}

/// Compiles the probe with the given flags and runs it, from `libraries` if that is named; what it
/// printed.
pub fn probe(
    workspace: &Workspace,
    name: &str,
    flags: &[String],
    libraries: Option<&Path>,
) -> Result<String> {
    let executable = compile_probe(workspace, name, flags)?;
    let mut command = workspace.command(executable);
    if let Some(folder) = libraries {
        command.env("LD_LIBRARY_PATH", folder);
    }
    capture(&mut command)
}

/// Compiles the probe with the given flags.
pub fn compile_probe(workspace: &Workspace, name: &str, flags: &[String]) -> Result<PathBuf> {
    let folder = workspace.target.join("xtask/probe");
    let source = folder.join("probe.c");
    files::write(&source, include_str!("probe.c"))?;
    let executable = folder.join(name.replace(' ', "-"));
    files::remove(&executable)?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg(&source).arg("-o").arg(&executable).args(flags);
    workspace.run_well(&format!("compile probe {name}"), command)?;
    Ok(executable)
}

/// The texts that are installed name no folder of the machine they were installed on.
fn no_path_of_this_machine(context: &mut Context, prefix: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    let lib = prefix.join("lib");
    let mut texts = files::below(&lib, "cmake")?;
    texts.extend(files::below(&lib, "pc")?);
    let own = prefix.display().to_string();
    for path in texts {
        if files::read(&path)?.contains(&own) {
            wrong.push(format!("{} names {own}", path.display()));
        }
    }
    context.gate("the installed files may be moved", &wrong);
    Ok(())
}

/// Asked of rustc with an empty crate: what is needed is the standard library's doing.
fn archive_libraries(context: &mut Context) -> Result<()> {
    context.built(Profile::Release)?;
    let workspace = &context.workspace;
    let folder = workspace.target.join("xtask");
    let source = folder.join("empty.rs");
    files::write(&source, "//! Nothing.\n")?;
    let mut command = workspace.command(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    command.args(["--crate-type=staticlib", "--print=native-static-libs"]);
    command.arg("--out-dir").arg(&folder).arg(&source);
    let said = workspace.run_well("native static libs", command)?;
    let wrong = elf::archive_libraries(&said, &SYSTEM_LIBRARIES);
    context.gate("the archive's system libraries", &wrong);
    Ok(())
}
