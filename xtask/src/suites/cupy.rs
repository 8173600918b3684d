//! The suite `cupy`: CuPy's and Numba's own classes with libbfc's memory, on the simulated driver. See ffi-tests/cupy.

use std::ffi::OsStr;

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// Each test has a process of its own.
pub fn run(context: &mut Context) -> Result<()> {
    if let Some(why) = lacking() {
        context.skip("all of it", &why);
        return Ok(());
    }
    context.pytest("cupy")
}

/// Why it cannot run here, if it cannot.
fn lacking() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some(format!(
            "CuPy's runtime is redirected on x86_64 only, and this is {}",
            std::env::consts::ARCH
        ));
    }
    let compiler = tools::c_compiler();
    let wanted = [compiler.as_os_str(), OsStr::new("readelf")];
    let missing = wanted.into_iter().find(|tool| !tools::works(tool));
    missing.map(|tool| format!("there is no {}", tool.display()))
}
