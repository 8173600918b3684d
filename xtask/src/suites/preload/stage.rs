//! Programs with the interposer, on the simulated driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::files;
use crate::install;
use crate::simcuda;
use crate::suites::context::Context;
use crate::tools;
use crate::workspace::without;

/// What a program of ffi-tests/preload/ is linked to.
#[derive(Clone, Copy, PartialEq)]
pub enum Link {
    /// The simulated libcudart.so of that major version: 11, 12 or 13.
    Runtime(u32),
    /// The simulated libcudart_static.a, whose symbols are hidden.
    Static,
    /// The simulated libcuda.so.1 itself.
    Driver,
    /// Nothing of CUDA.
    Nothing,
    /// It is no program but a shared library, and nothing of CUDA is in it.
    Library,
}

/// Interposer, simulation and programs, all built.
pub struct Stage {
    /// The installed libraries: libbfc_preload.so and what it needs.
    pub lib: PathBuf,
    /// The simulated driver and runtimes.
    pub simulation: PathBuf,
    /// Programs, and what they write.
    folder: PathBuf,
}

impl Stage {
    /// Installs the interposer as `cargo xtask install` does, and builds the simulation.
    pub fn build(context: &mut Context) -> Result<Self> {
        let lib = context.prefix()?.join("lib");
        let simulation = simcuda::build(&context.workspace)?;
        let folder = context.workspace.target.join("preload");
        files::remove_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
        Ok(Self { lib, simulation, folder })
    }

    /// The interposer.
    pub fn interposer(&self) -> PathBuf {
        self.lib.join(install::INTERPOSER)
    }

    /// A file of the tests' own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Compiles ffi-tests/preload/SOURCE as the program NAME.
    pub fn compile(
        &self,
        context: &Context,
        name: &str,
        source: &str,
        link: Link,
        flags: &[&str],
    ) -> Result<PathBuf> {
        let workspace = &context.workspace;
        let program = self.file(name);
        let major = if let Link::Runtime(major) = link { major } else { simcuda::MAJORS[0] };
        let mut command = workspace.command(tools::c_compiler());
        command.args(simcuda::C_FLAGS).arg(format!("-DCUDART_MAJOR={major}")).arg("-pthread");
        command.arg("-I").arg(workspace.path("include"));
        command.arg("-I").arg(workspace.path("ffi-tests/simcuda"));
        command.arg("-I").arg(workspace.path("ffi-tests/preload"));
        if link == Link::Library {
            command.args(["-shared", "-fPIC"]);
        }
        command.arg(workspace.path("ffi-tests/preload").join(source));
        command.args(flags).arg("-o").arg(&program);
        match link {
            Link::Runtime(major) => {
                command.arg(self.simulation.join(simcuda::runtime(major)));
            }
            Link::Static => {
                command.arg(self.simulation.join("libcudart_static.a"));
            }
            Link::Driver => {
                command.arg(self.simulation.join("libcuda.so.1"));
            }
            Link::Nothing | Link::Library => {}
        }
        command.args(["-ldl", "-lpthread"]);
        workspace.run_well(&format!("preload: compile {name}"), command)?;
        Ok(program)
    }

    /// A program on the simulated driver without the interposer. The user's own settings are not the test's.
    pub fn plain(&self, context: &Context, program: &Path) -> Command {
        let mut command = context.plain(context.workspace.command(program));
        without(&mut command, &["SIMCUDA_"]);
        command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", &self.simulation);
        command.env("SIMCUDA_DEVICES", "2");
        command
    }

    /// A program with the interposer.
    pub fn run(&self, context: &Context, program: &Path) -> Result<Run> {
        self.run_among(context, program, &[], &[])
    }

    /// The same with other preloaded libraries before and behind the interposer.
    pub fn run_among(
        &self,
        context: &Context,
        program: &Path,
        before: &[&Path],
        behind: &[&Path],
    ) -> Result<Run> {
        let mut command = self.plain(context, program);
        let name = program.file_name().context("a program has a name")?.to_string_lossy();
        let check = self.file(&format!("{name}.check"));
        let interposer = self.interposer();
        let all = before.iter().copied().chain([interposer.as_path()]).chain(behind.iter().copied());
        let all: Vec<OsString> = all.map(|path| path.as_os_str().to_owned()).collect();
        command.env("LD_PRELOAD", all.join(":".as_ref())).env("BFC_PRELOAD_CHECK", &check);
        Ok(Run { command, check })
    }

    /// A test: the program ends well, and the pool served it.
    pub fn served(&self, context: &mut Context, name: &str, run: Run) {
        self.expect(context, name, run, &["loaded", "served", "exit driver=mapped"], &[]);
    }

    /// A test: the program ends well, and what the interposer saw has lines that begin with each of `there`, and none
    /// that begins with one of `absent`.
    pub fn expect(&self, context: &mut Context, name: &str, run: Run, there: &[&str], absent: &[&str]) {
        context.check(name, |workspace| {
            files::remove(&run.check)?;
            let ended = workspace.run(&format!("preload: {name}"), run.command)?;
            if !ended.success {
                bail!("{}", ended.complaint());
            }
            judge(&saw(&run.check)?, there, absent)
        });
    }
}

/// A program with the interposer, about to run.
pub struct Run {
    /// Arguments and variables may be added.
    pub command: Command,
    /// Where the interposer says what it sees; see [`saw`].
    pub check: PathBuf,
}

/// What the interposer wrote into a file: its lines without the process numbers, in order.
pub fn saw(check: &Path) -> Result<Vec<String>> {
    if !check.exists() {
        return Ok(Vec::new());
    }
    let text = files::read(check)?;
    let lines = text.lines().map(|line| line.split_once(' ').map_or(line, |(_, words)| words));
    Ok(lines.map(str::to_owned).collect())
}

/// Each of the beginnings is that of a line, as whole words, or is that of none.
pub fn judge(lines: &[String], there: &[&str], absent: &[&str]) -> Result<()> {
    let has = |begin: &str| lines.iter().any(|line| line == begin || line.starts_with(&format!("{begin} ")));
    if let Some(missing) = there.iter().find(|begin| !has(begin)) {
        bail!("no line begins with {missing}:\n{}", lines.join("\n"));
    }
    if let Some(begin) = absent.iter().find(|begin| has(begin)) {
        bail!("a line begins with {begin}:\n{}", lines.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_judged_by_whole_words() {
        let lines = ["loaded /bin/x".to_owned(), "served 1024".to_owned()];
        assert!(judge(&lines, &["loaded", "served 1024"], &["passed"]).is_ok());
        assert!(judge(&lines, &["served 10"], &[]).is_err());
        assert!(judge(&lines, &["exit"], &[]).is_err());
        assert!(judge(&lines, &[], &["served"]).is_err());
        assert!(judge(&[], &["loaded"], &[]).is_err());
    }
}
