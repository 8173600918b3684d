//! `cargo xtask gpu`: the folder `target/gpu`, which checks libbfc on a machine with an NVIDIA GPU. ffi-tests/gpu describes it.
//!
//! That machine needs a driver and Python, but no Rust, no compiler and no network. So the folder contains everything
//! else: the release build, test programs, the Python package with the sources of its shims, and less common Python
//! packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::install;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, capture};

/// The folder must be smaller, to be carried to such a machine.
const MOST_BYTES: u64 = 45 << 20;

/// The suite that runs on every backend, as separate programs.
const CONFORMANCE: [&str; 2] = ["conformance_cuda", "conformance_cuda_vmm"];

/// The CPython version of a typical machine.
pub const PYTHON: &str = "3.12";

/// The sources of the pack.
const SOURCES: &str = "ffi-tests/gpu";

/// The arguments of `cargo xtask gpu`.
#[derive(Args)]
pub struct Gpu {
    /// Write docs/gpu.md from the result files in docs/gpu instead of printing how to run the pack
    #[arg(long)]
    page: bool,
}

impl Gpu {
    /// Builds the pack.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let built = cargo::build(workspace, Profile::Release)?;
        let pack = pack(workspace, &built)?;
        if self.page {
            let page = workspace.path("docs/gpu.md");
            files::write(&page, text_of_page(workspace, &pack)?)?;
            println!("wrote {}", page.display());
            return Ok(());
        }
        let mib = size(&pack)? >> 20;
        println!("{} ({mib} MiB): copy it to a machine with an NVIDIA GPU, and run there", pack.display());
        println!("  gpu/run --minutes 6 --out results");
        Ok(())
    }
}

/// Builds `target/gpu` anew from a release build.
pub fn pack(workspace: &Workspace, built: &Built) -> Result<PathBuf> {
    tools::need_compilers()?;
    let pack = workspace.target.join("gpu");
    let _lock = tools::lock(&pack)?;
    files::remove_all(&pack)?;
    copy_libbfc(workspace, built, &pack)?;
    copy_conformance(workspace, &pack)?;
    files::copy(&workspace.path(SOURCES).join("README.md"), &pack.join("README.md"))?;
    files::copy_all(&workspace.path(SOURCES).join("pack"), &pack)?;
    compile_programs(workspace, &pack)?;
    copy_carried(workspace, &pack)?;
    files::write(&pack.join("VERSION"), version(workspace))?;
    let bytes = size(&pack)?;
    ensure!(
        bytes <= MOST_BYTES,
        "{} has {} MiB, more than {} MiB: too large to be carried",
        pack.display(),
        bytes >> 20,
        MOST_BYTES >> 20
    );
    Ok(pack)
}

/// The text of docs/gpu.md.
pub fn text_of_page(workspace: &Workspace, pack: &Path) -> Result<String> {
    let mut command = workspace.command("python3");
    command.arg(pack.join("run")).arg("--page").args(files::below(&workspace.path("docs/gpu"), "jsonl")?);
    capture(&mut command)
}

/// The library, the interposer, the command, the headers and the Python package.
fn copy_libbfc(workspace: &Workspace, built: &Built, pack: &Path) -> Result<()> {
    let stage = workspace.target.join("xtask/gpu-stage");
    install::stage_tree(workspace, &stage, Path::new("lib"), built)?;
    for file in ["lib/libbfc_preload.so", "bin/bfc"] {
        files::copy(&stage.join(file), &pack.join(file))?;
    }
    // The library itself and no link to it, because some ways of copying lose links.
    let soname = Path::new("lib").join(&workspace.soname);
    files::copy(&stage.join(&soname), &pack.join(&soname))?;
    files::copy_all(&stage.join("include"), &pack.join("include"))?;
    files::remove_all(&stage)?;
    let package = workspace.path("python/src/bfc");
    for file in files::all(&package)? {
        let inside = file.strip_prefix(&package)?;
        // A wheel's own installed tree and shims, which `cargo xtask wheel --stage` may have left in the checkout.
        let is_staged =
            inside.iter().any(|part| part == "_prefix" || part == "prebuilt" || part == "__pycache__");
        if !is_staged && inside.extension().is_none_or(|end| end != "so") {
            files::copy(&file, &pack.join("python/bfc").join(inside))?;
        }
    }
    Ok(())
}

/// The tests of the backends for devices, without debug information.
fn copy_conformance(workspace: &Workspace, pack: &Path) -> Result<()> {
    let tests = CONFORMANCE.map(|name| format!("--test={name}"));
    let mut command = cargo::cargo(workspace, &["test", "--package=libbfc", "--no-run"]);
    command.args(tests);
    let built = cargo::artifacts(command)?;
    for name in CONFORMANCE {
        let begin = format!("{name}-");
        let is_test = |path: &&PathBuf| {
            let rest =
                path.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(&begin));
            rest.is_some_and(|hash| !hash.contains(['.', '_']))
        };
        let test = built.iter().find(is_test).with_context(|| format!("cargo built no test {name}"))?;
        let to = pack.join("bin").join(name);
        files::copy(test, &to)?;
        if let Some(strip) = files::program("strip") {
            capture(workspace.command(strip).arg(&to))?;
        }
    }
    Ok(())
}

/// bin/bfc-gpu, of programs/*.c.
fn compile_programs(workspace: &Workspace, pack: &Path) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.current_dir(&workspace.root);
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude"]);
    command.args(files::below(&workspace.path(SOURCES).join("programs"), "c")?);
    command.arg("-o").arg(pack.join("bin/bfc-gpu")).arg("-L").arg(pack.join("lib"));
    command.arg(format!("-l:{}", workspace.soname)).args(["-Wl,-rpath,$ORIGIN/../lib", "-ldl"]);
    workspace.run_well("compile bfc-gpu", command).map(drop)
}

/// Python packages that such machines lack, for their version of Python. Without a network the pack lacks them, and the
/// checks that need them are skipped.
fn copy_carried(workspace: &Workspace, pack: &Path) -> Result<()> {
    let list = workspace.path(SOURCES).join("requirements-carried.txt");
    let site = pack.join("site");
    if let Err(error) = uv::unpack(workspace, &list, PYTHON, &site) {
        println!("  without the packages of {}: {error:#}", list.display());
        return files::remove_all(&site);
    }
    // Four fifths of the headers are for compilers.
    for file in files::all(&site)? {
        let inside = file.strip_prefix(&site)?;
        let is_for_compilers =
            inside.iter().any(|part| part == "include" || part == "cmake" || part == "bin");
        let end = inside.extension().unwrap_or_default();
        if is_for_compilers || ["pxd", "pyx", "pyi", "cpp"].iter().any(|unused| end == *unused) {
            files::remove(&file)?;
        }
    }
    Ok(())
}

/// The commit that the pack was built from, if git knows it.
fn version(workspace: &Workspace) -> String {
    let mut command = workspace.command("git");
    command.args(["describe", "--always", "--dirty", "--abbrev=12"]);
    capture(&mut command).unwrap_or_else(|_| "unknown\n".to_owned())
}

fn size(folder: &Path) -> Result<u64> {
    files::all(folder)?.iter().map(|file| Ok(file.symlink_metadata()?.len())).sum()
}
