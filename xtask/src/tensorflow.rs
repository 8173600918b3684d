//! TensorFlow's own allocator, from its wheel on PyPI, and the C++ programs that hold libbfc against it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::files;
use crate::python::{Environment, Packages};
use crate::tools;
use crate::workspace::Workspace;

const PACKAGES: Packages = Packages {
    name: "tensorflow",
    about: "TensorFlow 2.21.0 (about 350 MB, 1.6 GB on the disk)",
    pip: &["--only-binary=:all:", "tensorflow-cpu==2.21.0", "keras==3.15.1", "numpy==2.4.6"],
};

/// The installed wheel: headers and one library; and Python with it.
pub struct TensorFlow {
    environment: Environment,
    /// The package's folder in the virtual environment.
    folder: PathBuf,
}

impl TensorFlow {
    /// The one in the cache, which is filled if need be.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        let environment = PACKAGES.find(workspace)?;
        let folder = environment.packages().join("tensorflow");
        Ok(Self { environment, folder })
    }

    /// Python with TensorFlow and Keras. What it says of itself at the beginning is left out.
    pub fn command(&self, workspace: &Workspace) -> Command {
        let mut command = self.environment.command(workspace);
        command.env("TF_CPP_MIN_LOG_LEVEL", "2").args(["-W", "ignore"]);
        // Keras would read the user's settings, and write some.
        command.env("KERAS_HOME", workspace.target.join("xtask/keras"));
        command
    }

    /// Compiles sources of ffi-tests/keras and links them with TensorFlow, after what `arguments` say.
    pub fn compile(
        &self,
        workspace: &Workspace,
        sources: &[&str],
        out: &Path,
        arguments: &[&OsStr],
    ) -> Result<()> {
        let folder = out.parent().context("a file has a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut command = workspace.command(tools::cxx_compiler());
        command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-DNDEBUG"]);
        command.arg("-D_GLIBCXX_USE_CXX11_ABI=1").arg("-isystem").arg(self.folder.join("include"));
        command.args(sources.iter().map(|source| workspace.path("ffi-tests/keras").join(source)));
        command.arg("-o").arg(out).args(arguments);
        link(&mut command, &self.folder, "libtensorflow_framework.so.2");
        workspace.run_well(&format!("compile {}", sources.join(" ")), command).map(drop)
    }
}

/// One of the programs in ffi-tests/tensorflow.
#[derive(Clone, Copy, PartialEq)]
pub enum Program {
    /// Random programs on both allocators, compared after every step.
    Lockstep,
    /// Speed and host memory of both.
    Bench,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Lockstep => "lockstep",
            Self::Bench => "bench",
        }
    }

    /// By the sources' names: those of bench begin with it.
    fn owns(self, source: &Path) -> bool {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        name.starts_with("bench") == (self == Self::Bench)
    }
}

