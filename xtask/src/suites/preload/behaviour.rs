//! What the interposer keeps of what programs rely on: the programs of ffi-tests/preload/behaviour.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::differences::{self, Difference, Place};
use super::stage::{Link, Stage};
use crate::pages::owned::Owned;
use crate::suites::context::{Context, Count};

/// Programs that say what they see: compared with themselves without the interposer.
const FACTS: [&str; 2] = ["facts", "life_facts"];

/// Settings under which they are, the usual ones first.
const SETTINGS: [&str; 4] = ["", "BFC_PRELOAD_FREE=sync", "BFC_PRELOAD_PINNED=1", "BFC_PRELOAD_ASYNC=1"];

/// What is different, and why that cannot be otherwise.
const PAGE: &str = "docs/interposition-differences.md";

/// Programs whose cases are tests of their own.
const CASES: [&str; 10] =
    ["free", "captures", "devices", "async", "pinned", "limits", "life", "ipc", "others", "signals"];

/// What each simulated device has.
const MEMORY: &str = "4294967296";

/// Runs all of them.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let pages = Owned::of_suite(&context.workspace, "preload")?;
    let page = pages.iter().find(|page| page.page == PAGE).context("it is in the table of owners")?;
    let allowed = differences::allowed(&page.blocks)?;
    let mut places = Vec::new();
    for name in FACTS {
        let program = compile(context, stage, name)?;
        for (case, _) in cases(context, stage, &program)? {
            for settings in SETTINGS {
                let place = format!("{name} {case} {settings}").trim_end().to_owned();
                let seen = compared(context, stage, &program, &case, settings);
                context.check(&format!("with and without: {place}"), |_| {
                    differences::judge(&place, &seen?, &allowed)
                });
                places.push(place);
            }
        }
    }
    context.gate("the page of differences is about what there is", &strangers(&allowed, &places));
    for block in &page.blocks {
        let is_of = |place: &str| places.iter().any(|known| known == place);
        if differences::place_of(block).is_some_and(is_of) {
            page.ran(&block.name)?;
        }
    }
    context.all_ran(&pages);
    for name in CASES {
        let program = compile(context, stage, name)?;
        each_case(context, stage, name, &program)?;
    }
    for (name, link) in [("others, runtime 13", Link::Runtime(13)), ("others, static runtime", Link::Static)]
    {
        let program = compile_as(context, stage, &name.replace(", ", "_").replace(' ', "_"), "others", link)?;
        each_case(context, stage, name, &program)?;
    }
    Ok(())
}

/// A program whose cases are tests.
fn each_case(context: &mut Context, stage: &Stage, name: &str, program: &Path) -> Result<()> {
    for (case, environment) in cases(context, stage, program)? {
        let command = with(context, stage, program, &case, &environment)?;
        context.program(&format!("{name}: {case}"), command, Count::One)?;
    }
    Ok(())
}

/// Compiles one, linked to the runtime and the driver.
pub fn compile(context: &Context, stage: &Stage, name: &str) -> Result<PathBuf> {
    compile_as(context, stage, name, name, Link::Runtime(12))
}

fn compile_as(context: &Context, stage: &Stage, as_name: &str, name: &str, link: Link) -> Result<PathBuf> {
    let driver = stage.simulation.join("libcuda.so.1");
    let driver = driver.display().to_string();
    let mut flags = vec!["-D_GNU_SOURCE", "-Wl,--no-as-needed", &driver];
    if name == "signals" {
        // The interposer calls its functions in place of the C library's.
        flags.push("-rdynamic");
    }
    stage.compile(context, as_name, &format!("behaviour/{name}.c"), link, &flags)
}

/// A program's cases, each with the environment that it wants.
fn cases(context: &Context, stage: &Stage, program: &Path) -> Result<Vec<(String, String)>> {
    let mut command = stage.plain(context, program);
    command.arg("--list");
    let text = context.workspace.run_well(&format!("preload: cases of {}", program.display()), command)?;
    let case = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
    let found: Vec<_> = text.lines().filter_map(case).collect();
    if found.is_empty() {
        bail!("{} has no cases", program.display());
    }
    Ok(found)
}

/// One case without the interposer.
fn without(context: &Context, stage: &Stage, program: &Path, case: &str) -> Command {
    let mut command = stage.plain(context, program);
    command.arg(case).env("SIMCUDA_MEMORY", MEMORY);
    command
}

/// One case with it, in an environment with more in it.
pub fn with(context: &Context, stage: &Stage, program: &Path, case: &str, more: &str) -> Result<Command> {
    let mut command = stage.run(context, program)?.command;
    command.arg(case).env("SIMCUDA_MEMORY", MEMORY).env_remove("BFC_PRELOAD_CHECK");
    command.envs(more.split_whitespace().filter_map(|variable| variable.split_once('=')));
    Ok(command)
}

/// How what a program says differs.
fn compared(
    context: &Context,
    stage: &Stage,
    program: &Path,
    case: &str,
    settings: &str,
) -> Result<Vec<Difference>> {
    let name = format!("preload: {} {case} {settings}", program.display());
    let old = context.workspace.run_well(&name, without(context, stage, program, case))?;
    let new = context.workspace.run_well(&name, with(context, stage, program, case, settings)?)?;
    if old.lines().count() < 3 {
        bail!("it says next to nothing:\n{old}");
    }
    Ok(differences::between(&old, &new))
}

/// Places of the page that are none.
fn strangers(allowed: &[(Place, Vec<Difference>)], places: &[Place]) -> Vec<String> {
    let unknown = allowed.iter().map(|(place, _)| place).filter(|place| !places.contains(place));
    unknown.map(|place| format!("{PAGE} has differences of `{place}`, which is no test")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_no_tests_are_strangers() {
        let allowed = [("facts sizes".to_owned(), vec![]), ("facts gone".to_owned(), vec![])];
        let wrong = strangers(&allowed, &["facts sizes".to_owned()]);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains("facts gone"));
    }
}
