//! Finding and opening libbfc.so, and the messages of its errors.

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use anyhow::{Result, bail};
use bfc_sys::{bfc_options_t, bfc_status_t};
use libloading::os::unix;

use crate::ffi::Api;

/// The environment variable that names the library.
pub const LIBRARY_VARIABLE: &str = "BFC_LIBRARY";

/// The advice if there is no library, for a command that was installed and for one that was built.
const ADVICE: &str = "install libbfc, or build it in its source tree (cargo build --release), and name it with \
                      --library PATH or BFC_LIBRARY=PATH";

/// The SONAME first: it is what an installed client gets. A cargo build has only the second name.
const NAMES: [&str; 2] = [SONAME, "libbfc.so"];

/// The name under which the interposer asks for the library.
pub const SONAME: &str = match bfc_sys::BFC_SONAME.to_str() {
    Ok(name) => name,
    Err(_) => panic!("it is ASCII"),
};

/// The folders of an installed library, relative to the folder of the command.
const FOLDERS: [&str; 4] = ["", "../lib", "../lib64", MULTIARCH];

/// Debian's folder.
const MULTIARCH: &str =
    if cfg!(target_arch = "aarch64") { "../lib/aarch64-linux-gnu" } else { "../lib/x86_64-linux-gnu" };

/// The folders of Python's packages, relative to the same: in a virtual environment, below ~/.local and on most
/// systems; on Debian; and with `pip install --target`.
const PYTHON_FOLDERS: [&str; 3] = ["../lib", "../lib64", "../local/lib"];
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// The folder of the library in Python's package bfc.
const IN_PACKAGE: &str = "bfc/_prefix/lib";

/// The folders in which libbfc.so, or libbfc_preload.so, may be, relative to the folder of the command.
pub fn folders(of_command: &Path) -> Vec<PathBuf> {
    let fixed = FOLDERS.iter().map(|name| of_command.join(name));
    let in_python = PYTHON_FOLDERS.iter().flat_map(|name| of_python(&of_command.join(name)));
    let targeted = of_command.join("..").join(IN_PACKAGE);
    fixed.chain(in_python).chain([targeted]).collect()
}

/// Those of the package in a folder with the packages of one or several versions of Python, the newest version first.
fn of_python(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pythons: Vec<(Vec<u32>, String)> = names
        .filter_map(|name| {
            let version = name.strip_prefix("python")?;
            let numbers = version.split('.').map(str::parse);
            Some((numbers.collect::<Result<_, _>>().ok()?, name))
        })
        .collect();
    pythons.sort();
    let newest_first = pythons.iter().rev().map(|(_, name)| folder.join(name));
    let packages = newest_first.flat_map(|python| PACKAGES.map(|name| python.join(name).join(IN_PACKAGE)));
    // A missing folder is not listed among the places that were tried.
    packages.filter(|folder| folder.is_dir()).collect()
}

/// An opened libbfc.
pub struct Library {
    /// Its functions.
    pub api: Api,
    /// The file that was opened, if the system reports it.
    pub path: PathBuf,
}

