//! The suite `valgrind`: the programs of ffi-tests once more, every access and every block watched.

use anyhow::Result;

use super::context::Context;
use super::package::{self, Project};
use crate::files;

/// Runs the CMake project with its own option for valgrind; the flags are its business.
pub fn run(context: &mut Context) -> Result<()> {
    if files::program("valgrind").is_none() {
        let why = "valgrind is not installed (Debian: apt-get install valgrind)";
        context.skip("all of it", why);
        return Ok(());
    }
    let Some(cmake) = package::cmake_or_skip(context) else {
        return Ok(());
    };
    let prefix = context.prefix()?;
    Project {
        cmake: &cmake,
        name: "valgrind",
        prefix: &prefix,
        defines: &["BFC_TESTS_VALGRIND=ON"],
        sample: false,
    }
    .build_and_test(context)
}
