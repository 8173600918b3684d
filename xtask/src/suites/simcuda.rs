//! The suite `simcuda`: the simulated driver and runtimes themselves, as others use them.

use anyhow::Result;

use super::context::{Context, Count};
use super::ctest;
use crate::cargo;
use crate::cuda_headers;
use crate::simcuda;
use crate::tools::{self, CMake};

/// Builds everything as other suites do, and runs its own tests against that build.
pub fn run(context: &mut Context) -> Result<()> {
    let folder = simcuda::build_driver(&context.workspace)?;
    let args = ["test", "--package=simcuda", "--no-fail-fast", "--tests"];
    let mut command = context.plain(cargo::cargo(&context.workspace, &args));
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"));
    context.program("the simulated driver", command, Count::Cargo)?;

    let built = simcuda::build(&context.workspace).and_then(|_| CMake::find(&context.workspace));
    let Some(cmake) = context.or_skip("the simulated runtimes", built)? else { return Ok(()) };
    ctest::tests(context, &cmake, &context.workspace.target.join("simcuda"), &["-L", "simcuda"])?;
    signatures(context)
}

/// The runtime's functions have the signatures of NVIDIA's, as far as there are any.
fn signatures(context: &mut Context) -> Result<()> {
    let found = cuda_headers::find(&context.workspace);
    let Some(versions) = context.or_skip("signatures of the runtimes", found)? else { return Ok(()) };
    // The headers of 12 want some of nvcc's, which are in another wheel; those of 13 will do.
    let others: Vec<_> = versions.iter().map(|headers| headers.include.clone()).collect();
    for headers in &versions {
        context.check(&format!("signatures of the runtime {}", headers.major), |workspace| {
            let mut command = workspace.command(tools::c_compiler());
            command.args(simcuda::C_FLAGS).arg(format!("-DCUDART_MAJOR={}", headers.major));
            let sources = ["cudart", "kernels", "properties", "rest", "absent"];
            command.args(sources.map(|name| workspace.path(format!("ffi-tests/simcuda/cudart/{name}.c"))));
            command.args(["-fsyntax-only", "-DWITH_NVIDIA_HEADERS", "-isystem"]).arg(&headers.include);
            for include in &others {
                command.arg("-idirafter").arg(include);
            }
            let name = format!("signatures of the simulated runtime {}", headers.major);
            workspace.run_well(&name, command).map(drop)
        });
    }
    Ok(())
}
