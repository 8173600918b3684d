//! The headers bfc.h and bfc_adapters.h, written from src/capi by cbindgen.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use cbindgen::{Builder, Config};

/// Writes both headers to a folder. `soname` is the library's.
pub fn write(soname: &str, folder: &Path) -> Result<()> {
    let capi = Path::new("src/capi");
    let prose = |file: &str| {
        let path = capi.join("header").join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let config = |file: &str| {
        Config::from_file(capi.join("header").join(file)).map_err(|error| anyhow!("{file}: {error}"))
    };
    let mut main = config("cbindgen.toml")?;
    main.header = Some(prose("preamble.h")?);
    let macros = prose("macros.h")?;
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
    crate::write(&folder.join("bfc.h"), &text(main, capi, &files)?)?;

    let mut adapters = config("adapters.toml")?;
    adapters.header = Some(prose("adapters.h")?);
    let files = ["torch/mod", "cupy", "cached", "numpy", "ort", "handler", "failed", "adapter_options"];
    crate::write(&folder.join("bfc_adapters.h"), &text(adapters, &capi.join("adapters"), &files)?)
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
