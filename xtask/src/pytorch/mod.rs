//! PyTorch's CUDA wheel from PyPI, on the simulated driver (ffi-tests/pytorch), and what it tells of a run.
//!
//! NVIDIA's libraries that it is linked with are larger still and are not fetched at all: `stubs` makes libraries in their
//! place.

mod differences;
mod stubs;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

pub use differences::differences;

use crate::files;
use crate::pages::owned::Owned;
use crate::python::{Environment, Packages, plainly, with_bfc};
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

/// PyTorch with what it imports of others, and the models of transformers with theirs. Without dependencies: those of torch
/// are NVIDIA's libraries, and triton, which nothing here needs.
const PACKAGES: Packages = Packages {
    name: "pytorch",
    about: "PyTorch 2.15.0 and transformers (about 600 MB, 1.6 GB on the disk)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "torch==2.15.0",
        "filelock==4.2.11",
        "typing-extensions==4.16.0",
        "sympy==1.14.0",
        "mpmath==1.4.1",
        "networkx==3.6.1",
        "jinja2==3.1.6",
        "markupsafe==3.0.4",
        "fsspec==2026.9.0",
        "transformers==5.23.0",
        "numpy==2.4.6",
        "huggingface-hub==2.4.0",
        "packaging==26.3",
        "pyyaml==6.0.3",
        "regex==2026.11.15",
        "safetensors==0.8.0",
        "tokenizers==0.23.3",
        "tqdm==4.70.1",
        "typer==0.29.2",
        "annotated-doc==0.0.7",
        "click==8.5.1",
        "hf-xet==1.8.0",
        "httpx2==2.16.2",
        "httpcore2==2.16.2",
        "pydantic==2.14.3",
        "pydantic-core==2.50.4",
        "rich==15.0.0",
        "shellingham==1.5.4",
        "annotated-types==0.8.0",
        "anyio==4.16.0",
        "idna==3.20",
        "markdown-it-py==4.3.0",
        "pygments==2.21.0",
        "truststore==0.10.5",
        "typing-inspection==0.4.5",
        "h11==0.16.0",
        "mdurl==0.1.2",
    ],
};

/// PyTorch, and everything that it needs to believe in a GPU.
pub struct PyTorch {
    environment: Environment,
    /// Where a loader has to look: the simulated driver and runtime, and the libraries in place of NVIDIA's.
    libraries: OsString,
}

/// What runs a program and under which name: an interposer, say. Nothing for the program alone.
#[derive(Clone, Default)]
pub struct Launcher {
    /// Its name in the account of the tests.
    pub name: String,
    /// What stands in front of the program and its arguments.
    pub prefix: Vec<OsString>,
    /// What is set for it.
    pub environment: Vec<(OsString, OsString)>,
}

/// Where PyTorch takes its memory from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Allocator {
    /// Its own, which caches what cudaMalloc gave.
    Caching,
    /// cudaMalloc and cudaFree, each time.
    Plain,
    /// cudaMallocAsync and cudaFreeAsync, each time.
    Async,
    /// libbfc, by the functions of bfc_adapters.h: see [`of_libbfc`].
    Pluggable,
    /// libbfc, by Python's package: `bfc.torch.use()`.
    Package,
}

/// The arguments of train.py for [`Allocator::Pluggable`].
pub fn of_libbfc(library: &Path) -> Result<[&str; 2]> {
    Ok(["--pluggable", library.to_str().context("the library's path is not UTF-8")?])
}

impl Allocator {
    /// The variable that chooses it.
    fn variable(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Caching | Self::Pluggable | Self::Package => None,
            Self::Plain => Some(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
            Self::Async => Some(("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")),
        }
    }
}

/// What a program of ffi-tests/pytorch has seen.
pub struct Facts {
    /// What must not depend on who allocates.
    pub same: Value,
    /// What this run has seen besides, of the simulated driver in particular.
    pub seen: Value,
}

