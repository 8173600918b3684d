//! CTest: the CMake project ffi-tests, which has all programs in C and C++, with the installed library.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;

use super::context::{Context, Count};
use crate::files;
use crate::simcuda;
use crate::tools::{self, CMake};
use crate::workspace::plainly;

/// Builds the project and runs the tests that the arguments of ctest choose: `-L LABEL` those with a label, `-LE LABEL` those
/// without it. Suites share the build.
fn run(context: &mut Context, chosen: &[&str]) -> Result<()> {
    if let Some(why) = tools::missing_compiler() {
        context.skip("all tests by CTest", &why);
        return Ok(());
    }
    let found = CMake::find(&context.workspace);
    let Some(cmake) = context.or_skip("all tests by CTest", found)? else { return Ok(()) };
    let prefix = context.prefix()?;
    let driver = simcuda::build_driver(&context.workspace)?.join("libcuda.so.1");
    let folder = context.workspace.target.join("ffi-tests");
    let mut is_built = false;
    context.check("cmake --build", |workspace| {
        let defines = [
            ("CMAKE_PREFIX_PATH", prefix.as_os_str()),
            ("SIMCUDA_DRIVER", driver.as_os_str()),
            // The programs' own assertions are what it is about.
            ("CMAKE_BUILD_TYPE", OsStr::new("Debug")),
        ];
        cmake.build(workspace, &workspace.path("ffi-tests"), &folder, &defines)?;
        is_built = true;
        Ok(())
    });
    if is_built { tests(context, &cmake, &folder, chosen) } else { Ok(()) }
}

/// The programs, and by pytest what needs more than a program: the installed tree, and what finds it.
pub fn package(context: &mut Context) -> Result<()> {
    context.pytest_installed("package", &[])?;
    context.pytest_installed("install", &[])?;
    run(context, &["-LE", "simcuda|stack|valgrind"])
}

/// How much stack functions and hooks need.
pub fn stack(context: &mut Context) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        context.skip("all of it", "its programs change stacks in the assembler of x86-64");
        return Ok(());
    }
    run(context, &["-L", "stack"])
}

/// Each program once more, every access and every block watched; and the instructions of allocations and frees.
pub fn valgrind(context: &mut Context) -> Result<()> {
    if files::program("valgrind").is_none() {
        context.skip("all of it", "valgrind is not installed (Debian: apt-get install valgrind)");
        return Ok(());
    }
    run(context, &["-L", "valgrind"])?;
    context.pytest_installed("budget", &[])
}

/// Runs tests of a project that is built; their results lie beside the log as JUnit's XML, too.
pub fn tests(context: &mut Context, cmake: &CMake, folder: &Path, chosen: &[&str]) -> Result<()> {
    let name = format!("ctest {}", chosen.join(" "));
    let mut command = cmake.command(&context.workspace, "ctest");
    plainly(&mut command);
    // Verbose, for the reason why a test was skipped is in what it says.
    command.args(["--parallel", "2", "--verbose", "--no-tests=error", "--output-junit"]);
    let report: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    command.arg(context.workspace.target.join("xtask/logs").join(report).with_extension("xml"));
    command.arg("--test-dir").arg(folder).args(chosen);
    context.program(name.trim(), command, Count::Ctest).map(drop)
}
