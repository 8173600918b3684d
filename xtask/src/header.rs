//! `cargo xtask header`: generates bfc.h and bfc_adapters.h from src/capi by cbindgen, and from them what clients in Rust
//! and Python declare.
//!
//! A build of the library does not generate them: a Rust user of the crate needs no header, and no cbindgen.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cbindgen::{Builder, Config};

use crate::bindings;
use crate::files;
use crate::workspace::Workspace;

/// The headers in include/ that are generated.
pub const NAMES: [&str; 2] = ["bfc.h", "bfc_adapters.h"];

/// A file of the project that is generated.
pub struct Generated {
    /// Its path in the project.
    pub path: String,
    /// What it is to contain.
    pub text: String,
}

impl Generated {
    /// Writes it, and prints whether anything changed.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        if files::read(&workspace.path(path)).is_ok_and(|old| old == *text) {
            println!("{path} is up to date");
            return Ok(());
        }
        files::write(&workspace.path(path), text)?;
        println!("{path} is new; look at it with `git diff {path}`");
        Ok(())
    }

    /// Returns an error with the first line that differs, unless the file is up to date.
    pub fn check(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        let checked_in = files::read(&workspace.path(path))?;
        let same = checked_in.lines().zip(text.lines()).take_while(|(old, new)| old == new).count();
        let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
        ensure!(
            checked_in == *text,
            "{path} is not the generated file, run `cargo xtask header`, `hooks` or `licenses`; line {}:\n  - {}\n  + {}",
            same + 1,
            line(&checked_in),
            line(text)
        );
        Ok(())
    }
}

/// Generates both headers.
pub fn headers(workspace: &Workspace) -> Result<Vec<Generated>> {
    let capi = workspace.path("src/capi");
    let prose = |file: &str| files::read(&capi.join("header").join(file));
    let config = |file: &str| {
        Config::from_file(capi.join("header").join(file)).map_err(|error| anyhow::anyhow!("{file}: {error}"))
    };
    let mut main = config("cbindgen.toml")?;
    main.header = Some(prose("preamble.h")?);
    let macros = prose("macros.h")?;
    let soname = &workspace.soname;
    // One version for all packages of the workspace.
    let [major, minor, patch] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    main.after_includes = Some(format!(
        "\n#define BFC_VERSION_MAJOR {major}\n#define BFC_VERSION_MINOR {minor}\n#define BFC_VERSION_PATCH {patch}\n\n\
         // The SONAME: the file that a program linked with this version loads, also the name for dlopen. Its number is the\n\
         // version of the ABI, which changes only with an incompatible release.\n\
         #define BFC_SONAME \"{soname}\"\n\n{macros}"
    ));
    // The library cannot see how its caller was compiled. Macros are expanded in the caller's own unit, so that no inline
    // function of two units differs, and bfc.hpp can do without them: it writes the names in parentheses.
    main.trailer = Some(prose("trailer.h")?);
    let files = ["types", "create", "memory", "order", "pools", "query", "reports", "history"];
    let main = Generated { path: format!("include/{}", NAMES[0]), text: text(main, &capi, &files)? };

    let mut adapters = config("adapters.toml")?;
    adapters.header = Some(prose("adapters.h")?);
    let files = ["torch/mod", "cupy", "cached", "numpy", "ort", "handler", "failed", "adapter_options"];
    let text = text(adapters, &capi.join("adapters"), &files)?;
    Ok(vec![main, Generated { path: format!("include/{}", NAMES[1]), text }])
}

/// Returns a header with the exports of some files of a folder.
fn text(config: Config, folder: &Path, files: &[&str]) -> Result<String> {
    let sources = files.iter().map(|file| folder.join(file).with_extension("rs"));
    let builder = sources.fold(Builder::new().with_config(config), Builder::with_src);
    let bindings = builder.generate().context("the C ABI cannot be written as a header")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).context("cbindgen writes UTF-8")?;
    // Rust's section on safety tells a C reader what must hold before the call.
    Ok(header.replace("// # Safety\n// ", "// Precondition: "))
}

/// Writes the headers to include/ and the files generated from them, and prints whether anything changed.
pub fn write(workspace: &Workspace) -> Result<()> {
    headers(workspace)?.iter().try_for_each(|header| header.write(workspace))?;
    bindings::generate(workspace)?.iter().try_for_each(|bindings| bindings.write(workspace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_generated_one_is_an_error_with_the_line() {
        let workspace = Workspace::find().expect("a checkout");
        let path = "LICENSE-MIT".to_owned();
        let text = files::read(&workspace.path(&path)).expect("it is there");
        let check = |text: &str| Generated { path: path.clone(), text: text.to_owned() }.check(&workspace);
        check(&text).expect("the same");
        let changed = text.replacen('\n', "\nmore\n", 1);
        assert!(check(&changed).unwrap_err().to_string().contains("line 2:\n"));
        for changed in [format!("{text}more"), text.replace('\n', "\r\n"), String::new()] {
            assert!(check(&changed).is_err());
        }
    }
}
