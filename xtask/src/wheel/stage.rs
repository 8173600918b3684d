//! Puts an installed tree into the package, and the prebuilt shim for PyTorch.
//!
//! A wheel cannot contain links. So it contains the library once, under its SONAME: the interposer loads it by that
//! name, and two files would be two libraries in one process. `libbfc.so`, for the linker's -lbfc, is a text that
//! refers to it.

use std::path::Path;

use anyhow::{Context, Result};

use super::toolchain::Toolchain;
use super::torch_shims;
use crate::files;
use crate::install;
use crate::workspace::Workspace;

/// The folder of the installed tree below python/.
pub const PREFIX: &str = "src/bfc/_prefix";

const SHIM: &str = "src/bfc/shims/torch_alloc";

/// The folder of shims for certain releases of PyTorch below python/.
const PREBUILT: &str = "src/bfc/shims/prebuilt";

/// The functions of the C++ library that the shim needs, which is libstdc++ as for all of PyTorch's builds.
const OF_LIBSTDCXX: [&str; 9] = [
    "_ZNSt9exceptionD2Ev",
    "_ZSt9terminatev",
    "_ZTISt9exception",
    "_ZTVN10__cxxabiv120__si_class_type_infoE",
    "_ZdlPvm",
    "__cxa_allocate_exception",
    "__cxa_begin_catch",
    "__cxa_throw",
    "__gxx_personality_v0",
];

/// Builds the library and puts it into the package, with shims for the tested release of PyTorch if there is an environment
/// of it.
pub fn stage(workspace: &Workspace, toolchain: &Toolchain, pytorch: Option<&Path>) -> Result<()> {
    let built = toolchain.build(workspace)?;
    let installed = workspace.target.join("wheels/prefix");
    files::remove_all(&installed)?;
    install::install(workspace, &installed, &built)?;
    let package = workspace.path("python");
    copy(workspace, &installed, &package.join(PREFIX))?;
    prebuilt(workspace, toolchain, &package, &built.shared).context("the shim for PyTorch")?;
    // Those of an earlier source would not be loaded, but would be in the wheel.
    files::remove_all(&package.join(PREBUILT))?;
    let Some(python) = pytorch else { return Ok(()) };
    torch_shims::prebuild(workspace, toolchain, python, &built.shared)
        .context("the shims for PyTorch's tested release")
}

/// The parts of an installed tree that belong in a wheel, without links. The archive is twenty times as large as the
/// library. The command becomes one of the wheel's scripts.
fn copy(workspace: &Workspace, installed: &Path, prefix: &Path) -> Result<()> {
    files::remove_all(prefix)?;
    let soname = &workspace.soname;
    for name in [soname.as_str(), install::INTERPOSER] {
        files::copy(&installed.join("lib").join(name), &prefix.join("lib").join(name))?;
    }
    files::copy(&installed.join("bin/bfc"), &prefix.join("bin/bfc"))?;
    let script = format!("/* The linker's -lbfc; to load it take {soname}. */\nINPUT({soname})\n");
    files::write(&prefix.join("lib/libbfc.so"), script)?;
    for folder in ["include", "lib/cmake", "lib/pkgconfig"] {
        files::copy_all(&installed.join(folder), &prefix.join(folder))?;
    }
    Ok(())
}

/// Compiles the shim as far as that is possible without PyTorch. Linked with stand-ins, so that it requires no version
/// of libstdc++.
fn prebuilt(workspace: &Workspace, toolchain: &Toolchain, package: &Path, library: &Path) -> Result<()> {
    let shim = package.join(SHIM).with_extension("so");
    files::remove(&shim)?;
    let Some(mut compile) = toolchain.cxx(workspace) else {
        println!(
            "  there is no C++ compiler: without one on the user's machine, this wheel cannot serve PyTorch"
        );
        return Ok(());
    };
    let folder = workspace.target.join("wheels/shim");
    let object = folder.join("torch_alloc.o");
    let source = package.join(SHIM).with_extension("cpp");
    files::write(&object, "")?;
    compile.args(["-std=c++17", "-nostdinc++", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-c"]);
    compile.arg("-I").arg(workspace.path("include")).arg(source).arg("-o").arg(&object);
    workspace.run_well("shim: compile", compile)?;

    let stand_in = folder.join("libstdc++.so");
    let functions = OF_LIBSTDCXX.map(|name| format!("void {name}(void) {{}}\n")).concat();
    let source = stand_in.with_extension("c");
    files::write(&source, functions)?;
    let mut command = toolchain.cc(workspace);
    command.args(["-shared", "-nostdlib", "-fPIC", "-w", "-fno-builtin", "-Wl,-soname,libstdc++.so.6", "-o"]);
    command.arg(&stand_in).arg(source);
    workspace.run_well("shim: stand-in", command)?;

    let mut link = toolchain.cc(workspace);
    link.args(["-shared", "-s", "-Wl,-z,defs", "-Wl,-z,nodelete"]);
    // libbfc.so is already loaded where the shim is used, but auditwheel needs its path.
    link.args(["-Wl,-rpath,$ORIGIN/../_prefix/lib", "-Wl,--enable-new-dtags", "-o"]);
    // dlsym, which is in a separate library before glibc 2.34.
    link.arg(&shim).arg(object).arg(stand_in).arg(library).arg("-ldl");
    workspace.run_well("shim: link", link).map(drop)
}
