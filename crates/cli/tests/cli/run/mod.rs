//! `bfc run`, with an interposer that only tells what it is told to: what becomes of the program is all that counts
//! here. The real one is tested with programs that allocate.

mod check;
mod leaks;
mod programs;
mod settings;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{bfc, library};

/// The folder of the fake interposer, with the library beside it; None where there is no
/// compiler for it.
pub fn interposer() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = folder("interposer");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/run/interposer.c");
        let file = folder.join("libbfc_preload.so");
        let args = ["-shared", "-fPIC", "-Wall", "-Werror"];
        let mut command = Command::new("cc");
        match command.args(args).arg(source).arg("-o").arg(&file).status() {
            Err(error) => {
                eprintln!("skipped: no C compiler: cc: {error}");
                return None;
            }
            Ok(status) => assert!(status.success(), "{command:?}: {status}"),
        }
        symlink(library(), folder.join("libbfc.so.0")).expect("writable");
        Some(folder)
    });
    folder.as_deref()
}

/// An empty folder of this test's own.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder for tests is writable");
    folder
}

/// `bfc run` with the fake interposer and these words behind.
fn run(words: &[&str]) -> Option<Command> {
    let mut command = bfc();
    command.arg("run").arg("--preload").arg(interposer()?).args(words);
    Some(command)
}

/// A file that may be executed.
pub fn executable(path: &Path, content: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, content).expect("writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its own file");
}

/// Compiles a program of one line.
fn compiled(program: &Path, source: &str, options: &[&str]) -> bool {
    let file = program.with_extension("c");
    fs::write(&file, source).expect("writable");
    let compiled = Command::new("cc").arg(&file).arg("-o").arg(program).args(options).output();
    compiled.is_ok_and(|output| output.status.success())
}

/// The text in one line, wherever it was broken.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
