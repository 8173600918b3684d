//! Frameworks with libbfc in the place of their own allocators, by the Python package: ffi-tests/gpu/frameworks.
//!
//! `run.sh` there does all of it, so that it runs where there is a GPU and no Rust. Here it runs on this machine's driver;
//! and PyTorch also on the simulated one, which shows that the programs work, that each allocator is the one it is called,
//! and nothing of losses, speeds or sizes: no kernel runs there.

use std::path::Path;

use anyhow::Result;

use crate::files;
use crate::suites::context::{Context, Count};
use crate::workspace::{Workspace, plainly};

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
    context.pytest_of("gpu", &[("LIBBFC_TESTS_GPU", folder.to_owned())])?;
    let mut real = context.plain(context.workspace.command(folder.join("frameworks/run.sh")));
    real.arg(folder);
    let ended = context.program("frameworks, on this machine's driver", real, Count::Cargo)?;
    // The table is for people.
    ended.text.lines().filter(|line| line.starts_with("  ")).for_each(|line| println!("     | {line}"));
    Ok(())
}
