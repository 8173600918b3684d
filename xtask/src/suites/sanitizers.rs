//! The suite `sanitizers`: the compilers' sanitizers over the programs of ffi-tests and over the library's own tests, and Miri
//! over parts that need no system call. Valgrind does not detect undefined behaviour, data races, and accesses beside a
//! variable on the stack or a global one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::context::{Context, Count};
use super::ctest;
use crate::cargo;
use crate::files;
use crate::tools::{self, Unavailable};
use crate::workspace::{Workspace, plainly};

/// For C and C++. Frame pointers make backtraces complete.
const FLAGS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";

/// One defect of each kind, chosen by the argument, and its report.
const DEFECTS: &str = "
#include <limits.h>
#include <stdlib.h>
int main(int count, char **arguments) {
  char *block = malloc(8);
  switch (arguments[1][0]) {
  case 'a': return block[count + 6];
  case 'l': block = NULL; return block != NULL;
  default: free(block); return INT_MAX + count;
  }
}
";
const FOUND: [(&str, &str); 3] = [
    ("address", "heap-buffer-overflow"),
    ("leak", "detected memory leaks"),
    ("undefined", "signed integer overflow"),
];

/// The library's tests that Miri runs, by the beginnings of their names: those with few steps, because it is thousands
/// of times slower.
const MIRI: &[&str] = &[
    "error::tests",
    "pool::events",
    "sys::c_string",
    "sys::thread",
    "table::tests::an_index",
    "zeroed::tests::it_grows",
];

/// Each part is skipped separately if its tool is missing.
pub fn run(context: &mut Context) -> Result<()> {
    for (name, part) in [
        ("C and C++", programs as fn(&mut Context) -> Result<()>),
        ("the address sanitizer over the library's tests", address),
        ("the thread sanitizer over the library's tests", thread),
        ("Miri", miri),
    ] {
        match part(context) {
            Err(error) if error.is::<Unavailable>() => context.skip(name, &format!("{error:#}")),
            other => other?,
        }
    }
    Ok(())
}

/// The programs that valgrind runs too.
fn programs(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    let defects = defects(&context.workspace)?;
    for (kind, words) in FOUND {
        let mut command = context.workspace.command(&defects);
        plainly(command.arg(kind));
        context.check(&format!("a defect is found: {kind}"), |workspace| {
            let ended = workspace.run(&format!("defect {kind}"), command)?;
            ensure!(!ended.success && ended.text.contains(words), "it is not: {}", ended.complaint());
            Ok(())
        });
    }
    ctest::sanitized(context, FLAGS)
}

/// A program with the defects. If it cannot be built, no other can.
fn defects(workspace: &Workspace) -> Result<PathBuf> {
    let program = workspace.target.join("sanitizers/defects");
    let source = program.with_extension("c");
    files::write(&source, DEFECTS)?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(FLAGS.split(' ')).arg("-o").arg(&program).arg(&source);
    let is_there = workspace.run("build defects", command)?.success;
    let why = "the C compiler has no address and undefined-behaviour sanitizers (Debian: libasan and libubsan, with gcc)";
    ensure!(is_there, Unavailable(why.to_owned()));
    Ok(program)
}

/// Accesses beside a block of the heap, after its end, or beside a variable.
fn address(context: &mut Context) -> Result<()> {
    cargo::need_nightly(&context.workspace, None)?;
    // And those tests through the C ABI that pass wrong arguments, short buffers, and calls out of callbacks.
    let tests_of =
        ["--lib", "--test=arguments", "--test=log_callbacks", "--test=overlapping", "--test=text_buffers"];
    let mut command = tests(context, "address", &tests_of);
    // Tests do not destroy all pools.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    context.program("address sanitizer, cargo test", command, Count::Cargo).map(drop)
}

/// Data races. The standard library is compiled too, because the synchronization of uninstrumented code is not seen.
fn thread(context: &mut Context) -> Result<()> {
    cargo::need_nightly(&context.workspace, Some("rust-src"))?;
    let command = tests(context, "thread", &["-Zbuild-std", "--lib", "--test=threads"]);
    context.program("thread sanitizer, cargo test", command, Count::Cargo).map(drop)
}

/// The library's tests, chosen by options of `cargo test`, with a sanitizer of rustc's.
fn tests(context: &Context, sanitizer: &str, options: &[&str]) -> Command {
    let mut command = nightly(context, &["test"], sanitizer);
    plainly(&mut command);
    // Flags for a target do not apply to build scripts and procedural macros, which run in the compiler.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(options).args(["--target", &target]);
    command.args(["--package=libbfc", "--package=libbfc-formats", "--package=libbfc-hostmem"]);
    // The simulated driver is not instrumented.
    command.args(["--no-fail-fast", "--", "--skip=backend::cuda"]);
    command.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    command
}

/// Undefined behaviour of unsafe Rust, where a test needs few system calls and few steps.
fn miri(context: &mut Context) -> Result<()> {
    cargo::need_nightly(&context.workspace, Some("miri"))?;
    let mut command = nightly(context, &["miri", "test"], "miri");
    command.args(["--package=libbfc", "--package=libbfc-hostmem", "--lib", "--"]).args(MIRI);
    command.env("MIRIFLAGS", "-Zmiri-strict-provenance");
    context.program("Miri, cargo test", command, Count::Cargo).map(drop)
}

/// The nightly toolchain's cargo, with its own folder: in the usual one, other flags and compilers would rebuild
/// everything, and so would the usual ones afterwards.
fn nightly(context: &Context, args: &[&str], tool: &str) -> Command {
    let workspace = &context.workspace;
    let mut command = context.plain(cargo::of_toolchain(workspace, "nightly", args));
    command.arg("--target-dir").arg(workspace.target.join("sanitizers").join(tool));
    command
}
