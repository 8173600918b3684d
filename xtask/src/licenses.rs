//! `cargo xtask licenses`: generates LICENSE-THIRD-PARTY, the licences of everything that the shipped binaries contain,
//! in the format of Debian's copyright files. It is the copyright file of the Debian packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;
use crate::files;
use crate::generated::Generated;
use crate::workspace::{Workspace, capture};

/// The packages that are built, and the files that contain everything they link.
const SHIPPED: [(&str, &str); 3] =
    [("libbfc", "libbfc.so and libbfc.a"), ("bfc-preload", "libbfc_preload.so"), ("bfc-cli", "bfc")];

/// What is released for these.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The licences that are accepted, as SPDX and as Debian names them, and how a text of each begins. If a crate also
/// offers others, these are chosen. .cargo/deny.toml allows the same ones.
const ACCEPTED: [(&str, &str, &str); 4] = [
    ("Apache-2.0", "Apache-2.0", ""),
    ("MIT", "Expat", "Permission is hereby granted"),
    ("ISC", "ISC", "Permission to use, copy"),
    ("Zlib", "Zlib", "This software is provided"),
];

const HEAD: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: libbfc
Source: @REPOSITORY@
Comment: The licences of libbfc and of all that its binaries contain. Written by
 `cargo xtask licenses`. The crates are on https://crates.io, and `cargo vendor`
 writes them to vendor/. Of several licences those named here were chosen. A
 crate without a notice has its authors in the place of one.
 .
 The binaries also contain parts of Rust's standard library, whose version is
 that of the compiler: Copyright The Rust Project Developers,
 https://github.com/rust-lang/rust, Apache-2.0 or Expat.

Files: *
Copyright: @AUTHORS@
License: Apache-2.0 or Expat
";

const APACHE: &str = "
License: Apache-2.0
 The text is in LICENSE-APACHE. Debian has it in
 /usr/share/common-licenses/Apache-2.0.
";

const PAGE: &str = "crates/cli/assets/report/vendor";

/// A crate that is linked.
struct Linked {
    name: String,
    version: String,
    /// The shipped files that contain it.
    within: Vec<&'static str>,
    /// Of [`ACCEPTED`], as SPDX names them.
    licenses: Vec<&'static str>,
    copyright: Vec<String>,
    /// The texts in its licence files.
    texts: BTreeMap<&'static str, String>,
}

/// The text of LICENSE-THIRD-PARTY.
pub fn generate(workspace: &Workspace) -> Result<Vec<Generated>> {
    let crates = linked(workspace)?;
    let mut text = HEAD.replace("@REPOSITORY@", env!("CARGO_PKG_REPOSITORY"));
    text = text.replace("@AUTHORS@", env!("CARGO_PKG_AUTHORS"));
    let vendored: Value = serde_json::from_str(&files::read(&workspace.path(PAGE).join("packages.json"))?)?;
    for (name, package) in vendored.as_object().context("packages.json is not an object")? {
        let field = |key: &str| package[key].as_str().with_context(|| format!("{name} has no {key}"));
        let version = field("version")?;
        let within = package["files"].as_object().into_iter().flat_map(|files| files.keys());
        let within = within.map(|file| format!("{PAGE}/{}", file.rsplit('/').next().unwrap_or(file)));
        text += &paragraph(
            &within.collect::<Vec<_>>().join("\n "),
            &format!("{name} {version}, in bfc\n https://registry.npmjs.org/{name}/-/{name}-{version}.tgz"),
            field("copyright")?,
            &accepted(field("license")?)?,
        );
    }
    let mut texts = BTreeMap::new();
    for Linked { name, version, within, licenses, copyright, texts: of_crate } in &crates {
        let comment = format!("{name} {version}, in {}", within.join(", "));
        text += &paragraph(&format!("vendor/{name}/*"), &comment, &copyright.join("\n "), licenses);
        for (license, body) in of_crate {
            let first: &String = texts.entry(*license).or_insert(body.clone());
            let is_same = first.split_whitespace().eq(body.split_whitespace());
            ensure!(is_same, "{name} has a different text of {license} than the previous crates");
        }
    }
    text += APACHE;
    for (license, debian, begin) in ACCEPTED.into_iter().filter(|(.., begin)| !begin.is_empty()) {
        let body = texts.get(license).with_context(|| format!("no crate has the text \"{begin}\""))?;
        let lines = body.lines().map(|line| if line.trim().is_empty() { "." } else { line.trim() });
        text += &format!("\nLicense: {debian}\n {}\n", lines.collect::<Vec<_>>().join("\n "));
    }
    Ok(vec![Generated { path: "LICENSE-THIRD-PARTY".to_owned(), text }])
}

fn paragraph(files: &str, comment: &str, copyright: &str, licenses: &[&str]) -> String {
    let named = ACCEPTED.iter().filter(|(spdx, ..)| licenses.contains(spdx)).map(|(_, debian, _)| *debian);
    let licenses = named.collect::<Vec<_>>().join(" or ");
    format!("\nFiles: {files}\nComment: {comment}\nCopyright: {copyright}\nLicense: {licenses}\n")
}

