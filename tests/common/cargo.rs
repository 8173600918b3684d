//! Libraries that a test loads, and that cargo builds if need be.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The file of a package's library; `args` go to `cargo build`.
pub fn built(package: &str, library: &str, args: &[&str]) -> PathBuf {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    command.args(["build", "--quiet", "--message-format=json", "--package", package]).args(args);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name == library);
    paths.find(is_it).expect("cargo names the library")
}
