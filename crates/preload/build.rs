//! Links libbfc.so dynamically, with a stand-in: a library with libbfc's SONAME that contains only the names that
//! libbfc exports. Cargo builds both in any order, and a name that libbfc does not have is an error of the linker.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    stand_in(out);

    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=bfc");
    // zig, which links the wheel for old systems, does not support the first. Without data the two cannot be
    // distinguished.
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let is_zig = std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zig"));
    let own_first = if is_zig { "-Bsymbolic" } else { "-Bsymbolic-functions" };
    for argument in [
        // The libbfc.so that it was installed with is in the same folder.
        "-rpath,$ORIGIN",
        "--enable-new-dtags",
        // Hooks are called until the process ends.
        "-z,nodelete",
        // As for libbfc.so: no frames of the loader on stacks that may be small.
        "-z,now",
        "-z,defs",
        // Lookups of a name return our function, even if the program defines that name itself.
        own_first,
        // Its file name: LD_PRELOAD names the file, and for any other name ldconfig would make a link.
        "-soname,libbfc_preload.so",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}

fn soname() -> &'static str {
    bfc_sys::BFC_SONAME.to_str().expect("it is ASCII")
}

fn stand_in(out: &Path) {
    let functions: String =
        bfc_sys::pointers::NAMES.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    let source = out.join("bfc.c");
    std::fs::write(&source, functions).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-nostdlib", "-fPIC"]).arg(format!("-Wl,-soname,{}", soname()));
    command.arg("-o").arg(out.join("libbfc.so")).arg(&source);
    let status = command.status().unwrap_or_else(|error| panic!("{compiler}, the C compiler: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
