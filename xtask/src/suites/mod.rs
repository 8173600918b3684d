//! `cargo xtask test`: the suites, and running them.

mod context;
mod ctest;
mod cuda_headers;
mod docs;
mod fuzz;
mod lints;
mod peers;
mod preload;
mod rust;
mod sanitizers;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::cargo::Profile;
use crate::files;
use crate::generated::Generated;
use crate::gpu;
use crate::header;
use crate::licenses;
use crate::suites::context::{Context, Count, Needs};
use crate::tools::{self, Unavailable};
use crate::uv;
use crate::verdict::{self, Verdict};
use crate::workspace::Workspace;

/// When a suite runs.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// With `--quick`, and when no suite is named.
    Quick,
    /// When no suite is named.
    Usual,
    /// Only by its name.
    Named,
}

use When::{Named, Quick, Usual};

/// A set of tests that is run as a whole: when, its name, its function, and what it tests.
struct Suite(When, &'static str, fn(&mut Context) -> Result<()>, &'static str);

/// In the order in which they run: suites that take seconds and find much come first.
const SUITES: &[Suite] = &[
    Suite(Quick, "layers", layers, "imports go one way; pages name files and variables that exist"),
    Suite(Quick, "rust", rust::debug, "cargo test of the workspace"),
    Suite(Usual, "release", rust::release, "golden placements with the release build; examples in Rust"),
    Suite(Usual, "simcuda", ctest::simcuda, "the simulated driver and runtimes: their own tests"),
    Suite(Usual, "preload", preload::run, "libbfc_preload.so, and programs with it on the simulated driver"),
    Suite(
        Usual,
        "top",
        pytest_of_prefix,
        "bfc top, in a terminal too, with programs that publish their statistics",
    ),
    Suite(Usual, "docs", docs::run, "rustdoc and its examples; the book, links, code and commands on pages"),
    Suite(Usual, "header", header, "the generated headers, declarations for Rust and Python, and licences"),
    Suite(Usual, "symbols", pytest_of_prefix, "what libbfc.so exports and needs, and its SONAME"),
    Suite(Usual, "history", pytest_compiling, "backtraces: functions of C and Python in bfc report"),
    Suite(Usual, "stack", ctest::stack, "functions of the C ABI and hooks need at most 4 KiB of stack"),
    Suite(Usual, "package", ctest::package, "C and C++ programs with the installed library; packages"),
    Suite(Usual, "valgrind", ctest::valgrind, "programs of ffi-tests under valgrind; instruction counts"),
    Suite(Named, "lints", lints::run, "the hooks of .pre-commit-config.yaml, and the oldest Rust"),
    Suite(Named, "cuda-headers", cuda_headers::run, "cuda-sys and hooks against NVIDIA's headers"),
    Suite(Named, "races", preload::races, "many random programs on streams, with the interposer too"),
    Suite(Named, "peers", peers::run, "the benchmark beside other allocators: that each runs correctly"),
    Suite(Named, "gpu", gpu, "what is carried to a machine with a GPU, on the simulated driver"),
    Suite(Named, "fuzz", fuzz::run, "calls that take too long; each fuzz target for ten seconds"),
    Suite(Named, "sanitizers", sanitizers::run, "C, C++ and Rust with the compilers' sanitizers, and Miri"),
    Suite(Named, "tensorflow", pytest, "in lock-step with TensorFlow's own allocator (fetches it, once)"),
    Suite(Named, "python", pytest, "the package bfc as wheels, the sdist, the crates (fetches zig, once)"),
    Suite(Named, "pytorch", pytest, "PyTorch's CUDA wheel trains on the simulated driver (fetches it, once)"),
    Suite(Named, "pytorch-cpu", pytest, "PyTorch trains on the CPU with libbfc's memory (fetches it, once)"),
    Suite(Named, "keras", pytest, "Keras trains with libbfc's memory (fetches TensorFlow, once)"),
    Suite(Named, "onnxruntime", pytest, "ONNX Runtime runs a model with libbfc's memory (fetches it, once)"),
    Suite(Named, "rmm", pytest, "libbfc as RMM's memory resource, in C++ and Python (fetches RMM, once)"),
    Suite(Named, "tensorrt", pytest, "libbfc's allocator against TensorRT's headers (fetches them, once)"),
    Suite(Named, "transformers", pytest, "GPT-2, BERT and ViT train on the simulated driver (fetches, once)"),
    Suite(Named, "numpy", pytest, "NumPy's arrays in libbfc's memory (fetches it, once)"),
    Suite(Named, "arrow", pytest, "Arrow's buffers in libbfc's memory (fetches pyarrow, once)"),
    Suite(Named, "cupy", pytest, "CuPy's and Numba's classes with libbfc's memory (fetches them, once)"),
    Suite(
        Named,
        "metrics",
        pytest_compiling,
        "metrics, dashboard and alert rules in Debian's Prometheus server",
    ),
    Suite(
        Named,
        "browser",
        pytest_of_prefix,
        "the page of bfc report in Chromium (fetches Playwright, once)",
    ),
];

/// By pytest: the folder of its name in ffi-tests, with compilers, the installed library and the simulation.
fn pytest(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    context.pytest(context.suite, Needs::Simulation, &[])
}

fn layers(context: &mut Context) -> Result<()> {
    context.pytest("layers", Needs::Nothing, &[])
}

