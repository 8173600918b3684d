//! RMM's wheels from PyPI, and the programs of ffi-tests/rmm compiled against them for the simulated driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cuda_headers;
use crate::python::{Environment, Packages, with_bfc};
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

/// The newest, with its Python and what that imports.
const NEWEST: Packages = Packages {
    name: "rmm",
    about: "RMM 26.10.0 (31 MB, 170 MB on the disk)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "librmm-cu13==26.10.0",
        "rmm-cu13==26.10.0",
        "rapids-logger==0.3.0",
        "cuda-bindings==13.5.0",
        "cuda-pathfinder==1.9.0",
        "numpy==2.4.6",
    ],
};

/// One without a library of its own; its resources have a base class.
const HEADERS_ONLY: Packages = Packages {
    name: "rmm-25",
    about: "RMM 25.4.0 (4 MB, 50 MB on the disk)",
    pip: &["--no-deps", "--only-binary=:all:", "librmm-cu12==25.4.0", "rapids-logger==0.1.19"],
};

/// The sources of the program with the cases.
const SOURCES: [&str; 7] = ["main", "behaviours", "streams", "failures", "threads", "containers", "repeated"];
/// What takes the place of those functions of RMM that call the runtime within its library.
const RUNTIME: &str = "runtime";

/// A version of RMM, and everything that is needed to compile with it and to run what was compiled.
pub struct Rmm {
    /// As users say it.
    pub version: &'static str,
    environment: Environment,
    /// Whether it has a library, with NVIDIA's runtime inside.
    has_library: bool,
    standard: &'static str,
    /// Of NVIDIA's runtime.
    headers: PathBuf,
    simulation: PathBuf,
    /// The installed libbfc.
    prefix: PathBuf,
}

impl Rmm {
    /// Both versions, which are fetched if need be; the newer one first.
    pub fn find(workspace: &Workspace, prefix: &Path) -> Result<[Self; 2]> {
        let simulation = simcuda::build(workspace)?;
        let versions = cuda_headers::find(workspace)?;
        let headers = versions.into_iter().find(|headers| headers.major == 13);
        let headers = headers.context("there are no headers of CUDA 13")?.include;
        let made = |version, packages: Packages, has_library, standard| -> Result<Self> {
            let environment = packages.find(workspace)?;
            let (headers, simulation, prefix) = (headers.clone(), simulation.clone(), prefix.to_owned());
            Ok(Self { version, environment, has_library, standard, headers, simulation, prefix })
        };
        Ok([made("26.10", NEWEST, true, "c++20")?, made("25.4", HEADERS_ONLY, false, "c++17")?])
    }

    /// Whether it has a library, and a package for Python.
    pub fn has_library(&self) -> bool {
        self.has_library
    }

    /// The interpreter with the package, and where its tests find what they load.
    pub fn python(&self, workspace: &Workspace) -> Command {
        let mut command = self.environment.command(workspace);
        with_bfc(&mut command, workspace, &self.prefix);
        command
    }

    /// What a loader has to look through.
    pub fn libraries(&self) -> Result<OsString> {
        let mut folders = vec![self.prefix.join("lib"), self.simulation.clone(), self.logger("lib64")];
        if self.has_library {
            folders.push(self.package("lib64"));
        }
        Ok(std::env::join_paths(folders)?)
    }

    /// Compiles the program with the cases; where it is.
    pub fn compile(&self, workspace: &Workspace) -> Result<PathBuf> {
        let folder = workspace.path("ffi-tests/rmm");
        let mut objects = Vec::new();
        let runtime = self.has_library.then_some(RUNTIME);
        for source in SOURCES.into_iter().chain(runtime) {
            let object = self.out(workspace, &format!("{source}.o"))?;
            let mut command = self.compiler(workspace);
            command.arg("-c").arg(folder.join(source).with_extension("cpp")).arg("-o").arg(&object);
            workspace.run_well(&format!("rmm {} compile {source}", self.version), command)?;
            objects.push(object);
        }
        let program = self.out(workspace, "rmm-tests")?;
        let mut command = self.compiler(workspace);
        command.args(&objects).arg("-o").arg(&program);
        self.link(&mut command);
        workspace.run_well(&format!("rmm {} link", self.version), command)?;
        Ok(program)
    }

    /// Compiles a program that consists of one file.
    pub fn compile_alone(&self, workspace: &Workspace, source: &Path) -> Result<PathBuf> {
        let program = self.out(workspace, &source.file_stem().unwrap_or_default().to_string_lossy())?;
        let mut command = self.compiler(workspace);
        command.arg(source).arg("-o").arg(&program);
        if self.has_library {
            command.arg(workspace.path("ffi-tests/rmm").join(RUNTIME).with_extension("cpp"));
        }
        self.link(&mut command);
        workspace.run_well(&format!("rmm {} compile {}", self.version, source.display()), command)?;
        Ok(program)
    }

    /// What takes the place of the runtime within librmm.so, as a library for `LD_PRELOAD`.
    pub fn preload(&self, workspace: &Workspace) -> Result<PathBuf> {
        let library = self.out(workspace, "librmm-runtime.so")?;
        let mut command = self.compiler(workspace);
        command.args(["-shared", "-fPIC"]).arg(workspace.path("ffi-tests/rmm/runtime.cpp"));
        command.arg("-o").arg(&library);
        self.link(&mut command);
        workspace.run_well("rmm runtime for Python", command)?;
        Ok(library)
    }

    fn out(&self, workspace: &Workspace, name: &str) -> Result<PathBuf> {
        let folder = workspace.target.join("rmm").join(self.version);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder.join(name))
    }

    fn package(&self, inside: &str) -> PathBuf {
        self.environment.packages().join("librmm").join(inside)
    }

    fn logger(&self, inside: &str) -> PathBuf {
        self.environment.packages().join("rapids_logger").join(inside)
    }

    fn compiler(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(tools::cxx_compiler());
        command.arg(format!("-std={}", self.standard));
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        // There is no nvcc, and no kernel that could run: thrust writes the simulated memory from the CPU.
        command.arg("-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP");
        // As RMM's own CMake says.
        command.arg("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE");
        command.arg("-I").arg(self.prefix.join("include"));
        let rmm = self.package("include");
        let rapids = rmm.join("rapids");
        for folder in [rmm, rapids.join("libcudacxx"), rapids, self.logger("include"), self.headers.clone()] {
            command.arg("-isystem").arg(folder);
        }
        command
    }

    fn link(&self, command: &mut Command) {
        command.arg("-L").arg(self.prefix.join("lib")).arg("-l:libbfc.so");
        command.arg("-L").arg(&self.simulation).args(["-l:libcudart.so.13", "-l:libcuda.so.1"]);
        command.arg("-L").arg(self.logger("lib64"));
        if self.has_library {
            command.arg("-L").arg(self.package("lib64")).arg("-lrmm");
        }
        command.args(["-lrapids_logger", "-ldl"]);
    }
}

/// A program of the C++ on a page: what is included goes to its head, and the rest into `main`.
pub fn page_as_program(code: &str) -> String {
    let (head, body): (Vec<&str>, Vec<&str>) = code.lines().partition(|line| line.starts_with("#include"));
    format!("{}\nint main() {{\n{}\n}}\n", head.join("\n"), body.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::page_as_program;

    #[test]
    fn the_code_of_a_page_is_a_program() {
        let code = "#include <a>\nint b;\n#include <d>\nf();\n";
        assert_eq!(page_as_program(code), "#include <a>\n#include <d>\nint main() {\nint b;\nf();\n}\n");
    }
}
