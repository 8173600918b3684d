//! The installed examples, built as README says: with the copy below the prefix, and nothing of the source.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;

use super::context::{Context, Count};
use crate::files;
use crate::tools::CMake;

/// Where the examples lie below the prefix.
const FOLDER: &str = "share/bfc/examples";

/// Configures and builds them, and runs each: they end with 0 if what they show is so.
pub fn run(context: &mut Context, cmake: &CMake, prefix: &Path) -> Result<()> {
    let source = prefix.join(FOLDER);
    let folder = context.workspace.target.join("ffi/examples");
    let mut is_built = false;
    context.check("installed examples: build", |workspace| {
        // An assertion in an example is one of its checks.
        let defines = [("CMAKE_PREFIX_PATH", prefix.as_os_str()), ("CMAKE_BUILD_TYPE", OsStr::new("Debug"))];
        cmake.build(workspace, &source, &folder, &defines)?;
        is_built = true;
        Ok(())
    });
    if !is_built {
        return Ok(());
    }
    let project = files::read(&source.join("CMakeLists.txt"))?;
    let names = executables(&project);
    context.gate("installed examples: every source is one", &missing(&names, &source)?);
    for name in names {
        let command = context.plain(context.workspace.command(folder.join(&name)));
        context.program(&format!("installed {name}"), command, Count::One)?;
    }
    Ok(())
}

/// The programs of a CMake project: `add_executable(NAME SOURCE...)`.
fn executables(project: &str) -> Vec<String> {
    let calls = project.lines().filter_map(|line| line.trim_start().strip_prefix("add_executable("));
    let names = calls.filter_map(|call| call.split_whitespace().next());
    names.map(|name| name.trim_end_matches(')').to_owned()).collect()
}

/// The sources in C and C++ that make no program of that name: example_c_training is c/training.c.
fn missing(executables: &[String], folder: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for language in ["c", "cpp"] {
        let sources = files::below(&folder.join(language), language)?;
        if sources.is_empty() {
            wrong.push(format!("there is no example in {language}/"));
        }
        for source in sources {
            let stem = source.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("example_{language}_{stem}");
            if !executables.contains(&name) {
                wrong.push(format!("{} makes no {name}: it is never run", source.display()));
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_the_project() {
        let project = "project(x)\nadd_executable(example_c_a c/a.c)\n# add_executable(none x.c)\n\
                       if(X)\n  add_executable(example_cpp_b\n    cpp/b.cpp)\nendif()\n";
        assert_eq!(executables(project), ["example_c_a", "example_cpp_b"]);
        assert!(executables("project(x)\n").is_empty());
    }

    #[test]
    fn a_source_without_a_program_is_found() {
        let folder = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        files::write(&folder.join("c/a.c"), "").expect("writable");
        let names = ["example_c_a".to_owned()];
        let wrong = |names: &[String]| missing(names, &folder).expect("readable").len();
        assert_eq!(wrong(&names), 1);
        files::write(&folder.join("cpp/b.cpp"), "").expect("writable");
        assert_eq!((wrong(&names), wrong(&[])), (1, 2));
        assert_eq!(wrong(&["example_c_a".to_owned(), "example_cpp_b".to_owned()]), 0);
        files::remove_all(&folder).expect("removed");
    }
}
