//! PyTorch's CUDA wheel from PyPI, on the simulated driver (ffi-tests/pytorch), and what it tells of a run.
//!
//! The wheel is large. It is kept in the user's cache, where all checkouts share it, and made anew if it is absent, half
//! there, or of another version. NVIDIA's libraries that it is linked with are larger still and are not fetched at all:
//! `stubs` makes libraries in their place.

mod differences;
mod stubs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

pub use differences::differences;

use crate::files;
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

/// The version that the simulated runtime was made for: it is linked with CUDA 13.
pub const VERSION: &str = "2.15.0";

/// What torch imports of others. numpy is not needed, and neither is triton, for nothing is compiled.
const NEEDS: [&str; 8] =
    ["filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec"];

/// PyTorch, and everything that it needs to believe in a GPU.
pub struct PyTorch {
    python: PathBuf,
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
}

/// The arguments of train.py for [`Allocator::Pluggable`].
pub fn of_libbfc(library: &Path) -> Result<[&str; 2]> {
    Ok(["--pluggable", library.to_str().context("the library's path is not UTF-8")?])
}

impl Allocator {
    /// The variable that chooses it.
    fn variable(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Caching | Self::Pluggable => None,
            Self::Plain => Some(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
            Self::Async => Some(("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")),
        }
    }
}

/// What `ffi-tests/pytorch/train.py` has seen.
pub struct Facts {
    /// What must not depend on who allocates.
    pub same: Value,
    /// What this run has seen besides, of the simulated driver in particular.
    pub seen: Value,
}

impl PyTorch {
    /// The one in the cache, which is filled if need be; the simulation and the stubs are built.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        let venv = tools::cache()?.join("libbfc/pytorch");
        let packages = match Self::inside(&venv)? {
            Some(packages) => packages,
            None => Self::fetch(workspace, &venv)?,
        };
        let simulation = simcuda::build(workspace)?;
        let stubs = stubs::build(workspace, &packages.join("torch/lib"))?;
        let libraries = std::env::join_paths([simulation, stubs])?;
        Ok(Self { python: venv.join("bin/python"), libraries })
    }

    fn fetch(workspace: &Workspace, venv: &Path) -> Result<PathBuf> {
        println!(
            "  fetching PyTorch {VERSION} from PyPI into {} (about 550 MB, 1.3 GB on the disk, once)",
            venv.display()
        );
        let package = format!("torch=={VERSION}");
        let mut arguments = vec!["--no-deps", "--only-binary=:all:", &package];
        arguments.extend(NEEDS);
        tools::virtual_environment(workspace, venv, &arguments)?;
        Self::inside(venv)?.with_context(|| {
            format!("{package} was installed into {} and is not as expected there", venv.display())
        })
    }

    /// The packages of a virtual environment, if it is whole and of the right version.
    fn inside(venv: &Path) -> Result<Option<PathBuf>> {
        for python in files::entries(&venv.join("lib"))? {
            let packages = python.join("site-packages");
            // pip writes RECORD last, and installs torch after what it needs.
            let record = format!("torch-{VERSION}.dist-info/RECORD");
            let parts = [
                packages.join(record),
                packages.join("torch/lib/libtorch_cuda.so"),
                packages.join("sympy"),
                venv.join("bin/python"),
            ];
            if parts.iter().all(|part| part.exists()) {
                return Ok(Some(packages));
            }
        }
        Ok(None)
    }

    /// Trains under a launcher, and gives what was seen. More arguments go to train.py.
    pub fn train(
        &self,
        workspace: &Workspace,
        launcher: &Launcher,
        allocator: Allocator,
        arguments: &[&str],
    ) -> Result<Facts> {
        let name = format!("pytorch {} {allocator:?} {}", launcher.name, arguments.join(" "));
        let out = workspace.target.join("pytorch/facts.json");
        files::write(&out, "")?;
        let words = launcher.prefix.iter().cloned().chain([self.python.clone().into_os_string()]);
        let words: Vec<OsString> = words.collect();
        let mut command = workspace.command(&words[0]);
        command.args(&words[1..]).args(["-W", "ignore"]);
        command.arg(workspace.path("ffi-tests/pytorch/train.py")).arg("--out").arg(&out).args(arguments);
        plainly(&mut command);
        command.env("LD_LIBRARY_PATH", &self.libraries).envs(allocator.variable());
        command.envs(launcher.environment.iter().map(|(name, value)| (name, value)));
        workspace.run_well(&name, command)?;
        let text = files::read(&out)?;
        let mut facts: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", out.display()))?;
        Ok(Facts { same: facts["same"].take(), seen: facts["seen"].take() })
    }

    /// Loads all of torch's libraries with every symbol resolved: what a stub forgot is missing here.
    pub fn import(&self, workspace: &Workspace) -> Result<()> {
        let mut command = workspace.command(&self.python);
        let program = "import torch, ctypes, os\n\
             folder = os.path.join(os.path.dirname(torch.__file__), 'lib')\n\
             ctypes.CDLL(os.path.join(folder, 'libtorch_cuda_linalg.so'))\n\
             assert torch.cuda.is_available(), 'torch sees no device'\n";
        command.args(["-W", "ignore", "-c", program]);
        plainly(&mut command);
        command.env("LD_LIBRARY_PATH", &self.libraries).env("LD_BIND_NOW", "1");
        workspace.run_well("pytorch import", command).map(drop)
    }
}

/// Without the variables that steer the library, PyTorch, Python or the simulation: a test is about the checkout and not
/// about what the user has set.
fn plainly(command: &mut std::process::Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["BFC_", "PYTORCH_", "TORCH_", "CUDA_", "SIMCUDA_", "PYTHON"].iter().any(|of| text.starts_with(of))
        {
            command.env_remove(&name);
        }
    }
    // What Python compiles of ours would lie in the checkout.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_and_a_cut_off_installation_are_not_taken() {
        let venv = std::env::temp_dir().join(format!("xtask-pytorch-{}", std::process::id()));
        let packages = venv.join("lib/python3.11/site-packages");
        let taken = || PyTorch::inside(&venv).expect("readable").is_some();
        assert!(!taken());
        for part in ["torch/lib/libtorch_cuda.so", "sympy/__init__.py"] {
            files::write(&packages.join(part), "").expect("writable");
        }
        files::write(&venv.join("bin/python"), "").expect("writable");
        files::write(&packages.join("torch-2.14.0.dist-info/RECORD"), "").expect("writable");
        assert!(!taken());
        files::write(&packages.join(format!("torch-{VERSION}.dist-info/RECORD")), "").expect("writable");
        assert!(taken());
        files::remove_all(&venv).expect("removed");
    }
}
