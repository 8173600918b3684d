//! Names the shared library, and generates the headers, into OUT_DIR only: `cargo xtask header` copies them
//! to include/, and a test compares.

use std::path::{Path, PathBuf};

fn main() {
    for path in ["build.rs", "cbindgen.toml", "src/capi"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbfc.so.{major}");
    // Fork handlers and callers' pointers into the library outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
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
    let files = ["torch/mod", "cupy", "ort", "handler", "failed"];
    write_header(&out.join("bfc_adapters.h"), config, &adapters, &files);
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
