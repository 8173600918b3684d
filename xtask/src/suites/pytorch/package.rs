//! Python's package in the place of lines that a user writes: `bfc.torch`, from its wheel.

use std::ffi::OsString;

use anyhow::Result;

use super::{as_native, trained};
use crate::files;
use crate::pytorch::{Allocator, Facts, Launcher, PyTorch};
use crate::suites::context::Context;
use crate::wheel;

/// Where there is no compiler, so that the shim that came with the package is taken.
const WITHOUT: &str = "without_a_compiler";

/// Those of ffi-tests/pytorch/package.py: a process each.
const CASES: [&[&str]; 16] = [
    &["page"],
    &["page_with_arguments"],
    &["page_mem_pool"],
    &["refusals", "late"],
    &["refusals", "other"],
    &["refusals", "twice"],
    &["limit"],
    &["one_of_two_devices"],
    &["other_failures"],
    &[WITHOUT],
    &["in_a_thread_of_pytorchs"],
    &["in_a_thread_of_pytorchs", WITHOUT],
    &["profiler"],
    &["statistics"],
    &["random_sizes"],
    &["mem_pool_random_sizes"],
];

/// Of a device so large that the page's limit fits.
const DEVICE: u64 = 64 << 30;

/// Trains with it, and tries what it does besides.
pub fn run(context: &mut Context, pytorch: &PyTorch, native: &Facts) -> Result<()> {
    let folder = context.workspace.target.join("pytorch/package");
    let mut built = false;
    context.check("the wheel is built and installed", |workspace| {
        let wheel = wheel::build(workspace, false)?;
        wheel::install_into(workspace, &wheel, &pytorch.python(), &folder)?;
        built = true;
        Ok(())
    });
    if !built {
        return Ok(());
    }
    // So that the shim is compiled by this very run.
    let cache = context.workspace.target.join("pytorch/cache");
    files::remove_all(&cache)?;
    let set = |name: &str, value: OsString| (OsString::from(name), value);
    let environment = vec![set("PYTHONPATH", folder.into()), set("XDG_CACHE_HOME", cache.into())];
    let launcher = Launcher { name: "package".to_owned(), environment, ..Launcher::default() };
    let kind = Allocator::Package;
    if let Some(facts) = trained(context, pytorch, &launcher, kind, &["--package"]) {
        as_native(context, kind, native, &facts);
    }
    let cases = CASES.map(|case| {
        let mut command = pytorch.case(&context.workspace, &launcher, case);
        command.env("SIMCUDA_MEMORY", DEVICE.to_string());
        command.env("SIMCUDA_DEVICES", if case == ["one_of_two_devices"] { "2" } else { "1" });
        if case.contains(&WITHOUT) {
            command.env("CXX", "/nonexistent/c++");
        }
        (format!("bfc.torch: {}", case.join(" ")), command)
    });
    context.programs(cases.into()).map(drop)
}
