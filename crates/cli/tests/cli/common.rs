//! Running the command in tests, against a real libbfc.so.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The library under test: `BFC_LIBRARY`'s, else the newer of the workspace's two builds. Without one
/// there is nothing to test, and saying so beats passing.
pub fn library() -> PathBuf {
    if let Some(path) = env::var_os("BFC_LIBRARY") {
        return path.into();
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let builds = ["release", "debug"].map(|profile| target.join(profile).join("libbfc.so"));
    let modified = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    builds
        .iter()
        .filter(|path| path.exists())
        .max_by_key(|path| modified(path))
        .unwrap_or_else(|| {
            panic!(
                "no libbfc.so: build it first (cargo build --release), or set BFC_LIBRARY; \
                 looked for {} and {}",
                builds[0].display(),
                builds[1].display()
            )
        })
        .clone()
}

/// The command with the library under test, and no other BFC_ variable than that.
pub fn bfc() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bfc"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("BFC_") {
            command.env_remove(name);
        }
    }
    command.env("BFC_LIBRARY", library());
    command
}

/// A recorded trace, or another file beside them.
pub fn recorded(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces").join(file)
}

/// Runs the command, which must end with `code`; its standard output and standard error.
pub fn run_to(code: i32, command: &mut Command) -> (String, String) {
    let output = command.output().expect("the command starts");
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    (stdout, stderr)
}

/// The value of a table's row.
pub fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    let values = table.lines().filter_map(|line| line.strip_prefix("  ")?.strip_prefix(name));
    values.filter(|rest| rest.starts_with("  ")).map(str::trim).next()
}

/// The JSON document that the command prints.
pub fn json(command: &mut Command) -> Value {
    let (stdout, _) = run_to(0, command.arg("--json"));
    serde_json::from_str(&stdout).expect("one JSON document")
}

/// A file of this test's own with the given content.
pub fn file(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the folder for tests is writable");
    path
}

/// Two steps; at most 3 x 1 MiB live, of 4 requests.
pub const SMALL: &str = "# step 0\n+ 1 1048576 0\n+ 2 1048576 0\n- 1 0\n# step 1\n\
                     + 3 1048576 0\n+ 4 1048576 0\n- 2 0\n- 3 0\n- 4 0\n";
