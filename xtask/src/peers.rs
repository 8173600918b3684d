//! libbfc beside other allocators: the section `peers` of the benchmark. benches/peers does the work. This file
//! compiles those peers that are not crates, as far as they are available.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::cargo;
use crate::files;
use crate::simcuda;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, succeed, without};

const FOLDER: &str = "benches/peers";

/// Builds everything, times it, and writes tables and charts.
pub fn measure(workspace: &Workspace, prefix: &Path, quick: bool) -> Result<()> {
    succeed(command(workspace, prefix, quick)?.0)
}

/// A command of cargo on the crate in benches/peers.
pub fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = cargo::cargo(workspace, args);
    command.arg("--manifest-path").arg(workspace.path(FOLDER).join("Cargo.toml"));
    // Not beside this workspace's files, because it belongs to another workspace.
    command.arg("--target-dir").arg(workspace.target.join("bench/peers-build"));
    command
}

/// A peer that is unavailable, and the reason.
pub type Missing = (&'static str, anyhow::Error);

/// The benchmark, with the available peers compiled.
pub fn command(workspace: &Workspace, prefix: &Path, quick: bool) -> Result<(Command, Vec<Missing>)> {
    let natives = Natives { workspace, prefix, simulation: simcuda::build(workspace)? };
    let all: [(&'static str, Result<PathBuf>); 5] = [
        ("libbfc", natives.libbfc()),
        ("tensorflow", natives.tensorflow()),
        ("pytorch", natives.pytorch()),
        ("rmm-pool", natives.rmm("rmm-pool", &[])),
        ("rmm-arena", natives.rmm("rmm-arena", &["-DPEER_ARENA"])),
    ];
    let mut command = cargo(workspace, &["run", "--release"]);
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
    command.args(quick.then_some("--quick"));
    command.arg("--out").arg(workspace.target.join("bench/peers"));
    // Two are enough to show that it runs: one of training, and one of serving.
    let is_used = |trace: &&PathBuf| {
        !quick || trace.ends_with("gpt2.trace.gz") || trace.ends_with("serve_mix.trace.gz")
    };
    command.args(files::below(&workspace.path("tests/traces"), "gz")?.iter().filter(is_used));
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
        self.compile("libbfc", "libbfc.c", "c11", &[], &[], &[(&self.prefix.join("lib"), "libbfc.so")])
    }

    fn tensorflow(&self) -> Result<PathBuf> {
        let package = uv::packages(self.workspace, "ffi-tests/tensorflow")?.join("tensorflow");
        let links = [(&*package, "libtensorflow_framework.so.2")];
        let defines = ["-D_GLIBCXX_USE_CXX11_ABI=1"];
        self.compile("tensorflow", "tensorflow.cc", "c++17", &defines, &[package.join("include")], &links)
    }

    fn pytorch(&self) -> Result<PathBuf> {
        let package = uv::packages(self.workspace, "ffi-tests/pytorch")?.join("torch");
        let include = [package.join("include"), self.cuda_headers()?];
        let (lib, cuda) = (&*package.join("lib"), &*self.simulation);
        let links = [(lib, "libc10_cuda.so"), (lib, "libc10.so"), (cuda, "libcudart.so.13")];
        self.compile("pytorch", "pytorch.cpp", "c++20", &[], &include, &links)
    }

    /// RMM 25.4, which is headers only.
    fn rmm(&self, name: &str, defines: &[&str]) -> Result<PathBuf> {
        let packages = uv::packages(self.workspace, "ffi-tests/rmm/headers-25")?;
        let (rmm, logger) = (packages.join("librmm/include"), packages.join("rapids_logger"));
        let rapids = rmm.join("rapids");
        let include = [rapids.join("libcudacxx"), rapids, rmm, logger.join("include"), self.cuda_headers()?];
        let (lib, cuda) = (&*logger.join("lib64"), &*self.simulation);
        let links = [(cuda, "libcudart.so.13"), (cuda, "libcuda.so.1"), (lib, "librapids_logger.so")];
        let host = "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP";
        let defines = [&[host, "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"], defines].concat();
        self.compile(name, "rmm.cpp", "c++17", &defines, &include, &links)
    }

    fn cuda_headers(&self) -> Result<PathBuf> {
        Ok(uv::packages(self.workspace, "ffi-tests/rmm")?.join("nvidia/cu13/include"))
    }

    /// Compiles a file of native/ to a shared library.
    fn compile(
        &self,
        name: &str,
        source: &str,
        standard: &str,
        defines: &[&str],
        include: &[PathBuf],
        libraries: &[(&Path, &str)],
    ) -> Result<PathBuf> {
        let library = self.workspace.target.join("bench/peers-native").join(format!("{name}.so"));
        let source = self.workspace.path(FOLDER).join("native").join(source);
        let own = self.prefix.join("include");
        let mut command = tools::compiler_of(self.workspace, standard, &own, include);
        command.args(["-shared", "-fPIC"]).args(defines);
        tools::compile(self.workspace, command, &[source], libraries, &library)?;
        Ok(library)
    }
}
