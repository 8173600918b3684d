//! CTest: the CMake project ffi-tests, which contains all programs in C and C++, with the installed library.

use std::path::Path;

use anyhow::{Result, ensure};

use super::context::{Context, Count, Needs};
use crate::cmake::{self, CMake};
use crate::files;
use crate::simcuda;
use crate::tools::{self, Unavailable};
use crate::workspace::plainly;

/// Builds the project and runs the tests that the arguments of ctest select: `-L LABEL` those with a label, `-LE LABEL`
/// those without it. Suites share the build.
fn run(context: &mut Context, chosen: &[&str]) -> Result<()> {
    tools::need_compilers()?;
    let driver = simcuda::build_driver(&context.workspace)?.join("libcuda.so.1");
    run_in(context, "ffi-tests", &[("SIMCUDA_DRIVER", &driver)], chosen)
}

/// The programs compiled with flags for C and C++, in a separate build.
pub fn sanitized(context: &mut Context, flags: &str) -> Result<()> {
    let flags = Path::new(flags);
    let defines = [("CMAKE_C_FLAGS", flags), ("CMAKE_CXX_FLAGS", flags)];
    run_in(context, "ffi-tests-sanitized", &defines, &["-L", "sanitizers"])
}

/// Builds the project in a folder of target/ with more definitions for CMake, and runs tests of it.
fn run_in(context: &mut Context, folder: &str, more: &[(&str, &Path)], chosen: &[&str]) -> Result<()> {
    let prefix = context.prefix()?;
    let workspace = &context.workspace;
    println!("   building {folder}");
    let folder = workspace.target.join(folder);
    // The programs' own assertions are the tests.
    let defines = [("CMAKE_PREFIX_PATH", &*prefix), ("CMAKE_BUILD_TYPE", Path::new("Debug"))];
    let (source, defines) = (workspace.path("ffi-tests"), [&defines, more].concat());
    cmake::build(workspace, &CMake::pinned(workspace)?, &source, &folder, &defines)?;
    tests(context, &folder, chosen)
}

/// The programs, and by pytest the tests that need more than a program: of the installed tree, and of how it is found.
pub fn package(context: &mut Context) -> Result<()> {
    context.pytest("package", Needs::Prefix, &[])?;
    context.pytest("install", Needs::Prefix, &[])?;
    run(context, &["-LE", "simcuda|stack|valgrind"])
}

/// The stack that functions and hooks need.
pub fn stack(context: &mut Context) -> Result<()> {
    let why = "its programs change stacks in the assembler of x86-64";
    ensure!(cfg!(target_arch = "x86_64"), Unavailable(why.to_owned()));
    run(context, &["-L", "stack"])
}

/// Each program once more, with every access and every block checked, and the instructions of allocations and frees.
pub fn valgrind(context: &mut Context) -> Result<()> {
    let why = "valgrind is not installed (Debian: apt-get install valgrind)";
    ensure!(files::program("valgrind").is_some(), Unavailable(why.to_owned()));
    run(context, &["-L", "valgrind"])?;
    context.pytest("budget", Needs::Prefix, &[])
}

/// The simulated driver and runtimes themselves, built as other suites do.
pub fn simcuda(context: &mut Context) -> Result<()> {
    let folder = simcuda::build_driver(&context.workspace)?;
    let mut command = context.cargo(&["test", "--package=simcuda", "--no-fail-fast", "--tests"]);
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"));
    context.program("the simulated driver", command, Count::Cargo)?;
    simcuda::build(&context.workspace)?;
    tests(context, &context.workspace.target.join("simcuda"), &["-L", "simcuda"])
}

/// Runs tests of a project that is built.
fn tests(context: &mut Context, folder: &Path, chosen: &[&str]) -> Result<()> {
    let mut command = CMake::pinned(&context.workspace)?.command(&context.workspace, "ctest");
    plainly(&mut command);
    // The address sanitizer removes a thread's signal stack on a stack that a cancellation has left marked as in use.
    command.env("ASAN_OPTIONS", "use_sigaltstack=0");
    // The reason why a test was skipped is the last line that it prints.
    command.args(["--parallel", "2", "--verbose", "--no-tests=error", "--test-output-truncation", "tail"]);
    command.arg("--test-dir").arg(folder).args(chosen);
    let name = format!("ctest {}", chosen.join(" "));
    context.program(&name, command, Count::Junit("--output-junit")).map(drop)
}
