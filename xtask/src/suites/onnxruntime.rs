//! The suite `onnxruntime`: the real ONNX Runtime runs a model with libbfc's memory, and its CUDA provider's external
//! functions are called as it calls them, on the simulated driver. See ffi-tests/onnxruntime.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::context::{Context, Count};
use crate::files;
use crate::onnxruntime::{self, OnnxRuntime};
use crate::pages::owned::Owned;
use crate::simcuda;
use crate::tools;

const FOLDER: &str = "ffi-tests/onnxruntime";

/// The programs that take the wheel's library and the model.
const PROGRAMS: [(&str, &[&str]); 2] = [("model", &["model.cpp", "heap.cpp"]), ("calls", &["calls.cpp"])];

/// The version of the headers that has all there is.
const NEWEST: &str = "29";

/// With each version of the headers that can be had, and then in Python.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::cxx_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::cxx_compiler().display()));
        return Ok(());
    }
    let prefix = context.prefix()?;
    let driver = simcuda::build_driver(&context.workspace)?;
    external(context, &prefix, &driver)?;
    let Some(onnxruntime) =
        context.or_skip("what needs ONNX Runtime", OnnxRuntime::find(&context.workspace))?
    else {
        return Ok(());
    };
    let library = onnxruntime.library()?;
    let pages = Owned::of_suite(&context.workspace, "onnxruntime")?;
    for headers in &onnxruntime.headers {
        let version = &headers.version;
        let folder = match &headers.folder {
            Ok(folder) => folder,
            Err(why) => {
                context.skip(&format!("with ONNX Runtime's headers of API {version}"), why);
                if version == NEWEST {
                    pages[0].skip("cpp-1")?;
                }
                continue;
            }
        };
        for (name, sources) in PROGRAMS {
            let title = format!("{name} with API {version}");
            let arguments = [library.as_path(), onnxruntime.model.as_path()];
            let compiled = compiled(context, &prefix, &title, sources, Some(folder));
            cases(context, &title, compiled, &arguments, &driver)?;
        }
        if version == NEWEST {
            abi(context, &prefix, folder);
            page(context, &prefix, folder, &pages[0], [&library, &onnxruntime.model])?;
        }
    }
    python(context, &onnxruntime, &prefix)?;
    context.all_ran(&pages);
    Ok(())
}

/// The CUDA provider's functions.
fn external(context: &mut Context, prefix: &Path, driver: &Path) -> Result<()> {
    let compiled = compiled(context, prefix, "external", &["external.cpp"], None);
    cases(context, "external functions of the CUDA provider", compiled, &[], driver)
}

fn compiled(
    context: &mut Context,
    prefix: &Path,
    title: &str,
    sources: &[&str],
    headers: Option<&Path>,
) -> Option<PathBuf> {
    let mut program = None;
    context.check(&format!("compile {title}"), |workspace| {
        let sources: Vec<PathBuf> =
            sources.iter().map(|source| workspace.path(FOLDER).join(source)).collect();
        let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        let name = title.replace(' ', "-");
        program = Some(onnxruntime::compile(workspace, prefix, &name, &sources, headers)?);
        Ok(())
    });
    program
}

/// Each case of a program, in a process of its own.
fn cases(
    context: &mut Context,
    title: &str,
    program: Option<PathBuf>,
    arguments: &[&Path],
    driver: &Path,
) -> Result<()> {
    let Some(program) = program else { return Ok(()) };
    let mut list = onnxruntime::command(&context.workspace, &program);
    list.arg("--list");
    let listed = context.workspace.run_well(&format!("{title} list"), list)?;
    if listed.lines().count() < 4 {
        bail!("{title} has only these cases: {listed}");
    }
    for case in listed.lines() {
        let mut command = onnxruntime::command(&context.workspace, &program);
        command.args(arguments).arg(case).env("LD_LIBRARY_PATH", driver);
        context.program(&format!("{title}: {case}"), command, Count::One)?;
    }
    Ok(())
}

/// What the Python package has in place of ONNX Runtime's header says the same as that.
fn abi(context: &mut Context, prefix: &Path, headers: &Path) {
    let source = context.workspace.path(FOLDER).join("abi.cpp");
    let ours = context.workspace.path("python/src/bfc/shims/onnxruntime");
    let mut said = |name: &str, headers: &Path| {
        let mut said = None;
        context.check(&format!("tables by {name}"), |workspace| {
            let name = format!("abi-{name}");
            let program = onnxruntime::compile(workspace, prefix, &name, &[&source], Some(headers))?;
            let text = workspace.run_well(&name, onnxruntime::command(workspace, &program))?;
            said = Some(text.lines().map(str::to_owned).collect::<Vec<_>>());
            Ok(())
        });
        said.unwrap_or_default()
    };
    let (theirs, ours) = (said("ONNX Runtime", headers), said("the shim", &ours));
    let mut wrong: Vec<String> = theirs.iter().filter(|line| !ours.contains(line)).cloned().collect();
    if theirs.len() != ours.len() || theirs.len() < 50 {
        wrong.push(format!("{} lines and {}", theirs.len(), ours.len()));
    }
    context.gate("the shim's header has the tables of ONNX Runtime's", &wrong);
}

/// The program on the page in C++.
fn page(
    context: &mut Context,
    prefix: &Path,
    headers: &Path,
    page: &Owned,
    [library, model]: [&Path; 2],
) -> Result<()> {
    let source = page.file("cpp-1")?;
    let mut program = None;
    context.check("compile the program of docs/onnxruntime.md", |workspace| {
        program = Some(onnxruntime::compile(workspace, prefix, "page", &[&source, library], Some(headers))?);
        Ok(())
    });
    if let Some(program) = program {
        let mut command = onnxruntime::command(&context.workspace, &program);
        // Its SONAME is not the name of the wheel's file.
        let folder = context.workspace.target.join("onnxruntime/lib");
        files::copy(library, &folder.join("libonnxruntime.so.1"))?;
        command.arg(model).env("LD_LIBRARY_PATH", folder);
        let said = context.program("the program of docs/onnxruntime.md", command, Count::One)?;
        if said.success {
            page.ran("cpp-1")?;
        }
        let wrong = if said.text.contains('*') { vec![] } else { vec![said.text] };
        context.gate("the program of docs/onnxruntime.md shows a pool in use", &wrong);
    }
    Ok(())
}

/// The package `bfc`, with the ONNX Runtime that is a part of Python's module.
fn python(context: &mut Context, onnxruntime: &OnnxRuntime, prefix: &Path) -> Result<()> {
    let script = context.workspace.path(FOLDER).join("session.py");
    let mut list = onnxruntime.python(&context.workspace, prefix);
    list.arg(&script).arg("--list");
    let listed = context.workspace.run_well("onnxruntime in Python, list", list)?;
    for test in listed.lines() {
        let mut command = onnxruntime.python(&context.workspace, prefix);
        command.args(["-W", "ignore"]).arg(&script).arg(&onnxruntime.model).arg(test);
        context.program(&format!("in Python: {test}"), command, Count::One)?;
    }
    Ok(())
}
