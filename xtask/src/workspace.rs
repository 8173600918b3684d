//! The folders of the workspace, and running programs in it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::files;
use crate::progress::Waiting;

/// The library's version, which is that of all packages of the workspace. Cargo.toml is its only source.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The checkout.
pub struct Workspace {
    /// Its root.
    pub root: PathBuf,
    /// Cargo's target folder, wherever the user has put it.
    pub target: PathBuf,
    /// The library's SONAME, with the number `abi` of Cargo.toml.
    pub soname: String,
    /// Whether the output of programs is shown while they run.
    pub verbose: bool,
}

/// A program that has ended.
pub struct Ended {
    /// Whether it ended well.
    pub success: bool,
    /// How it ended, in words.
    pub status: String,
    /// The output on both of its streams, in order.
    pub text: String,
    /// Where that is kept.
    pub log: PathBuf,
}

impl Workspace {
    /// Asks cargo, which knows about CARGO_TARGET_DIR and its own configuration.
    pub fn find() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.parent().context("xtask is in the workspace")?;
        if !root.join("Cargo.toml").exists() {
            bail!(
                "{} is gone: this xtask was built in a checkout that has moved; run it as `cargo xtask`",
                root.display()
            );
        }
        let mut command = Command::new(cargo());
        command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
        let text = capture(command.current_dir(root))?;
        let metadata: Value = serde_json::from_str(&text).context("cargo metadata did not print JSON")?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        let library =
            packages.find(|package| package["name"] == "libbfc").context("there is no package libbfc")?;
        let abi =
            library["metadata"]["abi"].as_u64().context("Cargo.toml has no abi in [package.metadata]")?;
        Ok(Self {
            root: root.to_owned(),
            target: target.into(),
            soname: format!("libbfc.so.{abi}"),
            verbose: false,
        })
    }

    /// A path in the checkout.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.root.join(inside)
    }

    /// A command that runs in the checkout's root.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// The file for the output of a program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.target.join("xtask/logs").join(format!("{}.log", slug(name)))
    }

    /// Runs a program to its end. Its output goes to a log below target/xtask/ and, if requested, to the terminal too.
    /// It has no standard input, because nothing here may wait for an answer.
    pub fn run(&self, name: &str, command: Command) -> Result<Ended> {
        let waiting = Waiting::begin(name, self.verbose);
        self.run_watched(name, command, |line| waiting.line(line))
    }

    /// Like [`Self::run`]. `watch` gets each line.
    pub fn run_watched(
        &self,
        name: &str,
        mut command: Command,
        mut watch: impl FnMut(&str),
    ) -> Result<Ended> {
        let log = self.log(name);
        files::write(&log, "")?;
        let mut file = fs::File::create(&log)?;
        writeln!(file, "$ {command:?}")?;
        let (reader, writer) = std::io::pipe()?;
        command.stdin(Stdio::null());
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| {
            let program = command.get_program().display();
            format!("cannot start {program}: is it installed?")
        })?;
        // The command holds copies of the writing end. While they are open the reader sees no end.
        drop(command);
        let mut text = String::new();
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            file.write_all(&line)?;
            let words = String::from_utf8_lossy(&line);
            if self.verbose {
                print!("    {words}");
            }
            watch(&words);
            text.push_str(&words);
            line.clear();
        }
        let status = child.wait()?;
        writeln!(file, "-- {status}")?;
        Ok(Ended { success: status.success(), status: status.to_string(), text, log })
    }

    /// Like `run`. If the program fails, returns an error with the end of its output.
    pub fn run_well(&self, name: &str, command: Command) -> Result<String> {
        let ended = self.run(name, command)?;
        if !ended.success {
            bail!("{}", ended.complaint());
        }
        Ok(ended.text)
    }
}

impl Ended {
    /// How the program ended and the end of its output, to find the reason.
    pub fn complaint(&self) -> String {
        let Self { status, text, log, .. } = self;
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("{status}; all of it: {}\n{tail}", log.display())
    }
}

/// The cargo that runs this program, else the one on the PATH.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command whose output is for the user, and fails if it fails.
pub fn succeed(mut command: Command) -> Result<()> {
    let what = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {what}"))?;
    ensure!(status.success(), "{what}: {status}; see its output above");
    Ok(())
}

/// The standard output of a program that must succeed. It shares standard error with this program.
pub fn capture(command: &mut Command) -> Result<String> {
    let what = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {what}"))?;
    if !output.status.success() {
        bail!("{what}: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{what} did not print text"))
}

/// A command without the user's variables whose names begin with these prefixes, because its result must not depend on
/// the user's settings.
pub fn without<'a>(command: &'a mut Command, prefixes: &[&str]) -> &'a mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Without the variables that control the library, a framework, Python, a sanitizer or the simulation, because a test
/// must not depend on the user's settings.
pub fn plainly(command: &mut Command) {
    const OF_THE_USER: [&str; 15] = [
        "ASAN_", "LSAN_", "UBSAN_", "BFC_", "PYTORCH_", "TORCH_", "CUDA_", "SIMCUDA_", "PYTHON", "TF_",
        "KERAS_", "HF_", "CUPY_", "NUMBA_", "LD_",
    ];
    // Otherwise Python would write compiled files into the checkout.
    without(command, &OF_THE_USER).env("PYTHONDONTWRITEBYTECODE", "1");
}

/// A file name made of words.
fn slug(words: &str) -> String {
    let parts = words.split(|letter: char| !letter.is_ascii_alphanumeric() && !".+".contains(letter));
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_user_are_taken_away_by_the_beginning_of_their_names() {
        // cargo, which runs the test itself, sets these.
        let mut command = Command::new("env");
        let names: Vec<_> = without(&mut command, &["CARGO_PKG_"]).get_envs().collect();
        assert!(
            names.contains(&("CARGO_PKG_NAME".as_ref(), None)) && !names.contains(&("CARGO".as_ref(), None))
        );
    }

    #[test]
    fn what_a_program_says_is_kept_and_a_bad_end_is_an_error() {
        let workspace = Workspace::find().expect("a checkout");
        let script = |script: &str| {
            let mut command = workspace.command("sh");
            command.args(["-c", script]);
            command
        };
        let said = workspace.run_well("test of xtask 1", script("echo out; echo err >&2"));
        assert_eq!(said.expect("it ends well"), "out\nerr\n");
        let error = workspace.run_well("test of xtask 2", script("echo why; exit 3"));
        let error = error.expect_err("it ends badly").to_string();
        assert!(error.contains("exit status: 3") && error.contains("why"), "{error}");
    }
}
