//! What a suite is given: the workspace, what was built already, and a book to write results in.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::install;
use crate::progress::Progress;
use crate::simcuda;
pub use crate::tally::Count;
use crate::tally::{self, Skip, Tally};
use crate::tools::Unavailable;
use crate::uv;
use crate::workspace::{Ended, Workspace, plainly, without};

/// What a suite runs in.
pub struct Context {
    /// The checkout.
    pub workspace: Workspace,
    /// The user's arguments for the tools that run tests.
    pub arguments: Vec<String>,
    /// The suite that runs.
    pub suite: &'static str,
    tally: Tally,
    /// By profile, so that suites do not build what another has built.
    debug: Option<Rc<Built>>,
    release: Option<Rc<Built>>,
    prefix: Option<PathBuf>,
}

impl Context {
    /// Nothing has run yet.
    pub fn new(workspace: Workspace, arguments: Vec<String>) -> Self {
        Self {
            workspace,
            arguments,
            suite: "",
            tally: Tally::default(),
            debug: None,
            release: None,
            prefix: None,
        }
    }

    /// The results since the last time.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// The library, the interposer and the command, built at the first time of asking.
    pub fn built(&mut self, profile: Profile) -> Result<Rc<Built>> {
        let slot = match profile {
            Profile::Debug => &mut self.debug,
            Profile::Release => &mut self.release,
        };
        if let Some(built) = slot {
            return Ok(Rc::clone(built));
        }
        println!("   building libbfc.so ({})", profile.name());
        let built = Rc::new(cargo::build(&self.workspace, profile)?);
        Ok(Rc::clone(slot.insert(built)))
    }

    /// A folder with the library installed in it, from the release build.
    pub fn prefix(&mut self) -> Result<PathBuf> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix.clone());
        }
        let prefix = self.workspace.target.join("install-test/prefix");
        let built = self.built(Profile::Release)?;
        install::install_built(&self.workspace, &prefix, Profile::Release, &built)?;
        Ok(self.prefix.insert(prefix).clone())
    }

    /// A command without the variables that steer the library: a test is about the checkout and not
    /// about what the user has set.
    pub fn plain(&self, mut command: Command) -> Command {
        without(&mut command, &["BFC_"]);
        command
    }

    /// A test that is a program of its own, or has many of them in it.
    pub fn program(&mut self, name: &str, command: Command, count: Count) -> Result<Ended> {
        let mut progress = Progress::begin(name, self.workspace.verbose);
        let start = Instant::now();
        let mut tally = Tally::default();
        let ended = self.workspace.run_watched(name, command, |line| {
            let compiling = Some(line.trim()).filter(|line| line.starts_with("Compiling "));
            if let Some(last) = tally.line(count, line.trim_end()).or(compiling) {
                progress.line(&tally, last);
            }
        })?;
        told(progress, name, &ended, start.elapsed(), count, &mut tally);
        self.tally.add(tally);
        Ok(ended)
    }

    /// The tests of a folder of ffi-tests, in its virtual environment in the user's cache. What they need of the checkout
    /// is built before, and named to them; see ffi-tests/conftest.py.
    pub fn pytest(&mut self, suite: &str) -> Result<()> {
        self.pytest_of(suite, &[])
    }

    /// The same of tests that are told of more.
    pub fn pytest_of(&mut self, suite: &str, more: &[(&str, PathBuf)]) -> Result<()> {
        let simulation = simcuda::build(&self.workspace)?;
        let variables = [
            ("LIBBFC_TESTS_SIMULATION", simulation.clone()),
            ("LD_LIBRARY_PATH", simulation),
            ("SIMCUDA_DEVICES", "2".into()),
        ];
        self.pytest_installed(suite, &[&variables, more].concat())
    }

    /// The same of tests that need the installed library, and with no simulation but what the variables say.
    pub fn pytest_installed(&mut self, suite: &str, variables: &[(&str, PathBuf)]) -> Result<()> {
        let prefix = self.prefix()?;
        let scratch = self.workspace.target.join("tests");
        let installed = [("LIBBFC_TESTS_PREFIX", prefix), ("LIBBFC_TESTS_SCRATCH", scratch)];
        self.pytest_with(suite, &[&installed, variables].concat())
    }

    /// The same of tests that are given no more than these variables.
    pub fn pytest_with(&mut self, suite: &str, variables: &[(&str, PathBuf)]) -> Result<()> {
        let folder = self.workspace.path("ffi-tests").join(suite);
        let found = uv::environment(&self.workspace, &folder);
        let Some(python) = self.or_skip("all of it", found)? else { return Ok(()) };
        let mut command = self.workspace.command(&python);
        plainly(&mut command);
        command.env(uv::CACHE, uv::cache()?);
        // What the packages brought is found by its name: CMake, Ninja.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bin = python.parent().map(PathBuf::from);
        command.env("PATH", std::env::join_paths(bin.into_iter().chain(std::env::split_paths(&path)))?);
        // A folder in this one may have another version of the same packages.
        for inner in files::entries(&folder)?.iter().filter(|inner| inner.join("requirements.txt").exists()) {
            let Some(python) = self.or_skip("all of it", uv::environment(&self.workspace, inner))? else {
                return Ok(());
            };
            let name =
                inner.file_name().unwrap_or_default().to_string_lossy().to_uppercase().replace('-', "_");
            command
                .env(format!("LIBBFC_TESTS_ENV_{name}"), python.ancestors().nth(2).context("it is in bin")?);
        }
        let options = "-m pytest -n 2 --dist loadgroup -v -rfEs --color=no --durations=10";
        command.args(options.split(' '));
        command.arg(folder).args(&self.arguments).envs(variables.iter().map(|(name, value)| (name, value)));
        self.program(&format!("pytest {suite}"), command, Count::Pytest).map(drop)
    }

    /// A test that is a piece of work which may go wrong.
    pub fn check(&mut self, name: &str, work: impl FnOnce(&Workspace) -> Result<()>) {
        let progress = Progress::begin(name, self.workspace.verbose);
        let start = Instant::now();
        match work(&self.workspace) {
            Ok(()) => {
                let seconds = start.elapsed().as_secs_f64();
                // Most are a look at what a program has said.
                let took = if seconds < 1.0 { String::new() } else { format!(" ({seconds:.1} s)") };
                progress.end(true, &format!("ok{took}"));
                self.tally.seconds.push((name.to_owned(), seconds));
                self.tally.passed += 1;
            }
            Err(error) => {
                progress.end(false, "FAILED");
                indent(&format!("{error:#}"));
                self.tally.failed.push(name.to_owned());
            }
        }
    }

    /// A test that is a gate: it passes if nothing is wrong.
    pub fn gate(&mut self, name: &str, wrong: &[String]) {
        self.check(name, |_| match wrong {
            [] => Ok(()),
            wrong => bail!("{}", wrong.join("\n")),
        });
    }

    /// What was found; where this machine cannot have it the account says so, and the tests that need it do not run.
    pub fn or_skip<T>(&mut self, tests: &str, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is::<Unavailable>() => {
                let words = format!("{error:#}");
                self.skip(tests, words.lines().next().unwrap_or_default());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Something went wrong outside of any test.
    pub fn fail(&mut self, name: &str, why: &str) {
        println!("   {name}");
        indent(why);
        let line = why.lines().next().unwrap_or_default();
        self.tally.failed.push(format!("{name}: {line}"));
    }

    /// Something cannot run here; the account at the end says why.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("   {name} ... skipped: {why}");
        self.tally.skipped.push(Skip::new(name, why));
    }
}

