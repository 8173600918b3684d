//! Runs programs: all calls with libbfc's basic blocks counted, which is fast, or one call under callgrind, which is exact.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::program::Program;
use crate::workspace::{Workspace, capture, without};
use crate::{cargo, files, instructions, simcuda, tools};

/// What has the compiler call a function of the driver program at each basic block of libbfc. Stable compilers can do that.
const COUNTED: [&str; 4] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-trace-pc",
    "-Cllvm-args=-sanitizer-coverage-prune-blocks=0",
];

/// A call without an end must not keep a machine.
const TIMED: u32 = 3;

/// The call of its kind in which a program ran most blocks.
pub struct Worst {
    /// The function, and what was special about the call.
    pub kind: String,
    pub blocks: u64,
    /// Its number in the program.
    pub call: u64,
}

/// The driver program, with libbfc as it is installed and with one that counts.
pub struct Runner<'a> {
    workspace: &'a Workspace,
    path: PathBuf,
    installed: String,
    counting: String,
    session: Option<Session>,
}

/// The driver program as it serves: it starts once for many programs.
struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'a> Runner<'a> {
    /// Builds both, for a libbfc installed at `prefix`.
    pub fn build(workspace: &'a Workspace, prefix: &Path) -> Result<Self> {
        let folder = workspace.target.join("cliffs");
        println!("Building libbfc with its basic blocks counted");
        let mut command = cargo::cargo(workspace, &["rustc", "--release", "--package=libbfc", "--lib"]);
        command.args(["--quiet", "--crate-type=cdylib", "--target-dir"]).arg(&folder).arg("--").args(COUNTED);
        workspace.run_well("cliffs: build libbfc with blocks counted", command)?;
        let counting = folder.join("lib");
        files::copy(&folder.join("release/libbfc.so"), &counting.join("libbfc.so.0"))?;
        let (path, library) = (folder.join("cliffs"), prefix.join("lib"));
        let mut command = workspace.command(tools::c_compiler());
        // libbfc.so calls back into the program.
        command.args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-I"]);
        command.arg(prefix.join("include")).arg(workspace.path("benches/cliffs/cliffs.c"));
        command.arg("-o").arg(&path).arg("-L").arg(&library).args(["-lbfc", "-ldl"]);
        workspace.run_well("cliffs: compile benches/cliffs/cliffs.c", command)?;
        let simulation = simcuda::build_driver(workspace)?;
        let with = |folder: &Path| format!("{}:{}", folder.display(), simulation.display());
        Ok(Self { workspace, path, installed: with(&library), counting: with(&counting), session: None })
    }

    fn prepare(command: &mut Command, libraries: &str) {
        without(command, &["BFC_", "SIMCUDA_", "VALGRIND_"]);
        command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", libraries);
        // What the loader does at a first call is not libbfc's; another seed would make other searches long.
        command.env("LD_BIND_NOW", "1").env("BFC_HASH_SEED", "1");
    }

    /// Runs a program: its worst call of each kind.
    pub fn worst(&mut self, program: &Program, scale: u64) -> Result<Vec<Worst>> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.serve()?,
        };
        let mut answer = String::new();
        writeln!(session.input, "{scale} {program}").context("the driver program has ended")?;
        session.output.read_line(&mut answer)?;
        if !answer.ends_with('\n') {
            bail!("the driver program: {}; it ran {scale} {program}", session.child.wait()?);
        }
        self.session = Some(session);
        answer.trim_end().split_terminator(';').map(Worst::parse).collect()
    }

    fn serve(&self) -> Result<Session> {
        let mut command = self.workspace.command(&self.path);
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::prepare(&mut command, &self.counting);
        let mut child = command.spawn().context("cannot start the driver program")?;
        let input = child.stdin.take().context("it has an input")?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        Ok(Session { child, input, output })
    }

    /// The instructions of libbfc itself in one call.
    pub fn instructions(&self, program: &Program, scale: u64, call: u64) -> Result<u64> {
        // Two runs at once must not read each other's.
        let name = format!("cliffs/callgrind-{}.out", std::process::id());
        let file = self.workspace.target.join(name);
        files::remove(&file)?;
        let mut command = self.workspace.command("valgrind");
        command.args(["-q", "--tool=callgrind", "--collect-atstart=no", "--instr-atstart=no"]);
        command.arg(format!("--callgrind-out-file={}", file.display()));
        command.arg(&self.path).args(Self::one(program, scale, call));
        Self::prepare(&mut command, &self.installed);
        self.workspace.run_well("cliffs: callgrind", command)?;
        let text = files::read(&file)?;
        files::remove(&file)?;
        instructions::own(&text)
    }

    /// The nanoseconds of one call, with the backend's: the best of some runs.
    pub fn nanoseconds(&self, program: &Program, scale: u64, call: u64) -> Result<u64> {
        let mut best = u64::MAX;
        for _ in 0..TIMED {
            let mut command = self.workspace.command(&self.path);
            command.args(Self::one(program, scale, call));
            Self::prepare(&mut command, &self.installed);
            let said = capture(&mut command)?;
            best = best.min(said.trim().parse().with_context(|| format!("the driver program said {said}"))?);
        }
        Ok(best)
    }

    fn one(program: &Program, scale: u64, call: u64) -> [String; 4] {
        ["one".into(), scale.to_string(), call.to_string(), program.to_string()]
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its input ends with it; it may be in a long program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worst {
    /// Reads `KIND=BLOCKS@CALL`.
    fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('=').and_then(|(kind, rest)| Some((kind, rest.split_once('@')?)));
        let (kind, (blocks, call)) =
            parts.with_context(|| format!("the driver program said {text:?} of a call"))?;
        Ok(Self { kind: kind.to_owned(), blocks: blocks.parse()?, call: call.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_call_is_read() {
        let worst = Worst::parse("alloc aligned streams=12@3").expect("a good line");
        assert_eq!((worst.kind.as_str(), worst.blocks, worst.call), ("alloc aligned streams", 12, 3));
        assert!(Worst::parse("alloc=x@3").is_err() && Worst::parse("").is_err());
    }
}
