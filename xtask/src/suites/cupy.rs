//! The suite `cupy`: CuPy's and Numba's own classes with libbfc's memory, on the simulated driver. See ffi-tests/cupy.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::context::Context;
use crate::pages::owned::Owned;
use crate::python::{Environment, Packages, with_bfc};
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

/// Both packages with what they import; without NVIDIA's compilers and libraries, which nothing here needs.
const PACKAGES: Packages = Packages {
    name: "cupy",
    about: "CuPy 14.2.0 and numba-cuda 0.30.4 (about 170 MB, 570 MB on the disk)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "cupy-cuda13x==14.2.0",
        "numba-cuda==0.30.4",
        "numba==0.68.1",
        "llvmlite==0.50.0",
        "cuda-bindings==13.5.0",
        "cuda-core==1.2.2",
        "cuda-pathfinder==1.9.0",
        "numpy==2.4.6",
        "packaging==26.3",
    ],
};

/// What names the module to Numba.
const MANAGER: (&str, &str) = ("NUMBA_CUDA_MEMORY_MANAGER", "bfc.numba");

/// The cases of with_cupy.py.
const OF_CUPY: [&str; 26] = [
    "own_pool",
    "arrays",
    "arrays_by_anyone",
    "reuse_in_order",
    "reuse_by_anyone",
    "in_order_on_streams",
    "in_order_on_streams_by_anyone",
    "disorder_is_seen",
    "streams_end",
    "out_of_memory",
    "out_of_memory_by_anyone",
    "others_run",
    "others_run_by_anyone",
    "streams_have_two_objects",
    "other_failures",
    "other_failures_by_anyone",
    "random_sizes",
    "random_sizes_by_anyone",
    "threads",
    "threads_by_anyone",
    "two_devices",
    "two_devices_by_anyone",
    "others_stay",
    "captured",
    "at_the_end",
    "page",
];

/// The cases of with_numba.py, and whether the environment names the memory manager.
const OF_NUMBA: [(&str, bool); 16] = [
    ("own_manager", false),
    ("by_the_variable", true),
    ("arrays", true),
    ("reuse", true),
    ("on_streams", true),
    ("disorder_is_seen", true),
    ("out_of_memory", true),
    ("other_failures", true),
    ("random_sizes", true),
    ("others_stay", true),
    ("memory_info", true),
    ("ipc", true),
    ("reset", true),
    ("two_devices", true),
    ("beside_cupy", true),
    // The page names it.
    ("page", false),
];

/// Each case in a process of its own.
pub fn run(context: &mut Context) -> Result<()> {
    if let Some(why) = lacking() {
        context.skip("all of it", &why);
        return Ok(());
    }
    let Some(environment) = context.or_skip("all of it", PACKAGES.find(&context.workspace))? else {
        return Ok(());
    };
    let simulation = simcuda::build(&context.workspace)?;
    let prefix = context.prefix()?;
    let with = With { environment, simulation, prefix };
    let pages = Owned::of_suite(&context.workspace, "cupy")?;
    let of_cupy = OF_CUPY.map(|case| with.program(&context.workspace, "with_cupy", case, None));
    let of_numba = OF_NUMBA.map(|(case, is_named)| {
        with.program(&context.workspace, "with_numba", case, is_named.then_some(MANAGER))
    });
    context.programs(of_cupy.into_iter().chain(of_numba).collect())?;
    context.all_ran(&pages);
    Ok(())
}

/// Why it cannot run here, if it cannot.
fn lacking() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some(format!(
            "CuPy's runtime is redirected on x86_64 only, and this is {}",
            std::env::consts::ARCH
        ));
    }
    let compiler = tools::c_compiler();
    let wanted = [compiler.as_os_str(), OsStr::new("readelf")];
    let missing = wanted.into_iter().find(|tool| !tools::works(tool));
    missing.map(|tool| format!("there is no {}", tool.display()))
}

/// What the programs run with.
struct With {
    environment: Environment,
    simulation: PathBuf,
    prefix: PathBuf,
}

impl With {
    /// A case, with its name.
    fn program(
        &self,
        workspace: &Workspace,
        program: &str,
        case: &str,
        variable: Option<(&str, &str)>,
    ) -> (String, Command) {
        let mut command = self.environment.command(workspace);
        command.arg(workspace.path(format!("ffi-tests/cupy/{program}.py"))).arg(case);
        with_bfc(&mut command, workspace, &self.prefix);
        command.env("LD_LIBRARY_PATH", &self.simulation).env("SIMCUDA_DEVICES", "2");
        command.env("CUPY_CACHE_DIR", workspace.target.join("xtask/cupy"));
        command.envs(variable);
        (format!("{program} {case}"), command)
    }
}
