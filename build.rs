//! Names the shared library, and generates the header, into OUT_DIR only: `cargo xtask header` copies it
//! to include/, and a test compares the two.

use std::path::PathBuf;

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
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["types", "create", "memory", "order", "pools", "query", "reports"] {
        builder = builder.with_src(root.join("src/capi").join(file).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("the C ABI can be written as a header").write(&mut header);
    let header = String::from_utf8(header).expect("cbindgen writes UTF-8");
    // What Rust heads as safety is to a C reader what must hold before the call.
    let header = header.replace("// # Safety\n// ", "// Precondition: ");
    std::fs::write(out.join("bfc.h"), header).expect("OUT_DIR can be written to");
}