impl PyTorch {
    /// The one in the cache, which is filled if need be; the simulation and the stubs are built.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        Self::of(workspace, PACKAGES.find(workspace)?)
    }

    /// The same if it is in the cache already.
    pub fn kept(workspace: &Workspace) -> Result<Option<Self>> {
        PACKAGES.kept()?.map(|environment| Self::of(workspace, environment)).transpose()
    }

    fn of(workspace: &Workspace, environment: Environment) -> Result<Self> {
        let simulation = simcuda::build(workspace)?;
        let stubs = stubs::build(workspace, &environment.packages().join("torch/lib"))?;
        let libraries = std::env::join_paths([simulation, stubs])?;
        Ok(Self { environment, libraries })
    }

    /// Trains under a launcher, and gives what was seen. More arguments go to train.py.
    pub fn train(
        &self,
        workspace: &Workspace,
        launcher: &Launcher,
        allocator: Allocator,
        arguments: &[&str],
    ) -> Result<Facts> {
        self.launched(workspace, launcher, allocator, "train.py", arguments)
    }

    /// Runs graphs.py under a launcher, with some of its cases, and gives what was seen.
    pub fn graphs(
        &self,
        workspace: &Workspace,
        launcher: &Launcher,
        allocator: Allocator,
        cases: &[&str],
    ) -> Result<Facts> {
        self.launched(workspace, launcher, allocator, "graphs.py", cases)
    }

    fn launched(
        &self,
        workspace: &Workspace,
        launcher: &Launcher,
        allocator: Allocator,
        program: &str,
        arguments: &[&str],
    ) -> Result<Facts> {
        let name = format!("pytorch {program} {} {allocator:?} {}", launcher.name, arguments.join(" "));
        let words = launcher.prefix.iter().cloned().chain([self.environment.python().into_os_string()]);
        let words: Vec<OsString> = words.collect();
        let mut command = workspace.command(&words[0]);
        command.args(&words[1..]);
        plainly(&mut command);
        Owned::tell(workspace, &mut command);
        command.envs(allocator.variable());
        command.envs(launcher.environment.iter().map(|(name, value)| (name, value)));
        self.facts(workspace, &name, command, program, arguments)
    }

    /// Runs steps.py, with the package bfc of the checkout and an installed library, and gives what was seen.
    pub fn steps(
        &self,
        workspace: &Workspace,
        prefix: &Path,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<Facts> {
        let variables = environment.iter().map(|(name, value)| format!(" {name}={value}"));
        let name = format!("pytorch steps {}{}", arguments.join(" "), variables.collect::<String>());
        let mut command = self.environment.command(workspace);
        with_bfc(&mut command, workspace, prefix);
        command.env("HF_HUB_OFFLINE", "1");
        command.envs(environment.iter().copied());
        self.facts(workspace, &name, command, "steps.py", arguments)
    }

    /// Runs a program of ffi-tests/pytorch, to whose interpreter the command leads.
    fn facts(
        &self,
        workspace: &Workspace,
        name: &str,
        mut command: Command,
        program: &str,
        arguments: &[&str],
    ) -> Result<Facts> {
        let out = workspace.target.join("pytorch/facts.json");
        files::write(&out, "")?;
        command.args(["-W", "ignore"]).arg(workspace.path("ffi-tests/pytorch").join(program));
        command.arg("--out").arg(&out).args(arguments).env("LD_LIBRARY_PATH", &self.libraries);
        workspace.run_well(name, command)?;
        let text = files::read(&out)?;
        let mut facts: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", out.display()))?;
        Ok(Facts { same: facts["same"].take(), seen: facts["seen"].take() })
    }

    /// A case of ffi-tests/pytorch/package.py, with the package where the launcher says.
    pub fn case(&self, workspace: &Workspace, launcher: &Launcher, case: &[&str]) -> Command {
        let mut command = self.command(workspace);
        command.arg(workspace.path("ffi-tests/pytorch/package.py")).args(case);
        command.envs(launcher.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Where a loader has to look for the simulation, and for the libraries in place of NVIDIA's.
    pub fn libraries(&self) -> &OsStr {
        &self.libraries
    }

    /// The interpreter.
    pub fn python(&self) -> PathBuf {
        self.environment.python()
    }

    /// Python with PyTorch, which wants NVIDIA's libraries and a runtime also where it is never asked for a GPU.
    pub fn command(&self, workspace: &Workspace) -> Command {
        let mut command = self.environment.command(workspace);
        command.env("LD_LIBRARY_PATH", &self.libraries).args(["-W", "ignore"]);
        command
    }

    /// Compiles a program (in ffi-tests/pytorch-cpu, or where its path says) against an installed libbfc, and links it with
    /// libc10 alone, which needs nothing of NVIDIA's.
    pub fn compile(
        &self,
        workspace: &Workspace,
        source: impl AsRef<Path>,
        prefix: &Path,
        out: &Path,
    ) -> Result<()> {
        files::write(out, "")?;
        let torch = self.environment.packages().join("torch");
        let mut command = workspace.command(tools::cxx_compiler());
        command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg("-D_GLIBCXX_USE_CXX11_ABI=1").arg("-isystem").arg(torch.join("include"));
        command.arg("-I").arg(prefix.join("include"));
        command.arg(workspace.path("ffi-tests/pytorch-cpu").join(&source)).arg("-o").arg(out);
        for (folder, library) in [(prefix.join("lib"), "libbfc.so"), (torch.join("lib"), "libc10.so")] {
            let folder = folder.display();
            command.args([format!("-L{folder}"), format!("-l:{library}"), format!("-Wl,-rpath,{folder}")]);
        }
        workspace.run_well(&format!("compile {}", source.as_ref().display()), command).map(drop)
    }

    /// Loads all of torch's libraries with every symbol resolved: what a stub forgot is missing here.
    pub fn import(&self, workspace: &Workspace) -> Result<()> {
        let mut command = self.command(workspace);
        let program = "import torch, ctypes, os\n\
             folder = os.path.join(os.path.dirname(torch.__file__), 'lib')\n\
             ctypes.CDLL(os.path.join(folder, 'libtorch_cuda_linalg.so'))\n\
             assert torch.cuda.is_available(), 'torch sees no device'\n";
        command.args(["-c", program]).env("LD_BIND_NOW", "1");
        workspace.run_well("pytorch import", command).map(drop)
    }
}
