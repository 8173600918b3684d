//! Whole programs on pages: C, C++, Rust and Python with the installed library, a CMake project, and JSON that a program
//! prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo;
use crate::files;
use crate::pages::Block;
use crate::pages::owned::Owned;
use crate::python::{plainly, with_bfc};
use crate::suites::context::{Context, Count};
use crate::suites::package;
use crate::tools;

/// What a page says that a program of its own prints, with what is set for it.
struct Prints {
    page: &'static str,
    program: &'static str,
    set: &'static [(&'static str, &'static str)],
    /// The block that has to be in the output, see [`contains`].
    block: &'static str,
}

const LOGGED: &[(&str, &str)] = &[("BFC_LOG", "error"), ("BFC_REPORT_ON_FAILURE", "1")];
const GUARDED: &[(&str, &str)] = &[("BFC_LOG", "error"), ("BFC_DEBUG", "guard")];

const PRINTS: [Prints; 6] = [
    Prints { page: "docs/api.md", program: "c-1", set: &[], block: "text-1" },
    Prints { page: "docs/api.md", program: "c-2", set: &[], block: "text-2" },
    Prints { page: "docs/memory-map.md", program: "c-1", set: &[], block: "json-1" },
    Prints { page: "docs/reports.md", program: "c-1", set: &[], block: "text-1" },
    Prints { page: "docs/reports.md", program: "c-1", set: LOGGED, block: "text-3" },
    Prints { page: "docs/reports.md", program: "c-2", set: GUARDED, block: "text-5" },
];

/// Compiles and runs those of a page.
pub fn run(context: &mut Context, page: &Owned, prefix: &Path) -> Result<()> {
    for block in &page.blocks {
        let name = format!("{}: {}", page.page, block.name);
        let done = match block.language.as_str() {
            "c" | "cpp" => compiled(context, page, block, prefix, &name)?,
            "rust" => rust(context, page, block, &name)?,
            "python" => python(context, page, block, prefix, &name)?,
            "cmake" => cmake(context, page, block, prefix, &name)?,
            _ => continue,
        };
        if done {
            page.ran(&block.name)?;
        }
    }
    for prints in PRINTS.iter().filter(|prints| prints.page == page.page) {
        printed(context, page, prints, prefix)?;
    }
    Ok(())
}

