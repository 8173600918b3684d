//! Targets that are not supported.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Returns the compiler's messages about the package on a target. The target need not be installed, because the sources
/// are compiled without the standard library. Everything else in them is an error too.
fn said_on(target: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(target);
    fs::create_dir_all(&folder).expect("cargo made the folder above");
    let (source, sources) =
        (folder.join("without_std.rs"), Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"));
    let text = "#![feature(no_core, rustc_attrs)]\n#![no_core]\n#[rustc_builtin_macro]\n\
         macro_rules! compile_error { ($text:expr $(,)?) => {{}}; }\n";
    fs::write(&source, format!("{text}#[path = {sources:?}]\nmod os;\n")).expect("writable");
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--target", target]);
    command.arg("--out-dir").arg(&folder).arg(&source).env("RUSTC_BOOTSTRAP", "1");
    let output = command.output().expect("there is a compiler");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn other_systems_and_c_libraries_are_refused_with_the_reason() {
    let refusal = "error: libbfc supports 64-bit Linux with the GNU C library (glibc) only";
    for target in ["x86_64-unknown-linux-musl", "i686-unknown-linux-gnu", "aarch64-apple-darwin"] {
        let said = said_on(target);
        assert!(said.contains(refusal), "{target}: {said}");
    }
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let said = said_on(target);
        assert!(said.contains("error") && !said.contains(refusal), "{target}: {said}");
    }
}
