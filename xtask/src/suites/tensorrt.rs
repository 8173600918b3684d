//! The suite `tensorrt`: libbfc's allocator for TensorRT against NVIDIA's headers, called as TensorRT calls it, on the
//! simulated driver. TensorRT itself is not there.
//!
//! See ffi-tests/tensorrt.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::context::{Context, Count};
use crate::cuda_headers;
use crate::files;
use crate::pages::owned::Owned;
use crate::python::plainly;
use crate::simcuda;
use crate::tensorrt::{self, Headers};
use crate::tools;
use crate::workspace::Workspace;

/// Compiles against each version, and runs the cases with that of TensorRT itself.
pub fn run(context: &mut Context) -> Result<()> {
    for compiler in [tools::c_compiler(), tools::cxx_compiler()] {
        if !tools::works(&compiler) {
            context.skip("all of it", &format!("there is no {}", compiler.display()));
            return Ok(());
        }
    }
    let found = tensorrt::find(&context.workspace)
        .and_then(|versions| Ok((versions, cuda_headers::find(&context.workspace)?)));
    let Some((versions, cuda)) = context.or_skip("all of it", found)? else {
        return Ok(());
    };
    let cuda =
        cuda.into_iter().find(|headers| headers.major == 13).context("there are no headers of CUDA 13")?;
    let prefix = context.prefix()?;
    let pages = Owned::of_suite(&context.workspace, "tensorrt")?;
    let page = pages[0].file("cpp-1")?;
    let mut compiled = 0;
    for headers in &versions {
        let source = context.workspace.path("ffi-tests/tensorrt/allocator.cpp");
        for (what, source) in [("the adapter", &source), ("the code of docs/tensorrt.md", &page)] {
            context.check(&format!("{}: {what} compiles", headers.version), |workspace| {
                let mut command = compiler(workspace, headers, &cuda.include, &prefix);
                command.arg("-fsyntax-only").arg(source);
                workspace.run_well(&format!("tensorrt {} {what}", headers.version), command)?;
                compiled += 1;
                Ok(())
            });
        }
    }
    // It is compiled, not run: there is nothing of TensorRT to run it with.
    if compiled == 2 * versions.len() {
        pages[0].ran("cpp-1")?;
    }
    context.all_ran(&pages);
    let newest = versions.iter().find(|headers| headers.version.contains("Enterprise"));
    let newest = newest.context("the crate has no headers of TensorRT itself")?;
    cases(context, newest, &cuda.include, &prefix, &[])?;
    // TensorRT's own library is not compiled so, whatever the program is.
    cases(context, newest, &cuda.include, &prefix, &["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"])
}

fn cases(
    context: &mut Context,
    headers: &Headers,
    cuda: &Path,
    prefix: &Path,
    defines: &[&str],
) -> Result<()> {
    let simulation = simcuda::build(&context.workspace)?;
    let program =
        context.workspace.target.join("tensorrt").join(["allocator", defines.concat().as_str()].concat());
    files::write(&program, "")?;
    let mut compiled = false;
    let version = [&[headers.version.as_str()], defines].concat().join(" ");
    context.check(&format!("{version}: link"), |workspace| {
        let mut command = compiler(workspace, headers, cuda, prefix);
        command.args(defines);
        command.arg(workspace.path("ffi-tests/tensorrt/allocator.cpp")).arg("-o").arg(&program);
        command.arg("-L").arg(prefix.join("lib")).arg("-l:libbfc.so");
        command.arg("-L").arg(&simulation).args(["-l:libcudart.so.13", "-l:libcuda.so.1"]);
        workspace.run_well("tensorrt link", command)?;
        compiled = true;
        Ok(())
    });
    if !compiled {
        return Ok(());
    }
    let libraries: OsString = std::env::join_paths([prefix.join("lib"), simulation])?;
    let command = |context: &Context, arguments: &[&str]| {
        let mut command = context.workspace.command(&program);
        plainly(&mut command);
        command.args(arguments).env("LD_LIBRARY_PATH", &libraries);
        command
    };
    let names = context.workspace.run_well("tensorrt cases", command(context, &[]))?;
    for name in names.lines() {
        let command = command(context, &[name]);
        context.program(&format!("{version}: {name}"), command, Count::One)?;
    }
    let command = command(context, &["threads", "leak"]);
    context.check("found: a leak", |workspace| {
        let ended = workspace.run("tensorrt leak", command)?;
        if ended.success || !ended.text.contains("ended == BFC_OK") {
            bail!("it was not: {}", ended.complaint());
        }
        Ok(())
    });
    Ok(())
}

fn compiler(workspace: &Workspace, headers: &Headers, cuda: &Path, prefix: &Path) -> Command {
    let mut command = workspace.command(tools::cxx_compiler());
    command.args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
    command.arg("-I").arg(prefix.join("include"));
    command.arg("-isystem").arg(&headers.include).arg("-isystem").arg(cuda);
    command
}
