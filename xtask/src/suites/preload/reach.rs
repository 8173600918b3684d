//! Every way from a program to cudaMalloc that there is: does it lead through the interposer?

use std::path::Path;

use anyhow::{Result, bail};

use super::stage::{Link, Run, Stage};
use crate::files;
use crate::simcuda;
use crate::suites::context::Context;

/// What the interposer sees of a program that is bypassed: it is there, the driver is, and nothing comes.
pub const BYPASSED: [&str; 2] = ["loaded", "exit driver=mapped"];
/// It says nothing of these.
pub const NOTHING_SEEN: [&str; 3] = ["looked-up", "called", "served"];

/// The ways, one after another.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    linked(context, stage)?;
    opened(context, stage)?;
    lookups(context, stage)?;
    entry_points(context, stage)?;
    stubs(context, stage)?;
    shares(context, stage)?;
    python(context, stage)
}

/// Programs whose linker knew of CUDA.
fn linked(context: &mut Context, stage: &Stage) -> Result<()> {
    for (major, lookup) in
        [(11, "cuGetProcAddress"), (12, "cuGetProcAddress_v2"), (13, "cuGetProcAddress_v2")]
    {
        let name = format!("runtime{major}");
        let program = stage.compile(context, &name, "runtime.c", Link::Runtime(major), &[])?;
        let run = stage.run(context, &program)?;
        let (asked, given) =
            (format!("looked-up dlsym {lookup}"), "looked-up cuGetProcAddress cuMemAlloc_v2");
        let there = ["loaded", asked.as_str(), given, "called cuMemAlloc_v2", "served 1000"];
        stage.expect(context, &format!("linked to {}", simcuda::runtime(major)), run, &there, &["passed"]);
    }
    let program = stage.compile(context, "runtime_static", "runtime.c", Link::Static, &[])?;
    let run = stage.run(context, &program)?;
    stage.served(context, "linked to libcudart_static.a, whose symbols are hidden", run);
    let program = stage.compile(context, "linked", "linked.c", Link::Driver, &[])?;
    let run = stage.run(context, &program)?;
    // Nothing is looked up: the loader itself binds the names to ours.
    let there = ["called cuMemAlloc_v2", "served 5000", "exit driver=mapped"];
    stage.expect(context, "linked to libcuda.so.1", run, &there, &["looked-up", "passed"]);
    Ok(())
}

/// Programs that open their libraries while they run.
fn opened(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = stage.compile(context, "opened", "opened.c", Link::Nothing, &[])?;
    let (runtime, driver) = (stage.simulation.join("libcudart.so.12"), stage.simulation.join("libcuda.so.1"));
    // As a driver is installed: the file has its version in its name, and only its SONAME is libcuda.so.1.
    let versioned = stage.file("libcuda.so.560.35.03");
    files::copy(&driver, &versioned)?;
    let by_path = [
        ("libcudart.so.12 opened by its path, RTLD_LOCAL", "runtime", &runtime, "local"),
        ("libcudart.so.12 opened by its path, RTLD_GLOBAL", "runtime", &runtime, "global"),
        ("libcuda.so.1 opened by its path, RTLD_LOCAL", "driver", &driver, "local"),
        ("libcuda.so.1 opened by its path, RTLD_GLOBAL", "driver", &driver, "global"),
        ("libcuda.so.560.35.03 opened by its path", "driver", &versioned, "local"),
        // Its own names are bound otherwise, but the program finds its functions by dlsym, which is ours.
        ("libcuda.so.1 opened with RTLD_DEEPBIND", "driver", &driver, "deep"),
    ];
    for (name, what, path, how) in by_path {
        let mut run = stage.run(context, &program)?;
        run.command.arg(what).arg(path).args([how, "served"]);
        if what == "driver" {
            // No search would find it.
            run.command.env_remove("LD_LIBRARY_PATH");
        }
        stage.served(context, name, run);
    }
    let mut run = stage.run(context, &program)?;
    run.command.arg("runtime").arg(&runtime).args(["deep", "unserved"]);
    let name = "bypassed, and said so: libcudart.so.12 opened with RTLD_DEEPBIND";
    stage.expect(context, name, run, &BYPASSED, &NOTHING_SEEN);
    // The program itself is right: without the interposer nothing is served.
    let mut command = stage.plain(context, &program);
    command.arg("runtime").arg(&runtime).args(["local", "unserved"]);
    context.check("the same program without the interposer", |workspace| {
        workspace.run_well("preload: without the interposer", command).map(drop)
    });
    Ok(())
}

