//! Frameworks with libbfc in the place of their own allocators, by the Python package: ffi-tests/gpu/frameworks.
//!
//! `run.sh` there does all of it, so that it runs where there is a GPU and no Rust. Here it runs on this machine's driver;
//! and PyTorch also on the simulated one, which shows that the programs work, that each allocator is the one it is called,
//! and nothing of losses, speeds or sizes: no kernel runs there.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::files;
use crate::python::plainly;
use crate::pytorch::PyTorch;
use crate::suites::context::{Context, Count};
use crate::tools;
use crate::workspace::Workspace;

const FILES: [&str; 7] =
    ["run.sh", "train.py", "gpt.py", "compare.py", "compare_test.py", "with_cupy.py", "with_numba.py"];

/// What of the package a machine without it needs: no installed tree, for the folder has one.
const OF_THE_PACKAGE: [&str; 2] = ["py", "cpp"];

/// Puts all that it needs into the folder that can be carried to another machine.
pub fn build(workspace: &Workspace, prefix: &Path, folder: &Path) -> Result<()> {
    for name in FILES {
        let inside = Path::new("frameworks").join(name);
        files::copy(&workspace.path("ffi-tests/gpu").join(&inside), &folder.join(&inside))?;
    }
    files::copy_all(&prefix.join("include"), &folder.join("include"))?;
    let package = workspace.path("python/src");
    // What is no longer in the checkout would stay.
    files::remove_all(&folder.join("python"))?;
    for extension in OF_THE_PACKAGE {
        for file in files::below(&package, extension)? {
            files::copy(&file, &folder.join("python").join(file.strip_prefix(&package)?))?;
        }
    }
    Ok(())
}

/// On the simulated driver, and on whatever driver there is.
pub fn run(context: &mut Context, folder: &Path) -> Result<()> {
    if files::program("python3").is_some() {
        let mut test = context.workspace.command("python3");
        plainly(&mut test);
        test.arg(folder.join("frameworks/compare_test.py"));
        context.program("frameworks: compare.py finds what is wrong", test, Count::One)?;
    }
    simulated(context, folder)?;
    let mut real = context.plain(context.workspace.command(folder.join("frameworks/run.sh")));
    real.arg(folder);
    let ended = context.program("frameworks, on this machine's driver", real, Count::Cargo)?;
    // The table is for people.
    ended.text.lines().filter(|line| line.starts_with("  ")).for_each(|line| println!("     | {line}"));
    Ok(())
}

/// PyTorch with each of the allocators. CuPy's and Numba's programs would need a compiler of NVIDIA's, and real kernels.
fn simulated(context: &mut Context, folder: &Path) -> Result<()> {
    const NAME: &str = "frameworks, PyTorch on the simulated driver: that it runs, no losses";
    let wanted = ["readelf".into(), tools::cxx_compiler()];
    let missing = wanted.into_iter().find(|tool| !tools::works(tool));
    if let Some(tool) = missing {
        context.skip(NAME, &format!("there is no {}", tool.display()));
        return Ok(());
    }
    // This suite fetches nothing.
    let Some(pytorch) = PyTorch::kept(&context.workspace)? else {
        context.skip(NAME, "PyTorch was not fetched yet: cargo xtask test --suite pytorch does so");
        return Ok(());
    };
    let ended = context.program(NAME, on_simulation(&context.workspace, &pytorch, folder), Count::Cargo)?;
    let skipped = ended.text.lines().filter(|line| line.contains(" ... ignored"));
    context.gate("frameworks: nothing of that was skipped", &skipped.map(str::to_owned).collect::<Vec<_>>());
    context.check("frameworks: run.sh finds a program that does not end", |workspace| {
        let mut command = on_simulation(workspace, &pytorch, folder);
        // Apart, so that what the run above has left can be looked at.
        let results = workspace.target.join("xtask/frameworks-cut-off");
        command.env("SECONDS_EACH", "0.1").env("RESULTS", results);
        let ended = workspace.run("frameworks: too little time", command)?;
        if ended.success || !ended.text.contains("torch_native: it ended with 124") {
            bail!("it does not say so: {}", ended.complaint());
        }
        Ok(())
    });
    Ok(())
}

fn on_simulation(workspace: &Workspace, pytorch: &PyTorch, folder: &Path) -> Command {
    let mut command = workspace.command(folder.join("frameworks/run.sh"));
    plainly(&mut command);
    let own = workspace.target.join("xtask");
    command.arg(folder).arg("torch").env("PYTHON", pytorch.python());
    command.env("LD_LIBRARY_PATH", pytorch.libraries());
    // What the package compiles is kept apart from what the user has, and so is what was seen.
    command.env("XDG_CACHE_HOME", own.join("python-cache")).env("RESULTS", own.join("frameworks"));
    command
}
