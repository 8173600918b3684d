//! Writes the files that are generated from libbfc's C ABI, for `cargo xtask header`, which runs it in the checkout's root:
//!
//! - `bfc-generate headers FOLDER SONAME`: bfc.h and bfc_adapters.h, from src/capi;
//! - `bfc-generate clients FOLDER HEADER [CLANG ARGUMENT]...`: from a header bindings.rs, pointers.rs and _abi.py.

mod headers;
mod python;
mod rust;

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let usage = "usage: bfc-generate headers FOLDER SONAME | clients FOLDER HEADER [CLANG ARGUMENT]...";
    let what = arguments.next().context(usage)?;
    let folder = PathBuf::from(arguments.next().context(usage)?);
    let from = arguments.next().context(usage)?;
    match &*what {
        "headers" => headers::write(&from, &folder),
        "clients" => {
            let [bindings, pointers] = rust::bindings(&from, arguments)?;
            write(&folder.join("_abi.py"), &python::module(&bindings)?)?;
            write(&folder.join("bindings.rs"), &rust_text(&bindings))?;
            write(&folder.join("pointers.rs"), &rust_text(&pointers))
        }
        _ => bail!(usage),
    }
}

fn rust_text(file: &syn::File) -> String {
    format!("// Generated from include/ by `cargo xtask header`.\n\n{}", prettyplease::unparse(file))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
