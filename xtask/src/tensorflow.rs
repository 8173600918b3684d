//! TensorFlow's own allocator, from its wheel on PyPI, and the C++ programs that hold libbfc against it.
//!
//! The wheel is large. It is kept in the user's cache, where all checkouts share it, and made anew if it
//! is absent, half there, or of another version.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::files;
use crate::tools;
use crate::workspace::Workspace;

/// The version that golden.tsv was recorded with and the design notes describe.
pub const VERSION: &str = "2.21.0";

/// The installed wheel: headers and one library.
pub struct TensorFlow {
    /// The package's folder in the virtual environment.
    folder: PathBuf,
}

impl TensorFlow {
    /// The one in the cache, which is filled if need be.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        let venv = tools::cache()?.join("libbfc/tensorflow");
        if let Some(found) = Self::inside(&venv)? {
            return Ok(found);
        }
        println!("  fetching TensorFlow {VERSION} from PyPI into {} (about 250 MB, once)", venv.display());
        let package = format!("tensorflow-cpu=={VERSION}");
        tools::virtual_environment(workspace, &venv, &["--no-deps", &package])?;
        Self::inside(&venv)?.with_context(|| {
            format!("{package} was installed into {} and is not as expected there", venv.display())
        })
    }

    /// What a virtual environment holds, if it is whole and of the right version.
    fn inside(venv: &Path) -> Result<Option<Self>> {
        for python in files::entries(&venv.join("lib"))? {
            let packages = python.join("site-packages");
            let folder = packages.join("tensorflow");
            // pip writes RECORD last: an installation that was cut off has none.
            let record = format!("tensorflow_cpu-{VERSION}.dist-info/RECORD");
            let parts = [
                packages.join(record),
                folder.join("libtensorflow_framework.so.2"),
                folder.join("include/xla/tsl/framework/bfc_allocator.h"),
            ];
            if parts.iter().all(|part| part.exists()) {
                return Ok(Some(Self { folder }));
            }
        }
        Ok(None)
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

    #[test]
    fn another_version_and_a_cut_off_installation_are_not_taken() {
        let venv = std::env::temp_dir().join(format!("xtask-venv-{}", std::process::id()));
        let packages = venv.join("lib/python3.11/site-packages");
        let taken = || TensorFlow::inside(&venv).expect("readable").is_some();
        assert!(!taken());
        let library = "tensorflow/libtensorflow_framework.so.2";
        files::write(&packages.join(library), "").expect("writable");
        let header = "tensorflow/include/xla/tsl/framework/bfc_allocator.h";
        files::write(&packages.join(header), "").expect("writable");
        files::write(&packages.join("tensorflow_cpu-2.20.0.dist-info/RECORD"), "").expect("writable");
        assert!(!taken());
        let record = format!("tensorflow_cpu-{VERSION}.dist-info/RECORD");
        files::write(&packages.join(record), "").expect("writable");
        assert!(taken());
        files::remove_all(&venv).expect("removed");
    }
}