/// By pytest, with the installed library alone.
fn pytest_of_prefix(context: &mut Context) -> Result<()> {
    context.pytest(context.suite, Needs::Prefix, &[])
}

/// By pytest, with the installed library and compilers.
fn pytest_compiling(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    pytest_of_prefix(context)
}

/// The pack that `cargo xtask gpu` builds, on the simulated driver and on a real one if there is one.
fn gpu(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    let built = context.built(Profile::Release)?;
    println!("   building target/gpu");
    let pack = gpu::pack(&context.workspace, &built)?;
    context.check("docs/gpu.md is the generated one", |workspace| {
        let page = files::read(&workspace.path("docs/gpu.md"))?;
        ensure!(page == gpu::text_of_page(workspace, &pack)?, "it is not: run `cargo xtask gpu --page`");
        Ok(())
    });
    let python = uv::python(&context.workspace, gpu::PYTHON)?;
    let python = python.as_deref().map(|python| ("LIBBFC_TESTS_GPU_PYTHON", python));
    let more: Vec<_> = [("LIBBFC_TESTS_GPU_PACK", &*pack)].into_iter().chain(python).collect();
    context.pytest("gpu", Needs::Simulation, &more)
}

/// The files generated from the C ABI and from Cargo.lock are up to date. CTest tests that the headers compile.
fn header(context: &mut Context) -> Result<()> {
    for (name, generate) in [
        ("the headers are the generated ones", header::headers as fn(&Workspace) -> _),
        ("bfc-sys and Python declare what the headers do", header::clients),
        ("LICENSE-THIRD-PARTY names everything that is linked", licenses::generate),
    ] {
        context.check(name, |workspace| {
            generate(workspace)?.iter().try_for_each(|generated: &Generated| generated.check(workspace))
        });
    }
    let generator = context.cargo(&["test", "--package=bfc-generate"]);
    context.program("their generator", generator, Count::Cargo).map(drop)
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(SUITES.iter().map(|Suite(_, name, ..)| *name).chain(["all"]))
}

/// The arguments of `cargo xtask test`.
#[derive(Args)]
pub struct Test {
    /// A suite to run instead of the usual ones (see --list); may be repeated; `all`: every suite
    #[arg(long = "suite", value_name = "NAME", value_parser = names())]
    suites: Vec<String>,
    /// Run only the suites that find most mistakes: layers, rust
    #[arg(long, conflicts_with = "suites")]
    quick: bool,
    /// List the suites
    #[arg(long)]
    list: bool,
    /// Show the output of the tests as they run; it is always kept in target/xtask/logs
    #[arg(long, short)]
    verbose: bool,
    /// Arguments for pytest, after --: `-k captured`
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

impl Test {
    /// Runs the suites and prints their results.
    pub fn run(&self, mut workspace: Workspace) -> Result<ExitCode> {
        if self.list {
            for Suite(when, name, _, about) in SUITES {
                let usual = if *when == Named { "by name" } else { "usual" };
                println!("{name:<14}{usual:<9}{about}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        workspace.verbose = self.verbose;
        let mut context = Context::new(workspace, self.arguments.clone());
        let mut verdicts = Vec::new();
        for &Suite(_, name, run, about) in SUITES.iter().filter(|suite| self.wants(suite)) {
            println!("\n== {name}: {about}");
            let start = Instant::now();
            context.suite = name;
            match run(&mut context) {
                Err(error) if error.is::<Unavailable>() => context.skip("the rest", &format!("{error:#}")),
                Err(error) => context.fail("the suite could not go on", &format!("{error:#}")),
                // Such a suite has missed nothing, and has tested nothing.
                Ok(()) if context.is_empty() => context.fail("the suite", "it ran no test"),
                Ok(()) => {}
            }
            let seconds = start.elapsed().as_secs_f64();
            verdicts.push(Verdict { suite: name, tally: context.take_tally(), seconds });
        }
        if self.quick {
            let left = SUITES.iter().filter(|Suite(when, ..)| *when == Usual).map(|Suite(_, name, ..)| *name);
            println!("\nleft out by --quick: {}", left.collect::<Vec<_>>().join(" "));
        }
        print!("\n{}", verdict::account(&verdicts));
        let has_failed = verdicts.iter().any(|verdict| !verdict.tally.failed.is_empty());
        Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn wants(&self, &Suite(when, name, ..): &Suite) -> bool {
        if self.suites.is_empty() {
            return if self.quick { when == Quick } else { when != Named };
        }
        self.suites.iter().any(|wanted| wanted == name || wanted == "all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        test: Test,
    }

    fn wanted(arguments: &[&str]) -> Vec<&'static str> {
        let test = Cli::parse_from([&["test"], arguments].concat()).test;
        let wanted = SUITES.iter().filter(|suite| test.wants(suite));
        wanted.map(|Suite(_, name, ..)| *name).collect()
    }

    #[test]
    fn the_usual_suites_run_unless_others_are_named() {
        let usual =
            "layers rust release simcuda preload top docs header symbols history stack package valgrind";
        assert_eq!(wanted(&[]), usual.split(' ').collect::<Vec<_>>());
        assert_eq!(wanted(&["--quick"]), ["layers", "rust"]);
        assert_eq!(wanted(&["--suite=fuzz", "--suite=lints"]), ["lints", "fuzz"]);
        assert_eq!(wanted(&["--suite=all"]).len(), SUITES.len());
    }
}
