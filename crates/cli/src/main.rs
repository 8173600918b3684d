//! The `bfc` command. All of it is in the library, of which fuzzing uses parts.

use std::process::ExitCode;

fn main() -> ExitCode {
    bfc_cli::main()
}