/// The command that compiles a program of a page against the installed library.
pub fn compiler(context: &Context, source: &Path, prefix: &Path, to: &Path) -> Command {
    let is_c = source.extension().is_some_and(|end| end == "c");
    let (compiler, standard) =
        if is_c { (tools::c_compiler(), "-std=c11") } else { (tools::cxx_compiler(), "-std=c++17") };
    let lib = prefix.join("lib");
    let mut command = context.workspace.command(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(source);
    command.arg("-I").arg(prefix.join("include")).arg("-L").arg(&lib).arg("-lbfc");
    command.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(to);
    command
}

fn executable(page: &Owned, block: &str) -> PathBuf {
    page.folder().join(block)
}

fn compiled(context: &mut Context, page: &Owned, block: &Block, prefix: &Path, name: &str) -> Result<bool> {
    let executable = executable(page, &block.name);
    let command = compiler(context, &page.file(&block.name)?, prefix, &executable);
    if !tools::works(command.get_program()) {
        return skipped(
            context,
            page,
            block,
            name,
            &format!("there is no {}", command.get_program().display()),
        );
    }
    if !context.program(&format!("{name}, compiled"), command, Count::One)?.success {
        return Ok(false);
    }
    let command = context.plain(context.workspace.command(executable));
    Ok(context.program(name, command, Count::One)?.success)
}

/// In a project of its own, as the page says; with the versions of this workspace, so that nothing is fetched.
fn rust(context: &mut Context, page: &Owned, block: &Block, name: &str) -> Result<bool> {
    let folder = page.folder().join("project");
    let root = context.workspace.root.display().to_string();
    let manifest = format!(
        "[package]\nname = \"page\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\nbfc = {{ path = {root:?} }}\n\n\
         [workspace]\n"
    );
    files::write(&folder.join("Cargo.toml"), manifest)?;
    files::write(&folder.join("src/main.rs"), &block.text)?;
    files::copy(&context.workspace.path("Cargo.lock"), &folder.join("Cargo.lock"))?;
    let mut command = cargo::cargo(&context.workspace, &["run", "--offline", "--quiet"]);
    command.arg("--manifest-path").arg(folder.join("Cargo.toml"));
    command.arg("--target-dir").arg(context.workspace.target.join("pages/cargo"));
    let command = context.plain(command);
    Ok(context.program(name, command, Count::One)?.success)
}

/// The system's own, with the package of the checkout.
fn python(context: &mut Context, page: &Owned, block: &Block, prefix: &Path, name: &str) -> Result<bool> {
    const OLDEST: &str = "import sys; sys.exit(sys.version_info < (3, 10))";
    let oldest = Command::new("python3").args(["-c", OLDEST]).status();
    if !oldest.is_ok_and(|status| status.success()) {
        return skipped(context, page, block, name, "there is no Python 3.10 or newer");
    }
    let mut command = context.workspace.command("python3");
    plainly(&mut command);
    with_bfc(&mut command, &context.workspace, prefix);
    command.arg(page.file(&block.name)?);
    Ok(context.program(name, command, Count::One)?.success)
}

/// A project around the lines of the page, with the page's first program in C.
fn cmake(context: &mut Context, page: &Owned, block: &Block, prefix: &Path, name: &str) -> Result<bool> {
    let Some(cmake) = package::cmake_or_skip(context) else {
        return skipped(context, page, block, name, "there is no CMake");
    };
    let folder = page.folder().join("cmake");
    let project = format!(
        "cmake_minimum_required(VERSION 3.20)\nproject(page C)\nadd_executable(app ../c-1.c)\n{}",
        block.text
    );
    files::write(&folder.join("CMakeLists.txt"), project)?;
    let mut command = cmake.configure(&context.workspace, &folder, &folder.join("build"));
    command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    if !context.program(&format!("{name}, configured"), command, Count::One)?.success {
        return Ok(false);
    }
    let mut command = context.workspace.command(&cmake.cmake);
    command.arg("--build").arg(folder.join("build"));
    if !context.program(&format!("{name}, built"), command, Count::One)?.success {
        return Ok(false);
    }
    let command = context.plain(context.workspace.command(folder.join("build/app")));
    Ok(context.program(name, command, Count::One)?.success)
}

/// What cannot run on this machine is no fault of the page.
pub fn skipped(context: &mut Context, page: &Owned, block: &Block, name: &str, why: &str) -> Result<bool> {
    context.skip(name, why);
    page.skip(&block.name)?;
    Ok(false)
}

/// Whether a program prints what its page says.
fn printed(context: &mut Context, page: &Owned, prints: &Prints, prefix: &Path) -> Result<()> {
    let Prints { program, block, set, .. } = prints;
    let name = format!("{}: {program} prints {block}", page.page);
    let executable = executable(page, program);
    if !executable.exists() {
        context.skip(&name, "it was not compiled");
        return Ok(());
    }
    let said = page.all.iter().find(|known| known.name == *block);
    let said = said.with_context(|| format!("{} has no block {block}", page.page))?;
    let mut command = context.plain(context.workspace.command(executable));
    command.envs(set.iter().copied()).env("LD_LIBRARY_PATH", prefix.join("lib"));
    let log = format!("page {} {program} {block}", page.page);
    let mut is_well = false;
    context.check(&name, |workspace| {
        let output = workspace.run_well(&log, command)?;
        match said.language.as_str() {
            "json" => same_shape(&serde_json::from_str(&said.text)?, &serde_json::from_str(&output)?)?,
            _ => contains(&output, &said.text)?,
        }
        is_well = true;
        Ok(())
    });
    if is_well && said.language == "json" {
        page.ran(block)?;
    }
    Ok(())
}

/// Whether an output has what a page shows of it, but for addresses, for where lines end, and for what the library's own
/// tables take, which each change of them changes.
fn contains(output: &str, shown: &str) -> Result<()> {
    let words = |text: &str| {
        let plain = |word: &str| match word.strip_prefix("0x") {
            Some(digits) => {
                let rest = digits.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
                format!("0x{rest}")
            }
            None => word.to_owned(),
        };
        let lines = text.lines().filter(|line| !line.contains("host memory for books"));
        let words = lines.flat_map(str::split_whitespace);
        words.map(plain).collect::<Vec<_>>().join(" ")
    };
    if words(output).contains(&words(shown)) {
        return Ok(());
    }
    bail!("the page has\n{shown}\nand the program printed\n{output}")
}

/// Whether two values have the same fields, of the same kinds, at each place; of arrays those of all elements together.
fn same_shape(shown: &Value, printed: &Value) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    shape(shown, "", &mut ours);
    shape(printed, "", &mut theirs);
    let not_in = |some: &[String], others: &[String]| {
        some.iter().filter(|path| !others.contains(path)).cloned().collect::<Vec<_>>().join(", ")
    };
    match (not_in(&ours, &theirs), not_in(&theirs, &ours)) {
        (more, less) if more.is_empty() && less.is_empty() => Ok(()),
        (more, less) => bail!("only the page has: {more}\nonly the program prints: {less}"),
    }
}

fn shape(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| shape(value, &format!("{path}.{name}"), found));
        }
        Value::Array(values) => values.iter().for_each(|value| shape(value, &format!("{path}[]"), found)),
        Value::String(_) => found.push(format!("{path}: a string")),
        Value::Number(_) => found.push(format!("{path}: a number")),
        Value::Bool(_) | Value::Null => found.push(format!("{path}: {value}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_output_that_is_not_what_the_page_shows_is_found() {
        assert!(contains("a\nat 0x7f12 (b\nc)\n", "at 0xabc (b c)\n").is_ok());
        assert!(contains("at 0x7f12 (b d)\n", "at 0xabc (b c)\n").is_err());
        assert!(contains("", "x").is_err());
    }

    #[test]
    fn json_with_other_fields_is_found() {
        let shown = json!({"a": 1, "b": [{"c": "x"}]});
        assert!(same_shape(&shown, &json!({"a": 2, "b": [{"c": "y"}, {"c": "z"}]})).is_ok());
        for other in [
            json!({"a": 1}),
            json!({"a": "1", "b": [{"c": "x"}]}),
            json!({"a": 1, "b": [{"c": "x", "d": 1}]}),
        ] {
            assert!(same_shape(&shown, &other).is_err(), "{other}");
        }
    }
}
