//! Virtual environments by `uv`, which keeps what it fetches in the user's cache: one for each requirements.txt.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::tools::{self, Unavailable};
use crate::workspace::{Workspace, without};

/// From PyPI, in a virtual environment of its own.
const UV: &str = "uv==0.13.9";

/// Passes [`cache`] to the tests, whose own XDG_CACHE_HOME differs, and to the commands that they run.
pub const CACHE: &str = "LIBBFC_TESTS_CACHE";

/// The question for a user whose packages could not be fetched.
const PYPI: &str = "is PyPI reachable, and Python new enough?";

/// The file in an environment that marks it as complete.
const COMPLETE: &str = "complete";

/// The folder in the user's cache with all that is fetched for tests, which all checkouts share.
pub fn cache() -> Result<PathBuf> {
    if let Some(cache) = std::env::var_os(CACHE) {
        return Ok(cache.into());
    }
    // An empty or relative XDG_CACHE_HOME counts as unset, by its specification.
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = named.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    Ok(cache.context("there is no home folder for fetched files: set XDG_CACHE_HOME")?.join("libbfc"))
}

/// The packages in the virtual environment of a folder of tests.
pub fn packages(workspace: &Workspace, folder: &str) -> Result<PathBuf> {
    let python = environment(workspace, &workspace.path(folder))?;
    let lib = python.ancestors().nth(2).context("it is in bin")?.join("lib");
    let mut pythons = files::entries(&lib)?.into_iter().map(|python| python.join("site-packages"));
    pythons.find(|packages| packages.exists()).with_context(|| format!("no packages in {}", lib.display()))
}

/// The interpreter of a virtual environment that holds exactly what the requirements.txt of a folder of tests lists, and
/// that of ffi-tests: both are lock files, and name dependencies too. Existing packages are not fetched again, and an
/// interrupted installation is completed.
pub fn environment(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let Environment { folder, lists, about } = Environment::of(workspace, folder)?;
    let python = folder.join("bin/python");
    if is_complete(&folder) {
        return Ok(python);
    }
    println!("   fetching into {} (once): {about}", folder.display());
    let mut venv = uv_command(workspace, &["venv", "--allow-existing", "--python", "python3"])?;
    venv.arg(&folder);
    fetch(workspace, "uv venv", PYPI, venv)?;
    let mut sync = uv_command(workspace, &["pip", "sync", "--python"])?;
    sync.arg(&python).args(&lists);
    fetch(workspace, "uv pip sync", PYPI, sync)?;
    files::write(&folder.join(COMPLETE), "")?;
    Ok(python)
}

/// An interpreter of a version of CPython, if this machine has one.
pub fn python(workspace: &Workspace, version: &str) -> Result<Option<PathBuf>> {
    let found = uv_command(workspace, &["python", "find", version])?.output()?;
    let path = String::from_utf8_lossy(&found.stdout);
    Ok((found.status.success() && !path.trim().is_empty()).then(|| path.trim().into()))
}

/// Unpacks the packages of a list into a folder, as they are for a version of CPython that need not be installed.
pub fn unpack(workspace: &Workspace, list: &Path, python: &str, folder: &Path) -> Result<()> {
    let mut install = uv_command(workspace, &["pip", "install", "--no-deps", "--only-binary=:all:"])?;
    install.args(["--python-platform=x86_64-manylinux_2_28", "--python-version", python, "--target"]);
    install.arg(folder).arg("--requirements").arg(list);
    fetch(workspace, "uv pip install --target", PYPI, install)
}

/// The same interpreter, if it exists already.
pub fn existing(workspace: &Workspace, folder: &Path) -> Result<Option<PathBuf>> {
    let Environment { folder, .. } = Environment::of(workspace, folder)?;
    Ok(is_complete(&folder).then(|| folder.join("bin/python")))
}

/// An environment that may not exist yet.
struct Environment {
    folder: PathBuf,
    lists: Vec<PathBuf>,
    /// Its description and size: the first line of its list.
    about: String,
}

impl Environment {
    fn of(workspace: &Workspace, folder: &Path) -> Result<Self> {
        const LIST: &str = "requirements.txt";
        let (shared, own) = (workspace.path("ffi-tests").join(LIST), folder.join(LIST));
        let lists = if own.exists() { vec![shared, own] } else { vec![shared] };
        let listed = lists.iter().map(|list| read_list(list)).collect::<Result<Vec<_>>>()?;
        let name = folder.file_name().context("it is a folder")?;
        let mut hasher = DefaultHasher::new();
        listed.hash(&mut hasher);
        // Other checkouts may need other versions at the same time.
        let folder = cache()?.join("env").join(format!("{}-{:016x}", name.display(), hasher.finish()));
        let about = listed.last().and_then(|list| list.lines().next()).unwrap_or_default();
        Ok(Self { folder, lists, about: about.trim_start_matches(['#', ' ']).to_owned() })
    }
}

fn is_complete(folder: &Path) -> bool {
    folder.join(COMPLETE).exists() && tools::works(folder.join("bin/python").as_os_str())
}

/// The PATH, beginning with the programs of such an environment.
pub fn path(python: &Path) -> Result<OsString> {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let bin = python.parent().map(PathBuf::from);
    Ok(std::env::join_paths(bin.into_iter().chain(std::env::split_paths(&rest)))?)
}

/// The text of a list, and of the lists that it includes by `-r`.
fn read_list(list: &Path) -> Result<String> {
    let text = files::read(list)?;
    let included = text.lines().filter_map(|line| line.strip_prefix("-r "));
    let included = included.map(|path| read_list(&list.with_file_name(path.trim())));
    let included = included.collect::<Result<String>>()?;
    Ok(text + &included)
}

/// A command of uv with the project's cache.
fn uv_command(workspace: &Workspace, args: &[&str]) -> Result<Command> {
    let mut command = workspace.command(uv(workspace)?);
    without(&mut command, &["UV_"]).env("UV_CACHE_DIR", cache()?.join("uv-cache"));
    // Options of all its commands come first, because the last of the arguments may need a value.
    command.args(["--quiet", "--no-python-downloads"]).args(args);
    Ok(command)
}

/// The program, which is fetched if it is missing.
fn uv(workspace: &Workspace) -> Result<PathBuf> {
    let folder = cache()?.join("uv").join(UV);
    let uv = folder.join("bin/uv");
    if !tools::works(uv.as_os_str()) {
        let mut venv = workspace.command("python3");
        venv.args(["-m", "venv", "--clear"]).arg(&folder);
        // Debian has the module in a separate package.
        fetch(
            workspace,
            "python3 -m venv",
            "is Python new enough, and Debian's python3-venv installed?",
            venv,
        )?;
        let mut pip = workspace.command(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", UV]);
        fetch(workspace, "pip install uv", PYPI, pip)?;
    }
    Ok(uv)
}

/// Runs a command that fetches packages. The question is for a user for whom it fails. Packages in the user's variables
/// would count as installed, and would be missing when a test runs.
fn fetch(workspace: &Workspace, name: &str, question: &str, mut command: Command) -> Result<()> {
    without(&mut command, &["PYTHON", "VIRTUAL_ENV", "CONDA_"]);
    let ended = workspace.run(name, command).with_context(|| Unavailable(format!("{name} failed")))?;
    if ended.success {
        return Ok(());
    }
    Err(Unavailable(format!("{name} failed ({question}): {}", ended.complaint())).into())
}
