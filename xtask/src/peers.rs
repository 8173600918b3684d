//! libbfc beside other allocators: the section `peers` of the benchmark. benches/peers does it; here its peers that are
//! no crates are compiled, as far as they can be had.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::bench;
use crate::cargo;
use crate::files;
use crate::simcuda;
use crate::tensorflow;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, without};

const FOLDER: &str = "benches/peers";

/// Builds everything, times it, and writes tables and charts.
pub fn measure(workspace: &Workspace, prefix: &Path, quick: bool) -> Result<()> {
    bench::succeed(command(workspace, prefix, quick)?.0)
}

/// Where tables and charts are.
pub fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("bench/peers")
}

/// A command of cargo on the crate in benches/peers.
pub fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = cargo::cargo(workspace, args);
    command.arg("--manifest-path").arg(workspace.path(FOLDER).join("Cargo.toml"));
    // Not beside what this workspace builds: it is another one's.
    command.arg("--target-dir").arg(workspace.target.join("bench/peers-build"));
    command
}

/// A peer that is not there, and why.
pub type Missing = (&'static str, anyhow::Error);

/// The benchmark, with the peers that can be had compiled.
pub fn command(workspace: &Workspace, prefix: &Path, quick: bool) -> Result<(Command, Vec<Missing>)> {
    let natives = Natives { workspace, prefix, simulation: simcuda::build(workspace)? };
    let all: [(&'static str, Result<PathBuf>); 5] = [
        ("libbfc", natives.libbfc()),
        ("tensorflow", natives.tensorflow()),
        ("pytorch", natives.pytorch()),
        ("rmm-pool", natives.rmm("rmm-pool", &[])),
        ("rmm-arena", natives.rmm("rmm-arena", &["-DPEER_ARENA"])),
    ];
    let mut command = cargo(workspace, &["run", "--release", "--quiet"]);
    command.arg("--");
    let mut missing = Vec::new();
    for (peer, built) in all {
        match built {
            Ok(library) => {
                command.arg(format!("--native={peer}={}", library.display()));
            }
            Err(why) => {
                command.arg(format!("--missing={peer}={why:#}"));
                missing.push((peer, why));
            }
        }
    }
    if quick {
        command.arg("--quick");
    }
    command.arg("--out").arg(folder(workspace));
    command.args(files::below(&workspace.path("tests/traces"), "gz")?);
    without(&mut command, &["BFC_", "SIMCUDA_", "LD_PRELOAD", "PYTORCH_", "MIMALLOC_", "MALLOC_"]);
    command.env("LD_LIBRARY_PATH", &natives.simulation).env("SIMCUDA_MEMORY", (1_u64 << 40).to_string());
    command.env("TF_CPP_MIN_LOG_LEVEL", "3");
    Ok((command, missing))
}

/// Compiles native/ of the benchmark.
struct Natives<'a> {
    workspace: &'a Workspace,
    prefix: &'a Path,
    simulation: PathBuf,
}

impl Natives<'_> {
    fn libbfc(&self) -> Result<PathBuf> {
        let mut command = self.workspace.command(tools::c_compiler());
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]);
        command.arg("-I").arg(self.prefix.join("include"));
        self.compile(command, "libbfc.c", "libbfc", &[(&self.prefix.join("lib"), "libbfc.so")])
    }

    fn tensorflow(&self) -> Result<PathBuf> {
        let package = tensorflow::find(self.workspace)?;
        let mut command = self.cxx("c++17");
        command.arg("-D_GLIBCXX_USE_CXX11_ABI=1").arg("-isystem").arg(package.join("include"));
        self.compile(command, "tensorflow.cc", "tensorflow", &[(&package, "libtensorflow_framework.so.2")])
    }

    fn pytorch(&self) -> Result<PathBuf> {
        let package = uv::packages(self.workspace, "ffi-tests/pytorch")?.join("torch");
        let mut command = self.cxx("c++20");
        command.arg("-isystem").arg(package.join("include")).arg("-isystem").arg(self.cuda_headers()?);
        let (lib, cuda) = (&*package.join("lib"), &*self.simulation);
        let links = [(lib, "libc10_cuda.so"), (lib, "libc10.so"), (cuda, "libcudart.so.13")];
        self.compile(command, "pytorch.cpp", "pytorch", &links)
    }

    /// RMM 25.4, which has no library of its own.
    fn rmm(&self, name: &str, defines: &[&str]) -> Result<PathBuf> {
        let packages = uv::packages(self.workspace, "ffi-tests/rmm/headers-25")?;
        let include = packages.join("librmm/include");
        let logger = packages.join("rapids_logger");
        let mut command = self.cxx("c++17");
        command.args([
            "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP",
            "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
        ]);
        command.args(defines);
        let folders =
            [include.join("rapids/libcudacxx"), include.join("rapids"), include, logger.join("include")];
        for folder in folders.into_iter().chain([self.cuda_headers()?]) {
            command.arg("-isystem").arg(folder);
        }
        let (lib, cuda) = (&*logger.join("lib64"), &*self.simulation);
        let links = [(cuda, "libcudart.so.13"), (cuda, "libcuda.so.1"), (lib, "librapids_logger.so")];
        self.compile(command, "rmm.cpp", name, &links)
    }

    fn cxx(&self, standard: &str) -> Command {
        let mut command = self.workspace.command(tools::cxx_compiler());
        command.arg(format!("-std={standard}")).args(["-Wall", "-Wextra", "-Werror", "-pthread"]);
        command
    }

    fn cuda_headers(&self) -> Result<PathBuf> {
        Ok(uv::packages(self.workspace, "ffi-tests/rmm")?.join("nvidia/cu13/include"))
    }

    /// Compiles a file of native/ to a shared library that finds its own libraries.
    fn compile(
        &self,
        mut command: Command,
        source: &str,
        name: &str,
        libraries: &[(&Path, &str)],
    ) -> Result<PathBuf> {
        let folder = self.workspace.target.join("bench/peers-native");
        let library = folder.join(format!("{name}.so"));
        files::write(&library, "")?;
        command.args(["-O2", "-shared", "-fPIC"]).arg("-o").arg(&library);
        command.arg(self.workspace.path(FOLDER).join("native").join(source));
        for (folder, library) in libraries {
            tools::link(&mut command, folder, library);
        }
        self.workspace.run_well(&format!("bench: compile {FOLDER}/native/{source}"), command)?;
        Ok(library)
    }
}
