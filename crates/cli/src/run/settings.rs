//! The environment of the program: the settings of the options, and LD_PRELOAD.

use std::env;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{self, Path};

use anyhow::{Context, Result, bail};

use super::args::{Backend, Free, Growth, Run, Stacks};
use crate::environment as names;
use crate::library::SONAME;

/// The loader's variable.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The variables to set, or with None to remove. All others stay unchanged.
pub struct Settings(Vec<(&'static str, Option<OsString>)>);

impl Settings {
    /// What the options set.
    pub fn of(args: &Run) -> Result<Self> {
        let mut settings = Self(Vec::new());
        let on = |is_on: bool| is_on.then(|| "1".to_owned());
        let number = |bytes: Option<u64>| bytes.map(|bytes| bytes.to_string());
        let free = args.free.map(|free| match free {
            Free::Wait => "wait".to_owned(),
            Free::Sync => "sync".to_owned(),
        });
        let backend = args.backend.map(|backend| match backend {
            Backend::Cuda => "cuda".to_owned(),
            Backend::CudaVmm => "cuda_vmm".to_owned(),
        });
        let stacks = args.stacks.map(|stacks| match stacks {
            Stacks::Native => "native".to_owned(),
            Stacks::Python => "python".to_owned(),
            Stacks::Both => "both".to_owned(),
        });
        for (name, value) in [
            (names::BACKEND, backend),
            (names::HISTORY_STACKS, stacks),
            (names::LIMIT, number(args.limit)),
            (names::MEMORY_FRACTION, args.fraction.map(|fraction| fraction.to_string())),
            (names::TRIM_AFTER, args.trim_after.map(|seconds| seconds.to_string())),
            (names::PUBLISH, on(args.publish)),
            (names::PRELOAD_FREE, free),
            (names::PRELOAD_ASYNC, on(args.stream_ordered)),
            (names::PRELOAD_PINNED, on(args.pinned)),
            (names::PRELOAD_IPC, on(args.ipc)),
            (names::PRELOAD_MIN, number(args.min)),
            (names::PRELOAD_MAX, number(args.max)),
        ] {
            if let Some(value) = value {
                settings.set(name, value);
            }
        }
        if args.fraction.is_some() {
            // A limit precedes a fraction, and an option must precede the environment. (Both options are refused.)
            settings.0.push((names::LIMIT, None));
        }
        if let Some(growth) = args.growth {
            settings.set_growth(growth);
        }
        if args.report.as_deref().is_some_and(|file| file.as_os_str() == "-") || args.history.is_some() {
            // The number is known once the process exists.
            settings.set(names::PRELOAD_PROGRAM, "");
        }
        // The program, or a child of it, may be in another folder when it opens the file.
        if let Some(file) = &args.report {
            let file = if file.as_os_str() == "-" { file.clone() } else { absolute(file)? };
            settings.set(names::PRELOAD_REPORT, file);
        }
        if let Some(file) = &args.trace {
            settings.set(names::PRELOAD_TRACE, absolute(file)?);
        }
        if let Some(file) = &args.history {
            let file =
                path::absolute(file).with_context(|| format!("cannot tell where {} is", file.display()))?;
            settings.set(names::HISTORY_FILE, file);
        }
        Ok(settings)
    }

    /// The interposer's pools have the flag for growth, so only the variable that overrides flags turns it off.
    fn set_growth(&mut self, growth: Growth) {
        let policy = match growth {
            Growth::Off => return self.set(names::FORCE_ALLOW_GROWTH, "0"),
            Growth::Need => "need",
            Growth::TensorFlow => "tensorflow",
        };
        self.set(names::GROWTH, policy);
        // It would precede the option.
        self.0.push((names::FORCE_ALLOW_GROWTH, None));
    }

    /// Sets a variable.
    pub fn forget(&mut self, name: &str) {
        self.0.retain(|(other, _)| *other != name);
    }

    pub fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, Some(value.into())));
    }

    /// Makes the loader preload `library`, before the libraries that the caller preloads already.
    pub fn preload(&mut self, library: &Path) -> Result<()> {
        let value = in_front(library, env::var_os(LD_PRELOAD).as_deref())?;
        self.set(LD_PRELOAD, value);
        Ok(())
    }

    /// All of them.
    pub fn changes(&self) -> &[(&'static str, Option<OsString>)] {
        &self.0
    }
}

/// LD_PRELOAD's value with `library` first.
fn in_front(library: &Path, old: Option<&OsStr>) -> Result<OsString> {
    let bytes = library.as_os_str().as_bytes();
    // Quoting is impossible: spaces and colons separate names, and the loader replaces $ORIGIN, $LIB and $PLATFORM.
    if bytes.iter().any(|byte| b" :$".contains(byte)) {
        bail!(
            "{} cannot be preloaded: LD_PRELOAD has no way to write a path with a space, a colon or a dollar sign; \
             copy it and {SONAME} into another folder, or make a symbolic link to theirs that has a plain \
             name, and name it with --preload",
            library.display()
        );
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        value.push(":");
        value.push(old);
    }
    Ok(value)
}

/// The absolute path. The interposer replaces `%` in it, but the folder's name has to stay.
fn absolute(file: &Path) -> Result<path::PathBuf> {
    let joined = match file.is_absolute() {
        true => Ok(file.to_owned()),
        false => env::current_dir().map(|folder| doubled(&folder).join(file)),
    };
    joined.and_then(path::absolute).with_context(|| format!("cannot tell where {} is", file.display()))
}

/// With `%%` for each `%`.
fn doubled(folder: &Path) -> path::PathBuf {
    let bytes = folder.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|&byte| iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }));
    OsString::from_vec(doubled.collect()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interposer_is_first_and_the_others_stay() {
        let library = Path::new("/opt/lib/libbfc_preload.so");
        let value = |old: Option<&str>| in_front(library, old.map(OsStr::new)).expect("a plain path");
        assert_eq!(value(None), library);
        assert_eq!(value(Some("")), library);
        assert_eq!(value(Some("a.so b.so")), "/opt/lib/libbfc_preload.so:a.so b.so");
    }

    #[test]
    fn a_folder_with_a_percent_sign_stays() {
        assert_eq!(doubled(Path::new("/a%p/50%%/b")), Path::new("/a%%p/50%%%%/b"));
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        for path in ["/my lib/libbfc_preload.so", "/a:b/libbfc_preload.so", "/$LIB/libbfc_preload.so"] {
            let error = in_front(Path::new(path), None).expect_err(path).to_string();
            assert!(error.contains(path) && error.contains("--preload"), "{error}");
        }
    }
}
