//! The suite `stack`: how much stack each function of the release build needs, and each hook of the interposer.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::context::{Context, Count};
use crate::gates::version;
use crate::hooks;
use crate::install;
use crate::simcuda;
use crate::tools;
use crate::{files, workspace};

/// Measures calls of the library itself, and under the interposer.
const FUNCTIONS: [&str; 4] = ["main.c", "calls.c", "painted.c", "fence.c"];
const HOOKS: [&str; 4] = ["hooks_main.c", "hooks.c", "painted.c", "fence.c"];

/// Builds ffi-tests/stack against the installed library, and runs it on the simulated driver.
pub fn run(context: &mut Context) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        context.skip("all of it", "its programs change stacks in the assembler of x86-64");
        return Ok(());
    }
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let lib = context.prefix()?.join("lib");
    let driver = simcuda::build_driver(&context.workspace)?;
    let program = compile(context, "bfc-stack", &FUNCTIONS, &lib)?;
    let mut command = context.workspace.command(&program);
    command.arg(context.workspace.path("ffi-tests/symbols.txt")).env("LD_LIBRARY_PATH", &driver);
    let command = context.plain(command);
    context.program("each function, on a painted stack", command, Count::One)?;

    let program = compile(context, "bfc-stack-hooks", &HOOKS, &lib)?;
    let (list, interposer) = (program.with_extension("txt"), lib.join(install::INTERPOSER));
    files::write(&list, hooks::exports().join("\n"))?;
    let mut command = context.workspace.command(&program);
    workspace::without(&mut command, &["SIMCUDA_"]);
    command.arg(list).arg(&interposer).env("LD_LIBRARY_PATH", &driver);
    // Half a GiB, so that memory runs out.
    command.envs([("SIMCUDA_DEVICES", "2"), ("SIMCUDA_MEMORY", "536870912")]);
    let mut command = context.plain(command);
    command.env("LD_PRELOAD", &interposer);
    context.program("each hook of the interposer, on a painted stack", command, Count::One)?;
    Ok(())
}

fn compile(context: &Context, name: &str, sources: &[&str], lib: &Path) -> Result<PathBuf> {
    let workspace = &context.workspace;
    let program = workspace.target.join("stack").join(name);
    std::fs::create_dir_all(workspace.target.join("stack"))?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(workspace.path("include"));
    command.args(sources.iter().map(|name| workspace.path("ffi-tests/stack").join(name)));
    command.arg("-o").arg(&program).arg("-L").arg(lib);
    command.arg(format!("-l:{}", version::soname(&workspace.version)));
    command.arg(format!("-Wl,-rpath,{}", lib.display()));
    // libbfc and the interposer call the program's dlopen and its relatives; the program's own look-ups take no stack.
    command.args(["-rdynamic", "-Wl,-z,now", "-ldl", "-lpthread"]);
    workspace.run_well(name, command)?;
    Ok(program)
}