/// The crates that are linked, by name. Crates that only a compiler runs, such as macros, are not included.
fn linked(workspace: &Workspace) -> Result<Vec<Linked>> {
    let mut within: BTreeMap<(String, String), Vec<&'static str>> = BTreeMap::new();
    for (package, file) in SHIPPED {
        let edges = ["tree", "--locked", "--edges=normal,no-proc-macro", "--prefix=none", "--format={p}"];
        let mut command = cargo::cargo(workspace, &edges);
        command.args(["--package", package]).args(TARGETS.map(|target| format!("--target={target}")));
        let tree = capture(&mut command)?;
        // Packages of the workspace have a path after the version, and packages listed earlier have an asterisk.
        let names: BTreeSet<_> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        for line in names.into_iter().filter(|line| !line.is_empty() && !line.ends_with(')')) {
            let (name, version) = line.split_once(" v").with_context(|| format!("cargo tree: {line}"))?;
            within.entry((name.to_owned(), version.to_owned())).or_default().push(file);
        }
    }
    let mut command = cargo::cargo(workspace, &["metadata", "--locked", "--format-version=1"]);
    command.arg(format!("--filter-platform={}", TARGETS[0]));
    let metadata: Value =
        serde_json::from_str(&capture(&mut command)?).context("cargo metadata did not print JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let find = |((name, version), within): ((String, String), _)| {
        let package =
            packages.iter().find(|package| package["name"] == *name && package["version"] == *version);
        let package = package.with_context(|| format!("cargo metadata has no {name} {version}"))?;
        Linked::of(name, version, within, package)
    };
    within.into_iter().map(find).collect()
}

impl Linked {
    fn of(name: String, version: String, within: Vec<&'static str>, package: &Value) -> Result<Self> {
        let expression = package["license"].as_str().with_context(|| format!("{name} names no licence"))?;
        let licenses = accepted(expression).with_context(|| name.clone())?;
        let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
        let folder = folder.with_context(|| format!("{name} has no folder"))?;
        let (mut copyright, mut texts) = (Vec::new(), BTreeMap::new());
        for path in files::entries(folder)?.into_iter().filter(|path| path.is_file()) {
            let is_license =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("LICENSE"));
            let Some(text) = is_license.then(|| files::read(&path)).transpose()? else { continue };
            let found =
                ACCEPTED.iter().filter(|(spdx, _, begin)| !begin.is_empty() && licenses.contains(spdx));
            for (spdx, _, begin) in found {
                let Some(at) = text.find(begin) else { continue };
                copyright = notices(&text[..at]);
                texts.insert(*spdx, text[at..].trim_end().to_owned());
            }
        }
        // A notice that names no holder is about the authors.
        if copyright
            .iter()
            .all(|line| !line.trim_start_matches("Copyright (c)").contains(char::is_alphabetic))
        {
            let authors = package["authors"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let authors = authors.collect::<Vec<_>>().join(", ");
            let authors = if authors.is_empty() { format!("the authors of {name}") } else { authors };
            copyright =
                vec![copyright.first().map_or(authors.clone(), |notice| format!("{notice} {authors}"))];
        }
        Ok(Self { name, version, within, licenses, copyright, texts })
    }
}

/// The lines of a licence file that name the copyright holders.
fn notices(head: &str) -> Vec<String> {
    let lines = head.lines().map(str::trim).filter(|line| line.starts_with("Copyright"));
    lines.map(str::to_owned).collect()
}

/// The accepted licences among those that an SPDX expression offers.
fn accepted(expression: &str) -> Result<Vec<&'static str>> {
    let expression = expression.replace('/', " OR ");
    let choices: Vec<_> = expression.split(" OR ").map(str::trim).collect();
    let found = ACCEPTED.iter().map(|(spdx, ..)| *spdx).filter(|spdx| choices.contains(spdx));
    match found.collect::<Vec<_>>() {
        found if found.is_empty() => bail!("the licence {expression} is not among those of .cargo/deny.toml"),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The licence of a package with the binaries, as an SPDX expression.
    fn expression(workspace: &Workspace) -> Result<String> {
        let own = "(Apache-2.0 OR MIT)".to_owned();
        let only = linked(workspace)?.into_iter().filter(|linked| linked.licenses.len() == 1);
        let only: BTreeSet<_> = only.map(|linked| linked.licenses[0].to_owned()).collect();
        Ok([own].into_iter().chain(only).collect::<Vec<_>>().join(" AND "))
    }

    #[test]
    fn of_several_licences_the_accepted_ones_are_chosen() {
        for (expression, expected) in [
            ("0BSD OR MIT OR Apache-2.0", Some(vec!["Apache-2.0", "MIT"])),
            ("Apache-2.0/MIT", Some(vec!["Apache-2.0", "MIT"])),
            ("Apache-2.0 WITH LLVM-exception OR MIT", Some(vec!["MIT"])),
            ("Unlicense OR MIT", Some(vec!["MIT"])),
            ("MIT AND BSD-3-Clause", None),
            ("GPL-3.0-only", None),
        ] {
            assert_eq!(accepted(expression).ok(), expected, "{expression}");
        }
    }

    #[test]
    fn what_a_package_states_is_the_licence_of_all_that_is_linked() {
        let workspace = Workspace::find().expect("a checkout");
        let expression = expression(&workspace).expect("it is computed");
        for (file, line) in [
            ("pyproject.toml", format!("\nlicense = \"{expression}\"\n")),
            ("cmake/package/CMakeLists.txt", format!("\nset(CPACK_RPM_PACKAGE_LICENSE \"{expression}\")\n")),
        ] {
            let text = files::read(&workspace.path(file)).expect("it is there");
            assert!(text.contains(&line), "{file} lacks {line}");
        }
    }
}
