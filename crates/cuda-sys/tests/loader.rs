//! The loader against stand-ins of several ages, each in a process of its own, because a process keeps the libraries
//! that it has loaded.

use libbfc_cuda_sys::{CUDA_SUCCESS, Driver, Error};
use std::env;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("cuda-sys-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Compiles one of tests/fakes to a shared library here.
    fn compile(&self, source: &str, library: &str, options: &[&str]) -> PathBuf {
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakes").join(source);
        let library = self.0.join(library);
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-Wall", "-Werror"]).args(options);
        let status = command.arg(source).arg("-o").arg(&library).arg("-ldl").status();
        assert!(status.expect("a C compiler, which Rust needs for linking too").success());
        library
    }

    /// Runs the test of that name once more, in a process that finds the libraries of this folder. It must pass.
    fn run(&self, test: &str, preload: Option<&Path>) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command.env("LD_LIBRARY_PATH", &self.0).env("FAKE_FOLDER", &self.0);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let ok = output.status.success() && said.contains("1 passed");
        assert!(ok, "{test}: {}\n{said}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

/// Whether this is such a process.
fn is_child() -> bool {
    env::var_os("FAKE_FOLDER").is_some()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// In the stand-in each function returns how it was found.
fn cu_mem_alloc(driver: Driver) -> c_int {
    let mut address = 0;
    // SAFETY: the pointer is valid.
    let found_by = unsafe { driver.cuMemAlloc_v2().unwrap()(&mut address, 512) };
    assert_eq!(address, 512);
    found_by
}

const BY_SYMBOL: c_int = 1;
const BY_FOUR: c_int = 4;
const BY_FIVE: c_int = 5;

#[test]
fn an_old_driver_is_asked_for_symbols_and_lacks_what_came_later() {
    if is_child() {
        return with_an_old_driver();
    }
    let folder = Folder::new("old");
    folder.compile("driver.c", "libcuda.so.1", &["-DVERSION=9020"]);
    folder.run("an_old_driver_is_asked_for_symbols_and_lacks_what_came_later", None);
}

fn with_an_old_driver() {
    let driver = Driver::load().unwrap();
    assert_eq!((driver.version(), cu_mem_alloc(driver)), (9020, BY_SYMBOL));
    let missing = driver.cuMemCreate().unwrap_err();
    assert_eq!(missing, libbfc_cuda_sys::Missing { symbol: "cuMemCreate", since: 10020, driver: 9020 });
    let missing = driver.cuMemsetD8_v2().unwrap_err().to_string();
    assert!(missing.contains("broken or a stand-in"), "{missing}");
}

#[test]
fn since_11_3_functions_are_asked_for_by_version() {
    if is_child() {
        return with_four_arguments();
    }
    let folder = Folder::new("four");
    folder.compile("driver.c", "libcuda.so.1", &["-DVERSION=11040", "-DGET_FOUR"]);
    folder.run("since_11_3_functions_are_asked_for_by_version", None);
}

fn with_four_arguments() {
    let driver = Driver::load().unwrap();
    assert_eq!((driver.version(), cu_mem_alloc(driver)), (11040, BY_FOUR));
    // SAFETY: it takes any address.
    assert_eq!(unsafe { driver.cuMemFree_v2().unwrap()(0) }, BY_SYMBOL, "what it does not give by version");
}

#[test]
fn since_12_the_query_has_five_arguments_and_a_status() {
    if is_child() {
        return with_five_arguments();
    }
    let folder = Folder::new("five");
    folder.compile("driver.c", "libcuda.so.1", &["-DVERSION=13050", "-DGET_FIVE"]);
    folder.run("since_12_the_query_has_five_arguments_and_a_status", None);
}

fn with_five_arguments() {
    let driver = Driver::load().unwrap();
    assert_eq!((driver.version(), cu_mem_alloc(driver)), (13050, BY_FIVE));
    // SAFETY: it takes any address.
    assert_eq!(unsafe { driver.cuMemFree_v2().unwrap()(0) }, BY_SYMBOL, "what it does not give by version");
    // SAFETY: it only returns its argument.
    assert_eq!(unsafe { driver.cuInit().unwrap()(0) }, CUDA_SUCCESS);
}

#[test]
fn what_is_no_driver_is_said_and_may_be_replaced() {
    if is_child() {
        return with_a_driver_that_comes_late();
    }
    let folder = Folder::new("none");
    std::fs::write(folder.0.join("libcuda.so.1"), "no library").unwrap();
    folder.compile("driver.c", "not-a-driver", &["-DVERSION=9020", "-DNO_INIT"]);
    folder.compile("driver.c", "driver", &["-DVERSION=12090", "-DGET_FIVE"]);
    folder.run("what_is_no_driver_is_said_and_may_be_replaced", None);
}

fn with_a_driver_that_comes_late() {
    let folder = PathBuf::from(env::var_os("FAKE_FOLDER").unwrap());
    let put = |name: &str| std::fs::rename(folder.join(name), folder.join("libcuda.so.1")).unwrap();
    let words = Driver::load().unwrap_err().to_string();
    assert!(
        words.starts_with("the NVIDIA driver cannot be loaded; ") && words.contains("libcuda.so.1:"),
        "{words}"
    );
    assert!(words.contains("install the driver"), "{words}");
    put("not-a-driver");
    assert_eq!(Driver::load().unwrap_err(), Error::NotADriver { symbol: "cuInit" });
    put("driver");
    assert_eq!(Driver::load().unwrap().version(), 12090);
}

#[test]
fn an_interposer_in_the_process_is_not_entered() {
    if is_child() {
        return with_an_interposer();
    }
    let folder = Folder::new("interposed");
    for options in
        [&["-DVERSION=13050", "-DGET_FIVE"][..], &["-DVERSION=11040", "-DGET_FOUR"], &["-DVERSION=9020"]]
    {
        folder.compile("driver.c", "libcuda.so.1", options);
        let interposer = folder.compile("interposer.c", "libinterposer.so", &[]);
        folder.run("an_interposer_in_the_process_is_not_entered", Some(&interposer));
    }
}

fn with_an_interposer() {
    let named = |name: &std::ffi::CStr| -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let entered = named(c"interposer_entered");
    assert!(!entered.is_null(), "there is no interposer");
    // SAFETY: the interposer's function has that type.
    let entered = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(entered) };

    let driver = Driver::load().unwrap();
    assert!([BY_SYMBOL, BY_FOUR, BY_FIVE].contains(&cu_mem_alloc(driver)));
    // SAFETY: it takes any address.
    assert_eq!(unsafe { driver.cuMemFree_v2().unwrap()(0) }, BY_SYMBOL);
    assert!(driver.version() > 1);
    assert_eq!(entered(), 0, "the loader went through the interposer");

    // An ordinary lookup, as programs make it, finds the interposer.
    assert!(!named(c"cuMemAlloc_v2").is_null());
    assert_eq!(entered(), 1);
}
