//! The suite `sanitizers`: the compiler's address and undefined-behaviour sanitizers over the programs of ffi-tests, and so over
//! the headers that they include. Valgrind sees neither undefined behaviour nor accesses beside a variable.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::context::Context;
use super::ctest;
use crate::files;
use crate::tools::{self, Unavailable};
use crate::workspace::{Workspace, plainly};

/// For C and C++. Frame pointers give backtraces whole.
const FLAGS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";

/// One defect of each kind, chosen by the argument, and what is said of it.
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

/// The defects, and then the programs.
pub fn run(context: &mut Context) -> Result<()> {
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

/// A program with the defects. Where it cannot be built, neither can any other.
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
