//! NVIDIA's own runtimes, from PyPI, on the simulated driver: as far as they go there.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::stage::{Link, Run, Stage, judge, saw};
use crate::cuda_headers;
use crate::files;
use crate::python::Packages;
use crate::suites::context::Context;
use crate::workspace::Workspace;

/// What each of them has to find by version, and gets from us.
const FOUND: [&str; 16] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuPointerGetAttributes",
    "cuIpcGetMemHandle",
    "cuStreamBeginCapture_v2",
    "cuStreamDestroy_v2",
    "cuCtxSynchronize",
];

/// The runtime of CUDA 11, which is in a wheel of its own: it would lie in the folder of that of 12.
const OLD: Packages = Packages {
    name: "cuda-runtime-11",
    about: "NVIDIA's runtime of CUDA 11 (1 MB)",
    pip: &["--no-deps", "--only-binary=:all:", "nvidia-cuda-runtime-cu11==11.8.89"],
};

/// A runtime as NVIDIA ships it.
struct Runtime {
    major: u32,
    shared: PathBuf,
    /// What a program is linked to, instead.
    archives: Vec<PathBuf>,
}

/// Each runtime, shared and static: all that it asks for, it gets from the interposer, and it answers as without.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let mut runtimes = Vec::new();
    for found in [old(&context.workspace), recent(&context.workspace)] {
        runtimes.extend(context.or_skip("NVIDIA's runtimes", found)?.into_iter().flatten());
    }
    let opens = stage.compile(context, "real_runtime", "real_runtime.c", Link::Nothing, &[])?;
    for runtime in &runtimes {
        let name = runtime.shared.file_name().unwrap_or_default().to_string_lossy().into_owned();
        asks(context, stage, runtime.major, &name, &opens, Some(&runtime.shared))?;
        if runtime.archives.is_empty() {
            // The wheel of 11 has none.
            continue;
        }
        let archives: Vec<String> =
            runtime.archives.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let mut flags = vec!["-DLINKED_STATICALLY"];
        flags.extend(archives.iter().map(String::as_str));
        flags.push("-lrt");
        let program = format!("real_static{}", runtime.major);
        let program = stage.compile(context, &program, "real_runtime.c", Link::Nothing, &flags)?;
        let name = format!("libcudart_static.a of {}", runtime.major);
        asks(context, stage, runtime.major, &name, &program, None)?;
    }
    Ok(())
}

fn asks(
    context: &mut Context,
    stage: &Stage,
    major: u32,
    name: &str,
    program: &Path,
    argument: Option<&Path>,
) -> Result<()> {
    let Run { mut command, check } = stage.run(context, program)?;
    let mut plain = stage.plain(context, program);
    command.args(argument);
    plain.args(argument);
    context.check(&format!("NVIDIA's own {name}: what it asks for"), |workspace| {
        files::remove(&check)?;
        let preloaded = workspace.run_well(&format!("preload: NVIDIA {name}"), command)?;
        judge_lines(major, &saw(&check)?)?;
        let alone = workspace.run_well(&format!("preload: NVIDIA {name} alone"), plain)?;
        if preloaded != alone {
            bail!("with the interposer it says {preloaded}, without {alone}");
        }
        Ok(())
    });
    Ok(())
}

/// The lookup by which a runtime finds the others, and what it finds by that.
fn judge_lines(major: u32, lines: &[String]) -> Result<()> {
    let lookup = if major == 11 { "cuGetProcAddress" } else { "cuGetProcAddress_v2" };
    let mut there = vec![format!("looked-up dlsym {lookup}")];
    there.extend(FOUND.iter().map(|name| format!("looked-up cuGetProcAddress {name}")));
    if major >= 12 {
        // It asks for the lookup itself too, in both its versions.
        there.extend(["", "_v2"].map(|end| format!("looked-up cuGetProcAddress cuGetProcAddress{end}")));
    }
    let later = "looked-up cuGetProcAddress cuCtxSynchronize_v2";
    let mut absent = vec!["called", "served"];
    if major >= 13 {
        there.push(later.to_owned());
    } else {
        absent.push(later);
    }
    judge(lines, &there.iter().map(String::as_str).collect::<Vec<_>>(), &absent)
}

/// Those of the wheels that have the headers too.
fn recent(workspace: &Workspace) -> Result<Vec<Runtime>> {
    let headers = cuda_headers::find(workspace)?;
    Ok(headers.iter().map(|headers| Runtime::beside(headers.major, &headers.include)).collect())
}

fn old(workspace: &Workspace) -> Result<Vec<Runtime>> {
    let environment = OLD.find(workspace)?;
    Ok(vec![Runtime::beside(11, &environment.packages().join("nvidia/cuda_runtime/include"))])
}

impl Runtime {
    fn beside(major: u32, include: &Path) -> Self {
        let lib = include.with_file_name("lib");
        let shared = lib.join(crate::simcuda::runtime(major));
        // Up to 12 a part of the archive is one of its own.
        let archives = ["libcudart_static.a", "libculibos.a"].map(|name| lib.join(name));
        let archives = archives.into_iter().filter(|path| path.exists()).collect();
        Self { major, shared, archives }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_asks_for_less_or_gets_another_is_noticed() {
        let lines = |lookup: &str| -> Vec<String> {
            let mut lines = vec![format!("looked-up dlsym {lookup}")];
            lines.extend(FOUND.iter().map(|name| format!("looked-up cuGetProcAddress {name}")));
            lines
        };
        assert!(judge_lines(11, &lines("cuGetProcAddress")).is_ok());
        assert!(judge_lines(11, &lines("cuGetProcAddress_v2")).is_err());
        assert!(judge_lines(12, &lines("cuGetProcAddress_v2")).is_err());
        assert!(judge_lines(11, &lines("cuGetProcAddress")[..16]).is_err());
        let mut more = lines("cuGetProcAddress");
        more.push("served 1000".to_owned());
        assert!(judge_lines(11, &more).is_err());
    }
}
