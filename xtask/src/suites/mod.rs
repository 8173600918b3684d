//! `cargo xtask test`: the suites, and running them.

mod context;
mod ctest;
mod cuda_headers;
mod docs;
mod fuzz;
mod gpu;
mod header;
mod lints;
mod peers;
mod preload;
mod races;
mod rust;
mod simcuda;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::suites::context::Context;
use crate::tools;
use crate::verdict::{self, Verdict};
use crate::workspace::Workspace;

/// A set of tests that is run as a whole.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// Whether it runs when no suite is named.
    usual: bool,
    run: Run,
}

/// How a suite runs.
enum Run {
    /// By pytest: the folder of its name in ffi-tests, with compilers, the installed library and the simulation.
    Pytest,
    /// By a function of its own.
    Own(fn(&mut Context) -> Result<()>),
}

impl Suite {
    fn run(&self, context: &mut Context) -> Result<()> {
        match (&self.run, tools::missing_compiler()) {
            (Run::Own(run), _) => run(context),
            (Run::Pytest, None) => context.pytest(self.name),
            (Run::Pytest, Some(why)) => {
                context.skip("all of it", &why);
                Ok(())
            }
        }
    }
}

/// In the order in which they run: what takes seconds and finds much comes first.
const SUITES: &[Suite] = &[
    Suite {
        name: "layers",
        about: "modules import only from those below them, and not in circles; pages name files and variables that are there",
        usual: true,
        run: Run::Own(|context| context.pytest_alone("layers")),
    },
    Suite {
        name: "rust",
        about: "cargo test of the workspace, its example, golden placements with the release build",
        usual: true,
        run: Run::Own(rust::run),
    },
    Suite {
        name: "simcuda",
        about: "the simulated driver and runtimes: their own tests",
        usual: true,
        run: Run::Own(simcuda::run),
    },
    Suite {
        name: "preload",
        about: "libbfc_preload.so: what it shows the loader, and programs with it on the simulated driver",
        usual: true,
        run: Run::Own(preload::run),
    },
    Suite {
        name: "docs",
        about: "rustdoc without a warning and its examples; the book, links, and the code and commands on pages",
        usual: true,
        run: Run::Own(docs::run),
    },
    Suite {
        name: "header",
        about: "bfc.h, bfc_adapters.h and the declarations for Rust and Python are the generated ones",
        usual: true,
        run: Run::Own(header::run),
    },
    Suite {
        name: "symbols",
        about: "what libbfc.so exports and needs, and its SONAME",
        usual: true,
        run: Run::Own(|context| context.pytest_installed("symbols", &[])),
    },
    Suite {
        name: "stack",
        about: "each function of the C ABI and each hook needs at most 4 KiB of stack, whatever it meets",
        usual: true,
        run: Run::Own(ctest::stack),
    },
    Suite {
        name: "package",
        about: "programs in C and C++ with the installed library, found by CMake and pkg-config; installing, removing, packages",
        usual: true,
        run: Run::Own(ctest::package),
    },
    Suite {
        name: "valgrind",
        about: "the programs of ffi-tests under valgrind; instructions of allocations and frees on recorded programs",
        usual: true,
        run: Run::Own(ctest::valgrind),
    },
    Suite {
        name: "lints",
        about: "the hooks of .pre-commit-config.yaml (formatters, linters, spelling, terms), and the oldest Rust",
        usual: false,
        run: Run::Own(lints::run),
    },
    Suite {
        name: "cuda-headers",
        about: "cuda-sys, the hooks, the simulated runtime and the handlers against NVIDIA's own headers (fetches them, once)",
        usual: false,
        run: Run::Own(cuda_headers::run),
    },
    Suite {
        name: "races",
        about: "155 thousand random programs on simulated streams, and 85 thousand under the interposer",
        usual: false,
        run: Run::Own(races::run),
    },
    Suite {
        name: "peers",
        about: "the benchmark beside other allocators: that each runs and none returns memory that overlaps",
        usual: false,
        run: Run::Own(peers::run),
    },
    Suite {
        name: "gpu",
        about: "on a real NVIDIA GPU if there is one, and on the simulated driver",
        usual: false,
        run: Run::Own(gpu::run),
    },
    Suite {
        name: "fuzz",
        about: "a search for calls that take too long; half a minute of each fuzz target (needs a nightly toolchain)",
        usual: false,
        run: Run::Own(fuzz::run),
    },
    Suite {
        name: "tensorflow",
        about: "in lock-step with TensorFlow's own allocator (fetches its wheel, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "python",
        about: "the package bfc as wheels for this system and for glibc 2.28, the sdist, the crates (fetches zig, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "pytorch",
        about: "PyTorch's CUDA wheel trains on the simulated driver (fetches it, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "pytorch-cpu",
        about: "PyTorch trains on the CPU, with libbfc's memory and without (fetches it, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "keras",
        about: "Keras trains with libbfc in the place of TensorFlow's allocator (fetches it, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "onnxruntime",
        about: "ONNX Runtime's CPU wheel runs a model with libbfc's memory (fetches it, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "rmm",
        about: "libbfc as RMM's memory resource, in C++ and Python, on the simulated driver (fetches RMM, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "tensorrt",
        about: "libbfc's allocator against TensorRT's headers, on the simulated driver (fetches them, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "transformers",
        about: "GPT-2, BERT and ViT train on the simulated driver, with and without bfc.torch (fetches them, once)",
        usual: false,
        run: Run::Pytest,
    },
    Suite {
        name: "cupy",
        about: "CuPy's and Numba's own classes with libbfc's memory, on the simulated driver (fetches them, once)",
        usual: false,
        run: Run::Pytest,
    },
];

