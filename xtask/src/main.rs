//! The project's commands: `cargo xtask demo`, `test`, `bench`, `budget`, `cliffs`, `gpu`, `header`, `install`,
//! `package` and `wheel`.
//!
//! They work from any folder of the checkout, fetch what they need into `target/` (TensorFlow, PyTorch and NVIDIA's
//! headers into the user's cache, which all checkouts share), and say what to do if that fails.

mod bench;
mod book;
mod cargo;
mod clean;
mod cmake;
mod cpu;
mod demo;
mod files;
mod generated;
mod gpu;
mod header;
mod hooks;
mod install;
mod licenses;
mod package;
mod peers;
mod progress;
mod scripts;
mod simcuda;
mod simulate;
mod suites;
mod tally;
mod targets;
mod tools;
mod uv;
mod verdict;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The commands of the libbfc project.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the library, replay a recorded training run on host memory, and compare its addresses with
    /// TensorFlow's
    Demo(demo::Demo),
    /// Run the tests
    Test(suites::Test),
    /// Measure speed and host memory, next to TensorFlow's allocator where it is available
    Bench(bench::Bench),
    /// Count the instructions of an allocation and a free on recorded programs, and compare them with
    /// benches/instructions.tsv
    Budget(scripts::Script),
    /// Search for allocator calls that take far more instructions than others of their kind
    Cliffs(scripts::Script),
    /// Generate the headers in include/, and from them bfc-sys and Python's prototypes
    Header,
    /// Generate docs/hooks.md from the interposer's list of hooks
    Hooks,
    /// Generate LICENSE-THIRD-PARTY from Cargo.lock and the vendored files
    Licenses,
    /// Build docs/ and the C API as a book, in target/book
    Book(book::Book),
    /// Build target/gpu, a folder that checks libbfc on a machine with an NVIDIA GPU
    Gpu(gpu::Gpu),
    /// Run a program on the simulated CUDA driver, optionally with PyTorch
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(simulate::Simulate),
    /// Remove target/, and with --cache also ~/.cache/libbfc
    Clean(clean::Clean),
    /// Install the library, its headers, the bfc command, and the CMake and pkg-config files
    Install(install::Install),
    /// Remove the files that `cargo xtask install` wrote below a prefix
    Uninstall(install::Uninstall),
    /// Build a tarball, Debian packages and RPM packages, in target/packages
    Package(package::Package),
    /// Build the Python package as a wheel, in target/wheels
    Wheel(wheel::Wheel),
}

fn main() -> ExitCode {
    match run(Cli::try_parse().unwrap_or_else(|error| best_first(error).exit())) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Puts the most similar command first. clap lists it last.
fn best_first(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) {
        let names = names.into_iter().rev().collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    error
}

fn run(cli: Cli) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match cli.chore {
        Chore::Demo(demo) => demo.run(&workspace)?,
        Chore::Test(test) => return test.run(workspace),
        Chore::Bench(bench) => bench.run(&workspace)?,
        Chore::Simulate(simulate) => simulate.run(&workspace)?,
        Chore::Clean(clean) => clean.run(&workspace)?,
        Chore::Budget(script) => script.run(&workspace, scripts::BUDGET)?,
        Chore::Cliffs(script) => script.run(&workspace, scripts::CLIFFS)?,
        Chore::Gpu(gpu) => gpu.run(&workspace)?,
        Chore::Header => header::write(&workspace)?,
        Chore::Hooks => hooks::generate().write(&workspace)?,
        Chore::Licenses => {
            licenses::generate(&workspace)?.iter().try_for_each(|file| file.write(&workspace))?
        }
        Chore::Book(book) => book.run(&workspace)?,
        Chore::Wheel(wheel) => wheel.run(&workspace)?,
        Chore::Install(install) => install.run(&workspace)?,
        Chore::Package(package) => package.run(&workspace)?,
        Chore::Uninstall(uninstall) => uninstall.run(&workspace)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_command_is_suggested_first() {
        let Err(error) = Cli::try_parse_from(["xtask", "instal"]) else { panic!("it is a command") };
        let text = best_first(error).to_string();
        assert!(text.contains("similar subcommands exist: 'install', 'uninstall'"), "{text}");
    }
}