/// Compiles a program against the installed libbfc in `prefix`, as its README.md says, and gives its
/// path. Without TensorFlow only bench can be had, for libbfc alone. Sources that have not changed since
/// are not compiled again: TensorFlow's headers take a while.
pub fn compile(
    workspace: &Workspace,
    prefix: &Path,
    program: Program,
    tensorflow: Option<&TensorFlow>,
) -> Result<PathBuf> {
    let folder = workspace.path("ffi-tests/tensorflow");
    let sources: Vec<PathBuf> =
        files::below(&folder, "cc")?.into_iter().filter(|source| program.owns(source)).collect();
    if sources.is_empty() {
        bail!("{} has no source of {}", folder.display(), program.name());
    }
    let alone = if tensorflow.is_some() { "" } else { "-alone" };
    let out = workspace.target.join(format!("ffi/{}{alone}", program.name()));
    let mut flags: Vec<String> =
        ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"].map(str::to_owned).into();
    flags.push(format!("-I{}", prefix.join("include").display()));
    match tensorflow {
        Some(tensorflow) => {
            flags.push("-D_GLIBCXX_USE_CXX11_ABI=1".to_owned());
            // A system folder: TensorFlow's headers are not clean under -Wall.
            let include = tensorflow.folder.join("include");
            flags.extend(["-isystem".to_owned(), include.display().to_string()]);
        }
        None => flags.push("-DBFC_WITHOUT_TENSORFLOW".to_owned()),
    }

    let newest = newest_of(&[files::below(&folder, "h")?, vec![prefix.join("include/bfc.h")]])?;
    // Other flags make other objects; another TensorFlow comes with another path or is never seen here.
    let stamp = out.join("flags.txt");
    let same_flags = stamp.exists() && files::read(&stamp)? == flags.join("\n");
    let mut jobs = VecDeque::new();
    let mut objects = Vec::new();
    for source in &sources {
        let object = out.join(source.file_name().unwrap_or_default()).with_extension("o");
        if !same_flags || modified(&object) < Some(newest.max(modified(source).unwrap_or(newest))) {
            jobs.push_back((source.clone(), object.clone()));
        }
        objects.push(object);
    }
    files::write(&stamp, "")?;
    compile_all(workspace, &flags, jobs)?;
    files::write(&stamp, flags.join("\n"))?;

    let executable = out.join(program.name());
    let mut command = workspace.command(tools::cxx_compiler());
    command.arg("-pthread").args(&objects);
    command.arg("-o").arg(&executable);
    link(&mut command, &prefix.join("lib"), "libbfc.so");
    if let Some(tensorflow) = tensorflow {
        link(&mut command, &tensorflow.folder, "libtensorflow_framework.so.2");
    }
    workspace.run_well(&format!("link {}", program.name()), command)?;
    Ok(executable)
}

/// Runs a program that `compile` gave. TensorFlow talks about itself before such a program's `main` is
/// reached, so it has to be told from outside to be quiet.
pub fn command(workspace: &Workspace, program: &Path) -> Command {
    let mut command = workspace.command(program);
    command.env("TF_CPP_MIN_LOG_LEVEL", "3");
    command.env("TF_ENABLE_ONEDNN_OPTS", "0");
    command
}

/// By the exact file name, and found there at run time too.
fn link(command: &mut Command, folder: &Path, library: &str) {
    let folder = folder.display();
    command.arg(format!("-L{folder}"));
    command.arg(format!("-l:{library}"));
    command.arg(format!("-Wl,-rpath,{folder}"));
}

/// Two at once: a compiler with these headers takes about a gigabyte.
fn compile_all(workspace: &Workspace, flags: &[String], jobs: VecDeque<(PathBuf, PathBuf)>) -> Result<()> {
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().ok().and_then(|mut jobs| jobs.pop_front());
    let work = || -> Result<()> {
        while let Some((source, object)) = next() {
            let mut command = workspace.command(tools::cxx_compiler());
            command.args(flags).arg("-c").arg(&source);
            command.arg("-o").arg(&object);
            let name = source.file_name().unwrap_or_default().display();
            workspace.run_well(&format!("compile {name}"), command)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(work);
        let own = work();
        let others = other.join().unwrap_or_else(|_| bail!("a compiling thread panicked"));
        own.and(others)
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}

fn newest_of(paths: &[Vec<PathBuf>]) -> Result<SystemTime> {
    let times = paths
        .iter()
        .flatten()
        .map(|path| modified(path).with_context(|| format!("cannot look at {}", path.display())));
    let times = times.collect::<Result<Vec<_>>>()?;
    times.into_iter().max().context("there is no header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_belong_to_one_program() {
        for source in ["bench.cc", "bench_traces.cc", "lockstep.cc", "runner.cc"] {
            let path = Path::new("ffi-tests/tensorflow").join(source);
            assert_eq!(Program::Bench.owns(&path), source.starts_with("bench"));
            assert_ne!(Program::Bench.owns(&path), Program::Lockstep.owns(&path));
        }
    }
}