impl Library {
    /// Opens the library: the one `given`, else `BFC_LIBRARY`'s, else the first that is found.
    pub fn find(given: Option<&Path>) -> Result<Self> {
        if let Some(path) = given {
            return Self::named(path, "--library");
        }
        if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
            return Self::named(Path::new(&path), LIBRARY_VARIABLE);
        }
        let mut tried = Vec::new();
        for path in beside(&env::current_exe().unwrap_or_default(), &NAMES) {
            // A library that exists and cannot be opened is an error, never a reason to take another.
            if path.exists() {
                return Self::open(path.as_os_str())
                    .or_else(|why| bail!("cannot open {}: {why}", path.display()));
            }
            tried.push(path.display().to_string());
        }
        for name in NAMES {
            match Self::open(OsStr::new(name)) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(format!("the loader's search path: {why}")),
            }
        }
        bail!("libbfc.so was not found; tried\n  {}\n{ADVICE}", tried.join("\n  "))
    }

    /// Opens a library that was named. There is no fallback: measuring another library than the requested one would be
    /// worse than measuring none.
    fn named(path: &Path, source: &str) -> Result<Self> {
        let file = if path.is_dir() {
            let inside = NAMES.map(|name| path.join(name));
            let Some(file) = inside.into_iter().find(|file| file.exists()) else {
                bail!("{source} names the folder {}, which contains no libbfc.so", path.display());
            };
            file
        } else {
            path.to_owned()
        };
        Self::open(&searched_as_file(&file))
            .or_else(|why| bail!("cannot open {} (from {source}): {why}\n{ADVICE}", file.display()))
    }

    /// Opens the library in a folder, for purposes that do not justify an error.
    pub fn in_folder(folder: &Path) -> Option<Self> {
        Self::open(folder.join(SONAME).as_os_str()).ok()
    }

    fn open(name: &OsStr) -> Result<Self, String> {
        // RTLD_NOW: a library that cannot be linked is refused here, and not in the middle of a run.
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL;
        // SAFETY: libbfc's initialisers do nothing beyond registering themselves; opening a file that
        // the user named is what the command is for.
        let opened = unsafe { unix::Library::open(Some(name), flags) };
        let library = libloading::Library::from(opened.map_err(|error| in_words(&error))?);
        // SAFETY: a library that exports every name of the contract is taken to be libbfc; it is never
        // closed, see below.
        let resolved = unsafe { Api::resolve(&library) };
        let api = resolved.map_err(|error| {
            format!("this is not libbfc, or it is older than this command ({})", in_words(&error))
        })?;
        // Never closed: the library may hold thread-local buffers and fork or exit handlers, whose code
        // has to stay mapped until the process ends.
        std::mem::forget(library);
        let path = mapped_file(api.bfc_version as usize).unwrap_or_else(|| PathBuf::from(name));
        Ok(Self { api, path })
    }

    /// The library's version.
    pub fn version(&self) -> String {
        // SAFETY: takes nothing, and gives static text.
        let text = unsafe { (self.api.bfc_version)() };
        // SAFETY: not NULL and NUL-terminated by the contract, and static in a library that stays open.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The settings that bfc_create would use for some options, or for none, as JSON.
    pub fn resolved_options(
        &self,
        ordinal: i32,
        options: Option<&bfc_options_t>,
    ) -> Result<String, CallError> {
        let options = options.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: NULL or a struct that says its size, whose pointers the caller has made valid; `text` passes a buffer
        // and an out-pointer that are valid for writing.
        self.text("bfc_resolve_options", |data, capacity, length| unsafe {
            (self.api.bfc_resolve_options)(ordinal, options, data, capacity, length)
        })
    }

    /// Calls a function that writes text: once for the length, then for the text. The length may grow in
    /// between while other threads allocate, so it asks again until all of it fits.
    pub fn text(
        &self,
        call: &'static str,
        write: impl Fn(*mut c_char, usize, *mut usize) -> bfc_status_t,
    ) -> Result<String, CallError> {
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let mut length = 0;
            // NULL only with capacity 0.
            let data = if buffer.is_empty() { ptr::null_mut() } else { buffer.as_mut_ptr().cast() };
            checked(self, call, write(data, buffer.len(), &raw mut length))?;
            if length < buffer.len() {
                buffer.truncate(length);
                return Ok(String::from_utf8_lossy(&buffer).into_owned());
            }
            buffer = vec![0; length + 1];
        }
    }

    /// The failure `status` of the function `call`, with the library's message. Must be called immediately and on the
    /// thread that failed, because `bfc_last_error` returns the thread's last failure.
    pub fn error(&self, call: &'static str, status: bfc_status_t) -> CallError {
        let mut buffer = vec![0_u8; 4096];
        // SAFETY: the buffer is writable for the length given.
        unsafe { (self.api.bfc_last_error)(buffer.as_mut_ptr().cast(), buffer.len()) };
        let detail = CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned());
        // SAFETY: takes any integer, and gives static text.
        let name = unsafe { (self.api.bfc_status_string)(status) };
        // SAFETY: never NULL by the contract, NUL-terminated, and static in a library that stays open.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        CallError { call, status, name, detail: detail.unwrap_or_default() }
    }
}

/// A call into the library that failed.
#[derive(Debug)]
pub struct CallError {
    /// The function.
    pub call: &'static str,
    /// What it returned.
    pub status: bfc_status_t,
    name: String,
    detail: String,
}

impl CallError {
    /// What happened, by the library's message. The name of the status says the same in general, so it is used only if
    /// there is no message.
    pub fn words(&self) -> &str {
        let named = self.detail.strip_prefix(self.call).and_then(|rest| rest.strip_prefix(": "));
        match named.unwrap_or(&self.detail) {
            "" => &self.name,
            words => words,
        }
    }

    /// The message without the advice to programs that may follow it.
    pub fn reason(&self) -> &str {
        self.words().split(';').next().unwrap_or_default()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (status {})", self.call, self.words(), self.status)
    }
}

impl std::error::Error for CallError {}

/// Turns a status into a result, with the thread's last error text if it is a failure.
pub fn checked(library: &Library, call: &'static str, status: bfc_status_t) -> Result<(), CallError> {
    if status == bfc_sys::BFC_OK { Ok(()) } else { Err(library.error(call, status)) }
}

