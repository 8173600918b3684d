//! Tests that need a process of their own: for its environment, its resident memory, or its end.
//!
//! The parent starts the same test binary again with only one test, which sees [`is_child`]. The test is named without
//! its module, which is that of the file of the caller.

use std::ffi::OsStr;
use std::panic::Location;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MARK: &str = "BFC_TEST_CHILD";

/// Whether this process is the child of the test of that name.
pub fn is_child(test: &str) -> bool {
    std::env::var(MARK).is_ok_and(|name| name == test)
}

/// The output and the exit of a child.
pub struct Ended {
    /// Standard output and standard error, one after the other.
    pub text: String,
    /// Standard error alone.
    pub errors: String,
    /// Whether it succeeded.
    pub success: bool,
}

/// Runs one test of this binary in a child with these variables, and no other `BFC_...` variables.
#[track_caller]
pub fn run(test: &str, variables: &[(&str, &str)]) -> Ended {
    run_raw(test, variables.iter().map(|&(name, value)| (name, OsStr::new(value))))
}

/// Like [`run`], with arbitrary values.
#[track_caller]
pub fn run_raw<'a>(test: &str, variables: impl Iterator<Item = (&'a str, &'a OsStr)>) -> Ended {
    let mut command = Command::new(std::env::current_exe().expect("the test binary"));
    // A test that only some suites run has a child too.
    command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.args(in_module_of(Location::caller().file(), test));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BFC_") {
            command.env_remove(name);
        }
    }
    command.env(MARK, test).envs(variables).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("the child starts");
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &errors;
    assert!(text.contains("running 1 test"), "no test is named {test}: {text}");
    Ended { text, errors, success: status.success() }
}

/// Returns the whole name of a test of `tests/BINARY/MODULE.rs`. Another binary may have the module too, as
/// `tests/OTHER/../BINARY/MODULE.rs`.
fn in_module_of(file: &str, test: &str) -> Option<String> {
    let file =
        file.rsplit_once("/../").map_or_else(|| file.strip_prefix("tests/"), |(_, file)| Some(file))?;
    let module = Path::new(file).with_extension("");
    let mut parts = module.iter().skip(1).map(|part| part.to_str().expect("UTF-8")).collect::<Vec<_>>();
    parts.retain(|&part| part != "mod");
    parts.push(test);
    Some(parts.join("::"))
}

/// Prints the findings of a child: its lines that begin with `fact`.
pub fn print_facts(text: &str) {
    text.lines().filter_map(|line| Some(line.split_once("fact ")?.1)).for_each(|fact| println!("{fact}"));
}

/// Runs the child and shows its output if it failed.
#[track_caller]
pub fn expect_success(test: &str, variables: &[(&str, &str)]) -> Ended {
    let ended = run(test, variables);
    assert!(ended.success, "the child of {test} with {variables:?} failed:\n{}", ended.text);
    ended
}
