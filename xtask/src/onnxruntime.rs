//! ONNX Runtime's wheel from PyPI, its C headers, and the programs of ffi-tests/onnxruntime.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::python::{Environment, Packages, plainly, with_bfc};
use crate::tools;
use crate::workspace::Workspace;

const PACKAGES: Packages = Packages {
    name: "onnxruntime",
    about: "ONNX Runtime 1.31.1 and onnx (about 50 MB, 0.2 GB on the disk)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "onnxruntime==1.31.1",
        "onnx==1.23.2",
        "numpy==2.4.6",
        "flatbuffers==25.12.19",
        "ml-dtypes==0.6.0",
        "packaging==26.3",
        "protobuf==7.36.2",
        "typing-extensions==4.16.0",
    ],
};

const FLAGS: [&str; 12] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Wshadow",
    "-Werror",
    "-pthread",
    // heap.cpp stands in front of the C library's functions, also for what is loaded later.
    "-rdynamic",
    "-D_GNU_SOURCE",
];

/// The installed wheel, and headers for it.
pub struct OnnxRuntime {
    environment: Environment,
    /// Where the headers of each version are, or why they are not.
    pub headers: Vec<Headers>,
    /// The model that all tests run.
    pub model: PathBuf,
}

/// The C headers of one version of the API.
pub struct Headers {
    /// The API's number, as `ORT_API_VERSION` has it.
    pub version: String,
    /// The folder, or why there is none.
    pub folder: Result<PathBuf, String>,
}

impl OnnxRuntime {
    /// The one in the cache, which is filled if need be; the model is made.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        let environment = PACKAGES.find(workspace)?;
        let cache = tools::cache()?.join("libbfc/onnxruntime-headers");
        let mut command = environment.command(workspace);
        command.arg(workspace.path("ffi-tests/onnxruntime/headers.py")).arg(cache);
        let headers = headers(&workspace.run_well("onnxruntime headers", command)?)?;
        let model = workspace.target.join("onnxruntime/model.onnx");
        files::write(&model, "")?;
        let mut command = environment.command(workspace);
        command.arg(workspace.path("ffi-tests/onnxruntime/model.py")).arg(&model);
        workspace.run_well("onnxruntime model", command)?;
        Ok(Self { environment, headers, model })
    }

    /// The library inside the wheel. (Python's module has another one in itself.)
    pub fn library(&self) -> Result<PathBuf> {
        let folder = self.environment.packages().join("onnxruntime/capi");
        let mut found = files::entries(&folder)?.into_iter();
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libonnxruntime.so")
        };
        found.find(is_it).with_context(|| format!("{} has no libonnxruntime.so", folder.display()))
    }

    /// Python with the package `bfc` of the checkout, over the installed library in `prefix`.
    pub fn python(&self, workspace: &Workspace, prefix: &Path) -> Command {
        let mut command = self.environment.command(workspace);
        with_bfc(&mut command, workspace, prefix);
        command
    }
}

/// Reads `29: FOLDER` and `21! REASON`.
fn headers(said: &str) -> Result<Vec<Headers>> {
    let read = |line: &str| {
        let (version, rest) = line.split_at(line.find([':', '!'])?);
        let folder = match rest.split_at_checked(2)? {
            (": ", folder) => Ok(folder.into()),
            ("! ", why) => Err(why.to_owned()),
            _ => return None,
        };
        Some(Headers { version: version.to_owned(), folder })
    };
    said.lines().map(|line| read(line).with_context(|| format!("headers.py says {line:?}"))).collect()
}

/// Compiles a program of ffi-tests/onnxruntime against the installed libbfc in `prefix`, and with headers of ONNX
/// Runtime's if it needs them.
pub fn compile(
    workspace: &Workspace,
    prefix: &Path,
    name: &str,
    sources: &[&Path],
    headers: Option<&Path>,
) -> Result<PathBuf> {
    let executable = workspace.target.join("onnxruntime").join(name);
    // What an older build put there would stay. The folder has to be there, too.
    files::write(&executable, "")?;
    files::remove(&executable)?;
    let mut command = workspace.command(tools::cxx_compiler());
    command.args(FLAGS).arg("-I").arg(prefix.join("include"));
    if let Some(headers) = headers {
        // A system folder: their warnings are not ours.
        command.arg("-isystem").arg(headers);
    }
    command.args(sources).arg("-o").arg(&executable);
    let lib = prefix.join("lib").display().to_string();
    command.args([&format!("-L{lib}"), "-lbfc", &format!("-Wl,-rpath,{lib}"), "-ldl"]);
    workspace.run_well(&format!("compile {name}"), command)?;
    Ok(executable)
}

/// A program that [`compile`] gave, without what the user has set.
pub fn command(workspace: &Workspace, program: &Path) -> Command {
    let mut command = workspace.command(program);
    plainly(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_headers_py_says_is_read() {
        let all = headers("29: /a/b: c!\n21! <urlopen error: no network>\n").expect("two lines");
        let said: Vec<_> = all.iter().map(|one| (one.version.as_str(), one.folder.clone())).collect();
        assert_eq!(said[0], ("29", Ok("/a/b: c!".into())));
        assert_eq!(said[1], ("21", Err("<urlopen error: no network>".to_owned())));
        assert!(headers("Traceback").is_err());
    }
}