/// The suites of `--quick`.
const QUICK: [&str; 4] = ["layers", "rust", "header", "symbols"];

/// What `cargo xtask test` takes.
#[derive(Args)]
pub struct Test {
    /// A suite to run instead of the usual ones, see --list; may be repeated; `all` is every one
    #[arg(long = "suite", value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    suites: Vec<String>,
    /// Run the suites that take three minutes and find most mistakes: layers, rust, header, symbols
    #[arg(long, conflicts_with = "suites")]
    quick: bool,
    /// List the suites
    #[arg(long)]
    list: bool,
    /// Show all that the tests say, as they say it; it is kept in target/xtask/logs anyway
    #[arg(long, short)]
    verbose: bool,
    /// Arguments for pytest, behind --: `-k captured`
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

fn names() -> Vec<&'static str> {
    let names = SUITES.iter().map(|suite| suite.name);
    names.chain(["all"]).collect()
}

impl Test {
    /// Runs the suites and gives account of them.
    pub fn run(&self, mut workspace: Workspace) -> Result<ExitCode> {
        if self.list {
            for suite in SUITES {
                let usual = if suite.usual { "usual" } else { "by name" };
                println!("{:<14}{usual:<9}{}", suite.name, suite.about);
            }
            return Ok(ExitCode::SUCCESS);
        }
        workspace.verbose = self.verbose;
        let mut context = Context::new(workspace, self.arguments.clone());
        let mut verdicts = Vec::new();
        for suite in SUITES.iter().filter(|suite| self.wants(suite)) {
            println!("\n== {}: {}", suite.name, suite.about);
            let start = Instant::now();
            if let Err(error) = suite.run(&mut context) {
                context.fail("the suite could not go on", &format!("{error:#}"));
            }
            verdicts.push(Verdict {
                suite: suite.name,
                tally: context.take_tally(),
                seconds: start.elapsed().as_secs_f64(),
            });
        }
        print!("\n{}", verdict::account(&verdicts));
        Ok(if verdict::all_well(&verdicts) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn wants(&self, suite: &Suite) -> bool {
        let named = |name: &str| self.suites.iter().any(|wanted| wanted == name);
        let is_chosen = if self.quick { QUICK.contains(&suite.name) } else { suite.usual };
        named(suite.name) || named("all") || (self.suites.is_empty() && is_chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(suites: &[&str]) -> Vec<&'static str> {
        let test = Test {
            suites: suites.iter().map(|name| (*name).to_owned()).collect(),
            quick: false,
            list: false,
            verbose: false,
            arguments: Vec::new(),
        };
        let wanted = SUITES.iter().filter(|suite| test.wants(suite));
        wanted.map(|suite| suite.name).collect()
    }

    #[test]
    fn the_usual_suites_run_unless_others_are_named() {
        let usual = [
            "layers", "rust", "simcuda", "preload", "docs", "header", "symbols", "stack", "package",
            "valgrind",
        ];
        assert_eq!(wanted(&[]), usual);
        assert_eq!(wanted(&["fuzz", "lints"]), ["lints", "fuzz"]);
        assert_eq!(wanted(&["all"]).len(), SUITES.len());
    }

    #[test]
    fn the_quick_suites_are_usual_ones() {
        let is_usual = |name: &&str| SUITES.iter().any(|suite| suite.name == *name && suite.usual);
        assert!(QUICK.iter().all(is_usual));
    }

    #[test]
    fn suites_have_names_of_their_own() {
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITES.len() + 1);
    }
}
