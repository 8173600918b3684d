//! `cargo xtask header`: generates bfc.h and bfc_adapters.h from src/capi by cbindgen, and from them what clients in Rust
//! and Python declare.
//!
//! A build of the library does not: a Rust user of the crate needs no header, and no cbindgen.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cbindgen::{Builder, Config};

use crate::bindings::{self, Generated};
use crate::files;
use crate::workspace::Workspace;

/// The headers in include/ that are generated.
pub const NAMES: [&str; 2] = ["bfc.h", ADAPTERS];

/// The header of the adapters.
pub const ADAPTERS: &str = "bfc_adapters.h";

/// A generated header.
pub struct Header {
    /// Its name in include/.
    pub name: &'static str,
    /// What it is to contain.
    pub text: String,
}

/// Generates both headers.
pub fn generate(workspace: &Workspace) -> Result<[Header; 2]> {
    let capi = workspace.path("src/capi");
    let mut config = Config::from_root_or_default(&workspace.root);
    let macros = config.after_includes.take().unwrap_or_default();
    // One version for all packages of the workspace.
    let version = env!("CARGO_PKG_VERSION");
    let soname = &workspace.soname;
    let numbers: Vec<&str> = version.split('.').collect();
    let [major, minor, patch] = numbers[..] else { bail!("the version {version} is not major.minor.patch") };
    config.after_includes = Some(format!(
        "\n#define BFC_VERSION_MAJOR {major}\n#define BFC_VERSION_MINOR {minor}\n#define BFC_VERSION_PATCH {patch}\n\n\
         // The SONAME: the file that a program linked with this version loads, also the name for dlopen. Its number is the\n\
         // version of the ABI, which changes only with an incompatible release.\n\
         #define BFC_SONAME \"{soname}\"\n\n{macros}"
    ));
    let files = ["types", "create", "memory", "order", "pools", "query", "reports"];
    let main = Header { name: NAMES[0], text: text(config, &capi, &files)? };

    let adapters = capi.join("adapters");
    let config = match Config::from_file(adapters.join("adapters.toml")) {
        Ok(config) => config,
        Err(error) => bail!("adapters.toml: {error}"),
    };
    let files = ["torch/mod", "cupy", "ort", "handler", "failed", "adapter_options"];
    Ok([main, Header { name: ADAPTERS, text: text(config, &adapters, &files)? }])
}

/// What some files of a folder export, as a header.
fn text(config: Config, folder: &Path, files: &[&str]) -> Result<String> {
    let sources = files.iter().map(|file| folder.join(file).with_extension("rs"));
    let builder = sources.fold(Builder::new().with_config(config), Builder::with_src);
    let bindings = builder.generate().context("the C ABI cannot be written as a header")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).context("cbindgen writes UTF-8")?;
    // What Rust heads as safety is to a C reader what must hold before the call.
    Ok(header.replace("// # Safety\n// ", "// Precondition: "))
}

/// Writes the headers to include/ and what is generated from them, and says whether anything changed.
pub fn write(workspace: &Workspace) -> Result<()> {
    for Header { name, text } in generate(workspace)? {
        write_one(workspace, &format!("include/{name}"), &text)?;
    }
    for Generated { path, text } in bindings::generate(workspace)? {
        write_one(workspace, path, &text)?;
    }
    Ok(())
}

fn write_one(workspace: &Workspace, name: &str, text: &str) -> Result<()> {
    let path = workspace.path(name);
    if path.exists() && files::read(&path)? == text {
        println!("{name} is up to date");
    } else {
        files::write(&path, text)?;
        println!("{name} is new; look at it with `git diff {name}`");
    }
    Ok(())
}
