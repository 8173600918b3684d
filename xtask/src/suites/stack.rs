//! The suite `stack`: how much stack each function of the release build needs.

use anyhow::Result;

use super::context::{Context, Count};
use crate::gates::version;
use crate::simcuda;
use crate::tools;

const SOURCES: [&str; 4] = ["main.c", "calls.c", "painted.c", "fence.c"];

/// Builds ffi-tests/stack against the installed library, and runs it on the simulated driver.
pub fn run(context: &mut Context) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        context.skip("all of it", "its program changes stacks in the assembler of x86-64");
        return Ok(());
    }
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let prefix = context.prefix()?;
    let driver = simcuda::build_driver(&context.workspace)?;
    let workspace = &context.workspace;
    let (lib, program) = (prefix.join("lib"), workspace.target.join("stack/bfc-stack"));
    std::fs::create_dir_all(workspace.target.join("stack"))?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(prefix.join("include"));
    command.args(SOURCES.map(|name| workspace.path("ffi-tests/stack").join(name)));
    command.arg("-o").arg(&program).arg("-L").arg(&lib);
    command.arg(format!("-l:{}", version::soname(&workspace.version)));
    command.arg(format!("-Wl,-rpath,{}", lib.display()));
    // libbfc calls the program's dlopen and its relatives; the program's own look-ups take no stack.
    command.args(["-rdynamic", "-Wl,-z,now", "-ldl", "-lpthread"]);
    workspace.run_well("bfc-stack", command)?;

    let mut command = workspace.command(&program);
    command.arg(workspace.path("ffi-tests/symbols.txt")).env("LD_LIBRARY_PATH", &driver);
    let command = context.plain(command);
    context.program("each function, on a painted stack", command, Count::One)?;
    Ok(())
}
