//! Names the shared library, and generates the headers, into OUT_DIR only: `cargo xtask header` copies them
//! to include/, and a test compares.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for path in ["build.rs", "cbindgen.toml", "src/capi"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbfc.so.{major}");
    // Fork handlers and callers' pointers into the library outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The loader's frames at the first call of a function would come on top of the caller's, whose stack may be small.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");

    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    if std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zig")) {
        the_system_s_unwinder(&out);
    }
    let mut config = cbindgen::Config::from_root_or_default(&root);
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let macros = config.after_includes.take().unwrap_or_default();
    let numbers: Vec<&str> = version.split('.').collect();
    let [major, minor, patch] = numbers[..] else { panic!("the version {version} is not major.minor.patch") };
    config.after_includes = Some(format!(
        "\n#define BFC_VERSION_MAJOR {major}\n#define BFC_VERSION_MINOR {minor}\n#define BFC_VERSION_PATCH {patch}\n{macros}"
    ));
    let capi = root.join("src/capi");
    let files = ["types", "create", "memory", "order", "pools", "query", "reports"];
    write_header(&out.join("bfc.h"), config, &capi, &files);

    let adapters = capi.join("adapters");
    let config = cbindgen::Config::from_file(adapters.join("adapters.toml"))
        .expect("adapters.toml is a configuration");
    let files = ["torch/mod", "cupy", "ort", "handler", "failed", "adapter_options"];
    write_header(&out.join("bfc_adapters.h"), config, &adapters, &files);
}

/// zig, which links the wheel for old systems, links its own unwinder in the place of libgcc_s. But a C++ exception that
/// passes through bfc_torch_alloc is raised by libgcc_s, whose state that other one would misread. So what Rust wants of
/// an unwinder is found before zig's: in a stand-in with the name of libgcc_s.
fn the_system_s_unwinder(out: &Path) {
    const WANTED: [&str; 17] = [
        "Backtrace",
        "DeleteException",
        "FindEnclosingFunction",
        "ForcedUnwind",
        "GetCFA",
        "GetDataRelBase",
        "GetGR",
        "GetIP",
        "GetIPInfo",
        "GetLanguageSpecificData",
        "GetRegionStart",
        "GetTextRelBase",
        "RaiseException",
        "Resume",
        "Resume_or_Rethrow",
        "SetGR",
        "SetIP",
    ];
    let functions = WANTED.map(|name| format!("void _Unwind_{name}(void) {{}}\n")).concat();
    let source = out.join("unwinder.c");
    std::fs::write(&source, functions).expect("OUT_DIR can be written to");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-nostdlib", "-fPIC", "-Wl,-soname,libgcc_s.so.1"]);
    command.arg("-o").arg(out.join("libunwinder.so")).arg(&source);
    let status = command.status().unwrap_or_else(|error| panic!("{compiler}, the C compiler: {error}"));
    assert!(status.success(), "{command:?}: {status}");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=unwinder");
}

/// Writes what some files of a folder export.
fn write_header(path: &Path, config: cbindgen::Config, folder: &Path, files: &[&str]) {
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in files {
        builder = builder.with_src(folder.join(file).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("the C ABI can be written as a header").write(&mut header);
    let header = String::from_utf8(header).expect("cbindgen writes UTF-8");
    // What Rust heads as safety is to a C reader what must hold before the call.
    let header = header.replace("// # Safety\n// ", "// Precondition: ");
    std::fs::write(path, header).expect("OUT_DIR can be written to");
}