/// Says how a program has ended, and completes the count of its tests.
fn told(progress: Progress, name: &str, ended: &Ended, took: Duration, count: Count, tally: &mut Tally) {
    let found = tally.passed + tally.failed.len() + tally.skipped.len();
    let seconds = took.as_secs_f64();
    let Ended { status, log, .. } = ended;
    let log = log.display();
    if !ended.success {
        // It may have failed before, or besides, a test of its own: a compiler's error, a crash.
        if tally.failed.is_empty() {
            tally.failed.push(name.to_owned());
        }
        progress.end(false, &format!("FAILED ({seconds:.1} s): {status}; all of it: {log}"));
        indent(end_of(&tally::troubles(count, &ended.text), 120));
    } else if matches!(count, Count::One) {
        tally.passed = 1;
        tally.seconds.push((name.to_owned(), seconds));
        progress.end(true, &format!("ok ({seconds:.1} s)"));
    } else if found == 0 {
        tally.failed.push(format!("{name}: it ran no test"));
        progress.end(false, &format!("FAILED: it ran no test; all it said: {log}"));
    } else {
        let skipped = match tally.skipped.len() {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        progress.end(true, &format!("{} passed{skipped} ({seconds:.1} s)", tally.passed));
    }
}

/// The last lines of a text.
fn end_of(text: &str, lines: usize) -> &str {
    let mut starts = text.trim_end().rmatch_indices('\n');
    let start = starts.nth(lines - 1).map_or(0, |(at, _)| at + 1);
    &text[start..]
}

fn indent(text: &str) {
    for line in text.lines() {
        println!("     | {line}");
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, Result, anyhow};

    use super::{Context, end_of};
    use crate::tools::Unavailable;
    use crate::workspace::Workspace;

    #[test]
    fn only_what_cannot_be_had_is_skipped() {
        let mut context = Context::new(Workspace::find().expect("a checkout"), Vec::new());
        assert_eq!(context.or_skip("a", Ok(1)).expect("found"), Some(1));
        let absent: Result<u8> = Err(Unavailable("no network".to_owned()).into());
        assert_eq!(context.or_skip("b", absent.context("on the way")).expect("skipped"), None);
        let fault: Result<u8> = Err(anyhow!("it does not compile"));
        assert!(context.or_skip("c", fault).is_err());
        assert_eq!(context.take_tally().skipped.len(), 1);
    }

    #[test]
    fn the_end_of_a_text_is_its_last_lines() {
        assert_eq!(end_of("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(end_of("a\nb", 5), "a\nb");
        assert_eq!(end_of("", 1), "");
    }
}
