//! Stream 0 in units that are compiled for the per-thread default stream, and in others of the same program, with the
//! installed headers, on the simulated driver. Part of the suite `package`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::context::{Context, Count};
use crate::python::plainly;
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

/// What NVIDIA's headers look for.
const PER_THREAD: &str = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";

/// The name of a unit, and whether its 0 is the thread's own default stream.
const UNITS: [(&str, bool); 2] = [("legacy", false), ("per_thread", true)];

/// Each case of the program with each kind of unit.
pub fn run(context: &mut Context, prefix: &Path) -> Result<()> {
    for compiler in [tools::c_compiler(), tools::cxx_compiler()] {
        if !tools::works(&compiler) {
            context.skip("default streams", &format!("there is no {}", compiler.display()));
            return Ok(());
        }
    }
    let driver = simcuda::build_driver(&context.workspace)?;
    // Without optimization inline functions are called, so that one of another unit would be seen.
    for level in ["-O0", "-O2"] {
        let mut program = None;
        context.check(&format!("default streams {level}: compile"), |workspace| {
            program = Some(compiled(workspace, prefix, level)?);
            Ok(())
        });
        let Some(program) = program else { continue };
        let mut list = context.workspace.command(&program);
        plainly(&mut list);
        list.env("LD_LIBRARY_PATH", &driver);
        let cases = context.workspace.run_well("default streams, list", list)?;
        for case in cases.lines() {
            let mut command = context.workspace.command(&program);
            plainly(&mut command);
            command.args(case.split(' ')).env("LD_LIBRARY_PATH", &driver);
            context.program(&format!("default streams {level}: {case}"), command, Count::One)?;
        }
    }
    Ok(())
}

fn compiled(workspace: &Workspace, prefix: &Path, level: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("default-streams").join(&level[1..]);
    std::fs::create_dir_all(&folder)?;
    let lib = prefix.join("lib").display().to_string();
    let mut objects = Vec::new();
    for (name, is_per_thread) in UNITS {
        for (language, compiler, standard) in
            [("c", tools::c_compiler(), "-std=c11"), ("cpp", tools::cxx_compiler(), "-std=c++17")]
        {
            let object = folder.join(format!("{language}_{name}.o"));
            let source = workspace
                .path("ffi-tests")
                .join(language)
                .join("default_stream_unit")
                .with_extension(language);
            let mut command = workspace.command(compiler);
            command.args([standard, level, "-g", "-D_GNU_SOURCE"]);
            command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]);
            if language == "cpp" {
                command.arg("-Wold-style-cast");
            }
            command.arg(format!("-DUNIT={language}_{name}")).args(is_per_thread.then_some(PER_THREAD));
            command.arg("-I").arg(prefix.join("include")).arg("-c").arg(source).arg("-o").arg(&object);
            workspace.run_well(&format!("compile {language}_{name}"), command)?;
            objects.push(object);
        }
    }
    let program = folder.join("default_streams");
    let mut command = workspace.command(tools::cxx_compiler());
    command.args(["-std=c++17", level, "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg("-I").arg(prefix.join("include"));
    command.arg(workspace.path("ffi-tests/cpp/default_streams.cpp")).args(&objects).arg("-o").arg(&program);
    command.args([&format!("-L{lib}"), "-lbfc", &format!("-Wl,-rpath,{lib}"), "-ldl"]);
    workspace.run_well("compile default_streams", command)?;
    Ok(program)
}
