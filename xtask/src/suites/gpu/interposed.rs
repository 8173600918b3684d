//! Programs that know nothing of libbfc, alone and under `bfc run`: ffi-tests/gpu/interposed.
//!
//! `run.sh` there does all of it, so that it runs where there is a GPU and no Rust. Here it runs on this machine's
//! driver; and on the simulated one with saxpy.cu compiled as C behind a stand-in for nvcc, where it also has to find what
//! is wrong on purpose.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::files;
use crate::install;
use crate::simcuda;
use crate::suites::context::{Context, Count};
use crate::tools;
use crate::workspace::Workspace;

const FILES: [&str; 6] = ["run.sh", "saxpy.cu", "outcome.py", "with_cupy.py", "with_torch.py", "with_jax.py"];

/// What is wrong on purpose: a variable, arguments, and how the line begins that says so.
/// `SAXPY` stands for the program's path.
struct Fault {
    name: &'static str,
    variable: (&'static str, &'static str),
    arguments: &'static [&'static str],
    says: &'static str,
}

const NONE: (&str, &str) = ("SECONDS_EACH", "120");

const FAULTS: [Fault; 8] = [
    Fault {
        name: "a program that prints something else with the interposer",
        variable: NONE,
        arguments: &["--", "sh", "-c", "SAXPY && echo \"$LD_PRELOAD\""],
        says: "program: its output is another one with the interposer",
    },
    Fault {
        name: "a program that fails with the interposer",
        variable: NONE,
        arguments: &["--", "sh", "-c", "test -z \"$LD_PRELOAD\""],
        says: "program: with the interposer it ended with 1, without it well",
    },
    Fault {
        name: "a program that fails alone",
        variable: NONE,
        arguments: &["--", "false"],
        says: "program: without the interposer it ended with 1",
    },
    Fault {
        name: "a program that does not end",
        variable: ("SECONDS_EACH", "1"),
        arguments: &["--", "sleep", "60"],
        says: "program: without the interposer it ended with 124",
    },
    Fault {
        name: "a program that never allocates",
        variable: NONE,
        arguments: &["--", "true"],
        says: "program: nothing was served from the pool; bfc run --check says",
    },
    Fault {
        name: "a program of which nothing is served",
        variable: ("OPTIONS", "--min=1GiB"),
        arguments: &["--", "SAXPY"],
        says: "program: nothing was served from the pool; bfc run --check says",
    },
    Fault {
        name: "a program of which only a part is served",
        variable: ("OPTIONS", "--min=1MiB"),
        arguments: &["--", "SAXPY"],
        says: "program: of at least 3000 allocations only ",
    },
    Fault {
        name: "a program that would not see a race",
        // `true` does as if all were well, also with a pool that does not wait.
        variable: ("SAXPY", "true"),
        arguments: &["nvcc"],
        says: "nvcc_sees_a_race: a pool that waits for nothing went unnoticed",
    },
];

/// Puts all that it needs into the folder that can be carried to another machine.
pub fn build(workspace: &Workspace, prefix: &Path, folder: &Path) -> Result<()> {
    let library = &workspace.soname;
    for name in [&format!("lib/{library}"), &format!("lib/{}", install::INTERPOSER), "bin/bfc"] {
        files::copy(&prefix.join(name), &folder.join(name))?;
    }
    for name in FILES {
        let inside = Path::new("interposed").join(name);
        files::copy(&workspace.path("ffi-tests/gpu").join(&inside), &folder.join(&inside))?;
    }
    Ok(())
}

/// On the simulated driver, and on whatever driver there is.
pub fn run(context: &mut Context, folder: &Path) -> Result<()> {
    let simulation = simcuda::build(&context.workspace)?;
    let saxpy = compile(context, folder, &simulation)?;
    let on = |simulation: Option<&Path>, arguments: &[&str]| {
        let mut command = context.workspace.command(folder.join("interposed/run.sh"));
        command.arg(folder).args(arguments).env("SAXPY", &saxpy);
        command.envs(simulation.map(|folder| ("LD_LIBRARY_PATH", folder)));
        context.plain(command)
    };
    let mut simulated = on(Some(&simulation), &["nvcc"]);
    simulated.env_remove("SAXPY").env("PATH", with_compiler(&saxpy)?);
    let mut real = on(None, &[]);
    real.env_remove("SAXPY");
    let path = saxpy.display().to_string();
    let faults = FAULTS.map(|fault| {
        let arguments = fault.arguments.iter().map(|word| word.replace("SAXPY", &path));
        let arguments: Vec<String> = arguments.collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = on(Some(&simulation), &arguments);
        command.env(fault.variable.0, fault.variable.1);
        (fault, command)
    });

    let text = judged(context, "interposed, saxpy.cu as C on the simulated driver", simulated)?;
    let skipped = text.lines().filter(|line| line.contains(" ... ignored"));
    context.gate("interposed: nothing of that was skipped", &skipped.map(str::to_owned).collect::<Vec<_>>());
    for (fault, command) in faults {
        context.check(&format!("interposed: run.sh finds {}", fault.name), |workspace| {
            found(workspace, &fault, command)
        });
    }
    judged(context, "interposed, on this machine's driver", real).map(drop)
}

/// A run of run.sh, with the driver calls that were saved, and what it printed.
fn judged(context: &mut Context, name: &str, command: Command) -> Result<String> {
    let ended = context.program(name, command, Count::Cargo)?;
    let facts = ended.text.lines().filter(|line| line.contains("allocations served, "));
    facts.for_each(|line| println!("     | {}", line.trim()));
    Ok(ended.text)
}

/// Run.sh fails, and for that reason.
fn found(workspace: &Workspace, fault: &Fault, command: Command) -> Result<()> {
    let ended = workspace.run(&format!("interposed: {}", fault.name), command)?;
    let is_said = ended.text.lines().any(|line| line.trim_start().starts_with(fault.says));
    if ended.success || !is_said {
        bail!("it does not say \"{}\": {}", fault.says, ended.complaint());
    }
    Ok(())
}

/// The program for the simulated driver, with the static runtime. It is not for a GPU, and not in the folder.
fn compile(context: &Context, folder: &Path, simulation: &Path) -> Result<PathBuf> {
    let workspace = &context.workspace;
    let program = workspace.target.join("simcuda/saxpy");
    let mut command = workspace.command(tools::c_compiler());
    command.args(simcuda::C_FLAGS).arg(format!("-DCUDART_MAJOR={}", simcuda::MAJORS[0]));
    command.arg("-I").arg(workspace.path("ffi-tests/simcuda"));
    command.args(["-x", "c"]).arg(folder.join("interposed/saxpy.cu")).args(["-x", "none"]);
    command.arg(simulation.join("libcudart_static.a")).arg("-o").arg(&program).args(["-ldl", "-lpthread"]);
    workspace.run_well("interposed: compile saxpy.cu as C", command)?;
    Ok(program)
}

/// PATH with a stand-in for nvcc in front, which "compiles" that program, as an old one that does not know this machine's
/// architecture.
fn with_compiler(program: &Path) -> Result<OsString> {
    let folder = program.with_file_name("compiler");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *-arch=native*) exit 1 ;; esac\n\
         while [ $# -gt 0 ]; do [ \"$1\" = -o ] && cp '{}' \"$2\"; shift; done\n",
        program.display()
    );
    let path = folder.join("nvcc");
    files::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let rest = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([folder].into_iter().chain(env::split_paths(&rest)))?)
}