/// The files with these names in the places of a library, relative to the command's own file.
pub fn beside(executable: &Path, names: &[&str]) -> Vec<PathBuf> {
    let Some(folder) = executable.parent() else {
        return Vec::new();
    };
    let folders = folders(folder).into_iter();
    folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).collect()
}

/// `dlopen` searches the system's folders for a name without a slash, but a named path is a file.
fn searched_as_file(path: &Path) -> OsString {
    let plain = path.components().count() == 1 && path.is_relative();
    if plain { Path::new(".").join(path).into_os_string() } else { path.as_os_str().to_owned() }
}

/// libloading keeps the loader's message in the source of its error.
fn in_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The file whose mapping contains `address`. For a library that the loader found, nothing else identifies it.
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let inside = (number(start)?..number(end)?).contains(&address);
        // Permissions, offset, device and inode come before the path.
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]))?;
        inside.then_some(path)
    })
}

/// A name in the form of the C ABI, which cannot contain a NUL.
pub fn c_name(name: &str) -> CString {
    CString::new(name.replace('\0', "?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_beside_the_command_and_in_lib() {
        let paths = beside(Path::new("/opt/bin/bfc"), &NAMES);
        assert_eq!(paths[0], Path::new("/opt/bin/libbfc.so.0"));
        assert_eq!(paths[1], Path::new("/opt/bin/libbfc.so"));
        assert_eq!(paths[2], Path::new("/opt/bin/../lib/libbfc.so.0"));
        assert!(paths.contains(&PathBuf::from("/opt/bin/../lib64/libbfc.so")));
        assert!(paths.contains(&Path::new("/opt/bin").join(MULTIARCH).join(SONAME)));
        assert!(beside(Path::new(""), &NAMES).is_empty());
    }

    #[test]
    fn the_library_is_found_in_python_s_package() {
        let prefix = env::temp_dir().join(format!("bfc-library-{}", std::process::id()));
        let _ = fs::remove_dir_all(&prefix);
        let bin = prefix.join("bin");
        let pythons = ["python3.11/site-packages", "python3.9/dist-packages", "python3.x/site-packages"];
        let inside = |python: &str| bin.join("../lib").join(python).join(IN_PACKAGE);
        fs::create_dir_all(&bin).expect("writable");
        for python in pythons {
            fs::create_dir_all(inside(python)).expect("writable");
        }
        let found = folders(&bin);
        fs::remove_dir_all(&prefix).expect("removed");
        let place = |python: &str| found.iter().position(|folder| *folder == inside(python));
        assert!(place(pythons[0]).is_some() && place(pythons[0]) < place(pythons[1]), "{found:?}");
        assert_eq!(place(pythons[2]), None, "that is no version");
        assert_eq!(found.last(), Some(&bin.join("../bfc/_prefix/lib")), "pip install --target");
    }

    #[test]
    fn a_plain_name_is_a_file_here_and_not_searched() {
        assert_eq!(searched_as_file(Path::new("libbfc.so")), "./libbfc.so");
        assert_eq!(searched_as_file(Path::new("a/libbfc.so")), "a/libbfc.so");
        assert_eq!(searched_as_file(Path::new("/a/libbfc.so")), "/a/libbfc.so");
    }

    #[test]
    fn a_library_that_is_not_libbfc_is_refused() {
        let error = Library::named(Path::new("/nonexistent/libbfc.so"), "--library").err().expect("no file");
        let text = error.to_string();
        assert!(text.contains("/nonexistent/libbfc.so (from --library)"), "{text}");
        assert!(text.contains("install libbfc, or build it in its source tree"), "{text}");
        let error = Library::open(OsStr::new("libc.so.6")).err().expect("not libbfc");
        assert!(error.contains("not libbfc") && error.contains("bfc_create"), "{error}");
    }

    #[test]
    fn an_error_says_everything_once() {
        let error = |detail: &str| CallError {
            call: "bfc_alloc",
            status: 10,
            name: "unsupported".to_owned(),
            detail: detail.to_owned(),
        };
        assert_eq!(error("").to_string(), "bfc_alloc: unsupported (status 10)");
        assert_eq!(error("bfc_alloc: not here").to_string(), "bfc_alloc: not here (status 10)");
        assert_eq!(
            error("bfc_allocator is x; do y").to_string(),
            "bfc_alloc: bfc_allocator is x; do y (status 10)"
        );
        assert_eq!(error("is x; do y").reason(), "is x");
    }

    #[test]
    fn the_file_behind_an_address_is_found() {
        let here = mapped_file(mapped_file as *const () as usize).expect("the test's own file");
        assert_eq!(here, env::current_exe().expect("a path"));
        assert_eq!(mapped_file(1), None);
    }
}
