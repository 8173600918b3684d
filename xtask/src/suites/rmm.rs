//! The suite `rmm`: libbfc as a memory resource of RMM, in C++ and in Python, on the simulated driver.
//!
//! See ffi-tests/rmm.

use std::path::Path;

use anyhow::{Result, bail};

use super::context::{Context, Count};
use crate::files;
use crate::pages::owned::Owned;
use crate::python::plainly;
use crate::rmm::{self, Rmm};
use crate::tools;

/// Both versions of RMM, a fault that has to be found, and Python.
pub fn run(context: &mut Context) -> Result<()> {
    for compiler in [tools::c_compiler(), tools::cxx_compiler()] {
        if !tools::works(&compiler) {
            context.skip("all of it", &format!("there is no {}", compiler.display()));
            return Ok(());
        }
    }
    let prefix = context.prefix()?;
    let Some(versions) = context.or_skip("all of it", Rmm::find(&context.workspace, &prefix))? else {
        return Ok(());
    };
    let pages = Owned::of_suite(&context.workspace, "rmm")?;
    for rmm in &versions {
        cases(context, rmm)?;
        if rmm.has_library() {
            page(context, rmm, &pages[0])?;
            alone(context, rmm, "default streams of threads", "ffi-tests/rmm/per_thread.cpp")?;
            python(context, rmm)?;
        }
    }
    context.all_ran(&pages);
    Ok(())
}

/// Each case is a process of its own: RMM and libbfc both have one state for a process.
fn cases(context: &mut Context, rmm: &Rmm) -> Result<()> {
    let mut program = None;
    context.check(&format!("RMM {}: compile", rmm.version), |workspace| {
        program = Some(rmm.compile(workspace)?);
        Ok(())
    });
    let Some(program) = program else { return Ok(()) };
    let libraries = rmm.libraries()?;
    let command = |context: &Context, arguments: &[&str]| {
        let mut command = context.workspace.command(&program);
        plainly(&mut command);
        command.args(arguments).env("LD_LIBRARY_PATH", &libraries);
        command
    };
    let names = context.workspace.run_well(&format!("rmm {} cases", rmm.version), command(context, &[]))?;
    for name in names.lines() {
        let command = command(context, &[name]);
        context.program(&format!("RMM {}: {name}", rmm.version), command, Count::One)?;
    }
    for (name, fault, words) in [
        ("random_streams", "events", "simcuda_mismatches() == 0"),
        ("zero", "leak", "stats().bytes_in_use == 0"),
    ] {
        let command = command(context, &[name, fault]);
        context.check(&format!("RMM {}: found: {fault}", rmm.version), |workspace| {
            let ended = workspace.run(&format!("rmm {} {fault}", rmm.version), command)?;
            if ended.success || !ended.text.contains(words) {
                bail!("it was not: {}", ended.complaint());
            }
            Ok(())
        });
    }
    Ok(())
}

/// The C++ of docs/rmm.md.
fn page(context: &mut Context, rmm: &Rmm, page: &Owned) -> Result<()> {
    let source = page.together("cpp")?;
    files::write(&source, rmm::page_as_program(&files::read(&source)?))?;
    if alone(context, rmm, "the C++ of docs/rmm.md", &source)? { page.ran_together("cpp") } else { Ok(()) }
}

/// A program of one file; whether it ended well.
fn alone(context: &mut Context, rmm: &Rmm, what: &str, source: impl AsRef<Path>) -> Result<bool> {
    let libraries = rmm.libraries()?;
    let mut is_well = false;
    context.check(&format!("RMM {}: {what}", rmm.version), |workspace| {
        let program = rmm.compile_alone(workspace, &workspace.path(source))?;
        let mut command = workspace.command(program);
        plainly(&mut command);
        command.env("LD_LIBRARY_PATH", &libraries);
        workspace.run_well(&format!("rmm {what}"), command)?;
        is_well = true;
        Ok(())
    });
    Ok(is_well)
}

/// bfc.rmm with the package rmm; the Python of docs/rmm.md too.
fn python(context: &mut Context, rmm: &Rmm) -> Result<()> {
    let mut preload = None;
    context.check(&format!("RMM {}: compile for Python", rmm.version), |workspace| {
        preload = Some(rmm.preload(workspace)?);
        Ok(())
    });
    let Some(preload) = preload else { return Ok(()) };
    let mut command = rmm.python(&context.workspace);
    command.arg(context.workspace.path("ffi-tests/rmm/with_python.py"));
    command.env("LD_LIBRARY_PATH", rmm.libraries()?).env("LD_PRELOAD", preload);
    command.envs([("SIMCUDA_DEVICES", "2"), ("SIMCUDA_MEMORY", "1073741824")]);
    context.program(&format!("RMM {}: bfc.rmm", rmm.version), command, Count::One)?;
    Ok(())
}
