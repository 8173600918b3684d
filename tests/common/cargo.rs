//! Libraries that a test loads, built by cargo if necessary.

use serde_json::Value;
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Returns the file of a package's library. `args` are passed to `cargo build`.
pub fn built(package: &str, library: &str, args: &[&str]) -> PathBuf {
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name == library);
    let files = |message: &Value| message["filenames"].as_array().cloned().unwrap_or_default();
    let paths = messages(&[&["build", "--package", package], args].concat()).into_iter();
    let mut paths =
        paths.flat_map(|message| files(&message)).filter_map(|file| file.as_str().map(PathBuf::from));
    paths.find(is_it).expect("cargo names the library")
}

/// Returns the file of a package's test binary. `args` are passed to `cargo test`.
#[allow(dead_code)] // Not every file that includes this one runs a test of another package.
pub fn test_binary(package: &str, test: &str, args: &[&str]) -> PathBuf {
    let messages = messages(&[&["test", "--no-run", "--package", package, "--test", test], args].concat());
    let is_it = |message: &&Value| message["target"]["name"] == test && message["executable"].is_string();
    let message = messages.iter().find(is_it).expect("cargo names the binary");
    message["executable"].as_str().map(PathBuf::from).expect("a text")
}

/// Returns cargo's messages about its build.
fn messages(args: &[&str]) -> Vec<Value> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    command.args(args).args(["--quiet", "--message-format=json"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
