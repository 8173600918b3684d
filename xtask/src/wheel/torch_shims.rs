//! The shims that are compiled against PyTorch, prebuilt for the release that the suites test.
//!
//! The package itself defines how they are compiled and where it looks for them (python/backend/torch_release.py): the
//! file name contains a hash of everything that a shim depends on, which is computed again where it is used.
//!
//! They are compiled by the system's compiler for manylinux too, because PyTorch's headers and libraries need
//! libstdc++, and zig has another C++ library. Zig links them, so that the symbols of glibc are those of old systems;
//! auditwheel finds symbols of libstdc++ that are too new.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::toolchain::Toolchain;
use crate::files;
use crate::tools;
use crate::workspace::{Workspace, plainly};

/// Tells the C++ library whether there is a second thread. glibc before 2.32 lacks this variable, so this one always
/// says yes.
const THREADS: &str = "__attribute__((visibility(\"hidden\"))) char __libc_single_threaded = 0;\n";

/// Compiles each shim, for the PyTorch in the environment of an interpreter.
pub fn prebuild(workspace: &Workspace, toolchain: &Toolchain, python: &Path, library: &Path) -> Result<()> {
    if !tools::works(&tools::cxx_compiler()) {
        println!("  there is no C++ compiler: this wheel's shims for PyTorch are compiled at the first use");
        return Ok(());
    }
    let mut command = workspace.command(python);
    plainly(&mut command);
    command.env("PYTHONPATH", workspace.path("python/src")).arg("python/backend/torch_release.py");
    let told = workspace.run_well("shims: release of PyTorch", command)?;
    let release: Value = serde_json::from_str(&told).with_context(|| format!("it is no JSON: {told}"))?;
    for shim in release["shims"].as_array().context("it names no shims")? {
        let shim = Shim {
            name: text(&shim["name"])?,
            flags: shim["flags"].as_array().into_iter().flatten().map(text).collect::<Result<_>>()?,
            include: text(&release["include"])?,
            torch: text(&release["library"])?,
            file: text(&shim["file"])?.into(),
        };
        shim.build(workspace, toolchain, library).with_context(|| shim.name.to_owned())?;
    }
    println!("  with shims for {}", text(&release["name"])?);
    Ok(())
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is no text"))
}

struct Shim<'a> {
    name: &'a str,
    flags: Vec<&'a str>,
    include: &'a str,
    /// The library of PyTorch that it is linked with.
    torch: &'a str,
    file: PathBuf,
}

impl Shim<'_> {
    fn build(&self, workspace: &Workspace, toolchain: &Toolchain, library: &Path) -> Result<()> {
        let folder = workspace.target.join("wheels/shim");
        let object = folder.join(format!("{}-torch.o", self.name));
        files::write(&object, "")?;
        let mut compile = workspace.command(tools::cxx_compiler());
        compile.args(["-O2", "-g0", "-fPIC", "-fvisibility=hidden"]).args(&self.flags);
        compile.arg("-I").arg(workspace.path("include")).arg("-isystem").arg(self.include);
        compile.arg("-c").arg(workspace.path("python/src/bfc/shims").join(self.name).with_extension("cpp"));
        compile.arg("-o").arg(&object);
        workspace.run_well(&format!("{}: compile", self.name), compile)?;

        files::write(&self.file, "")?;
        let mut link = toolchain.cc(workspace);
        link.args(["-shared", "-s", "-Wl,-z,defs", "-Wl,-z,nodelete"]);
        // Both are already loaded where the shim is used, but auditwheel needs the path of libbfc.so.
        link.args(["-Wl,-rpath,$ORIGIN/../../../_prefix/lib", "-Wl,--enable-new-dtags", "-o"]);
        link.arg(&self.file).arg(&object);
        if toolchain.is_for_old_systems() {
            let threads = folder.join("threads.c");
            files::write(&threads, THREADS)?;
            link.arg("-fPIC").arg(threads);
        }
        link.arg(self.torch).arg(library);
        // The unwinder is the one that PyTorch has loaded. zig would link its own.
        for name in ["libstdc++.so", "libgcc_s.so.1"] {
            link.arg(of_compiler(workspace, name)?);
        }
        link.arg("-ldl");
        workspace.run_well(&format!("{}: link", self.name), link).map(drop)
    }
}

/// The path of a library of the C++ compiler.
fn of_compiler(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let mut ask = workspace.command(tools::cxx_compiler());
    ask.arg(format!("-print-file-name={name}"));
    let file = PathBuf::from(workspace.run_well(&format!("c++: {name}"), ask)?.trim_end());
    ensure!(file.is_absolute(), "the C++ compiler has no {name}, which PyTorch needs");
    Ok(file)
}