/// What dlsym and cuGetProcAddress give.
fn lookups(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = stage.compile(context, "lookups", "lookups.c", Link::Nothing, &[])?;
    let mut run = stage.run(context, &program)?;
    run.command.arg(stage.compile(context, "libother.so", "chain.c", Link::Library, &[])?);
    let there = ["looked-up dlsym cuMemAlloc_v2", "looked-up cuGetProcAddress cuMemAlloc_v2"];
    stage.expect(context, "dlsym and cuGetProcAddress, by name, version and flags", run, &there, &["served"]);

    let folder = stage.file("strange");
    std::fs::create_dir_all(&folder)?;
    let flags = ["-Wl,-soname,libcuda.so.1"];
    stage.compile(context, "strange/libcuda.so.1", "strange_driver.c", Link::Library, &flags)?;
    let program = stage.compile(context, "strange_lookups", "strange_lookups.c", Link::Nothing, &[])?;
    let mut run = stage.run(context, &program)?;
    run.command.env("LD_LIBRARY_PATH", &folder);
    let there = ["loaded", "too-new 13060 cuMemAlloc", "too-new 14000 cuMemAlloc"];
    stage.expect(context, "a driver with other addresses, older and later functions", run, &there, &[]);
    let mut run = stage.run(context, &program)?;
    run.command.env("LD_LIBRARY_PATH", &folder).env("BFC_LOG", "warn");
    context.check("a later function is passed through with a warning", |workspace| {
        let ended = workspace.run("preload: warning of a later function", run.command)?;
        let warning = "cuMemAlloc of CUDA 13.6 is not interposed: libbfc knows the functions up to CUDA 13.5";
        if !ended.success || !ended.text.contains(warning) {
            bail!("no warning {warning:?}: {}", ended.complaint());
        }
        Ok(())
    });
    Ok(())
}

fn entry_points(context: &mut Context, stage: &Stage) -> Result<()> {
    for (major, how) in [(11, "3 arguments"), (12, "4 arguments, and ByVersion"), (13, "the same")] {
        let program = format!("entry_point{major}");
        let program = stage.compile(context, &program, "entry_point.c", Link::Runtime(major), &[])?;
        let run = stage.run(context, &program)?;
        stage.served(context, &format!("cudaGetDriverEntryPoint of CUDA {major}: {how}"), run);
    }
    Ok(())
}

/// A program that exports the names of the driver's functions itself.
fn stubs(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = stage.compile(context, "stubs", "stubs.c", Link::Nothing, &["-rdynamic"])?;
    let run = stage.run(context, &program)?;
    stage.served(context, "a program with stubs and variables of the driver's names", run);
    Ok(())
}

/// A program that uses libbfc itself, and one that was installed with another copy of it.
fn shares(context: &mut Context, stage: &Stage) -> Result<()> {
    let library = stage.lib.join("libbfc.so");
    let flags = [library.to_string_lossy().into_owned()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = stage.compile(context, "own_pool", "own_pool.c", Link::Runtime(12), &flags)?;
    let mut run = stage.run(context, &program)?;
    let path = [&stage.lib, &stage.simulation].map(|folder| folder.as_os_str().to_owned());
    run.command.env("LD_LIBRARY_PATH", path.join(":".as_ref())).env("BFC_PRELOAD_PINNED", "1");
    stage.served(context, "a pool that the program itself has created", run);

    let program = stage.compile(context, "shares", "shares.c", Link::Runtime(12), &flags)?;
    let copy = stage.file("copy");
    std::fs::create_dir_all(&copy)?;
    files::copy(&library, &copy.join("libbfc.so.0"))?;
    let folders: [(&str, &Path); 2] = [("the installed libbfc", &stage.lib), ("a copy of libbfc", &copy)];
    for (name, folder) in folders {
        let mut run = stage.run(context, &program)?;
        let path = [folder, &stage.simulation].map(|folder| folder.as_os_str().to_owned());
        run.command.env("LD_LIBRARY_PATH", path.join(":".as_ref()));
        stage.served(context, &format!("linked to {name} too: one pool"), run);
    }
    Ok(())
}

/// ctypes opens a library by dlopen and finds its functions by dlsym.
fn python(context: &mut Context, stage: &Stage) -> Result<()> {
    let Some(python) = files::program("python3") else {
        context.skip("ctypes", "there is no python3");
        return Ok(());
    };
    let script = context.workspace.path("ffi-tests/preload/with_ctypes.py");
    let ways = [("driver", "libcuda.so.1"), ("runtime", "libcudart.so.12"), ("runtime", "libcudart.so.13")];
    for (what, library) in ways {
        let mut run: Run = stage.run(context, &python)?;
        run.command.arg(&script).args([what, library]);
        stage.served(context, &format!("ctypes.CDLL(\"{library}\") in Python"), run);
    }
    Ok(())
}
