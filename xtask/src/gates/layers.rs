//! The library's modules import only from those below them, and the engine has no way to the world.

use super::code::{line_of, occurrences, paths, test_modules, without_comments, without_tests};
use super::rooms;

/// All that core/ knows of the modules below it: it decides over numbers, and what goes wrong it returns.
const ENGINE_USES: [&str; 3] = ["sys::HostMemoryExhausted", "sys::table", "sys::zeroed"];

/// Modules of std that lead to a clock, to the environment, or anywhere else out of a function of numbers.
const WORLD: [&str; 8] = ["env", "fs", "io", "net", "os", "process", "thread", "time"];

/// Words that do the same without a path before them.
const WORLDLY_WORDS: [&str; 7] =
    ["Instant", "SystemTime", "print!", "println!", "eprint!", "eprintln!", "dbg!"];

/// A file of src/: its path there, and its text.
pub type Source = (String, String);

/// Every import that goes up, and every one whose direction cannot be told.
pub fn violations(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in sources {
        // The crate's root sees all modules, and none may see it.
        if path == "lib.rs" {
            continue;
        }
        let module = path.split(['/', '.']).next().unwrap_or(path);
        let Some(own) = layer(module) else {
            wrong.push(format!(
                "src/{path}: the module {module} is in no layer; give it one in xtask/src/gates/rooms.rs"
            ));
            continue;
        };
        for (line, used) in modules(path, text) {
            match layer(&used) {
                Some(other) if other <= own => {}
                Some(_) => wrong.push(format!("src/{path}:{line}: {module} uses {used}, which is above it")),
                None => wrong.push(format!(
                    "src/{path}:{line}: crate::{used} is no module: import it from the module it lives in"
                )),
            }
        }
    }
    if sources.iter().all(|(path, _)| path == "lib.rs") {
        wrong.push("there is no module to look at".to_owned());
    }
    wrong
}

/// Every use of the driver outside of `backend/cuda`.
pub fn drivers(sources: &[Source]) -> Vec<String> {
    let is_cuda = |path: &str| path.starts_with("backend/cuda/");
    let mut wrong = Vec::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_cuda(path)) {
        let code = without_comments(text);
        wrong.extend(occurrences(&code, "cuda_sys").map(|(start, _)| {
            let line = line_of(&code, start);
            format!("src/{path}:{line}: cuda_sys is for src/backend/cuda only")
        }));
    }
    if !sources.iter().any(|(path, text)| is_cuda(path) && text.contains("cuda_sys")) {
        wrong.push("there is no src/backend/cuda that uses cuda_sys".to_owned());
    }
    wrong
}

/// What in core/ would make the engine's decisions depend on something else than numbers: other modules
/// than the few it may know, a clock, the environment, files, messages. Tests may do all of that.
pub fn worldly(sources: &[Source]) -> Vec<String> {
    let engine = || sources.iter().filter(|(path, _)| path.starts_with("core/"));
    let tests: Vec<String> =
        engine().filter(|(path, _)| path == "core/mod.rs").flat_map(|(_, text)| test_modules(text)).collect();
    let is_test = |path: &str| {
        let module = path.split('/').nth(1).unwrap_or_default();
        tests.iter().any(|test| module.strip_suffix(".rs").unwrap_or(module) == test)
    };
    let mut wrong = Vec::new();
    for (path, text) in engine().filter(|(path, _)| !is_test(path)) {
        let text = without_tests(text);
        for (line, used) in imports(path, &text) {
            let inner = used.split("::").next() == Some("core");
            let fine = ENGINE_USES.iter().any(|allowed| within(&used, allowed));
            if !inner && !fine {
                let allowed = ENGINE_USES.join(" and ");
                wrong.push(format!("src/{path}:{line}: core uses {used}, and may use {allowed} only"));
            }
        }
        let code = without_comments(&text);
        for (start, root) in occurrences(&code, "std::") {
            let line = line_of(&code, start);
            let used = paths(&code[start + root.len()..]);
            let leads_to = |module: &&str| used.iter().any(|used| within(used, module));
            for module in WORLD.iter().filter(|module| leads_to(module)) {
                wrong
                    .push(format!("src/{path}:{line}: core uses std::{module}: it is a function of numbers"));
            }
        }
        for word in WORLDLY_WORDS {
            let mut found = occurrences(&code, word).filter(|(start, _)| {
                let after = code[start + word.len()..].chars().next();
                !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
            });
            if let Some((start, _)) = found.next() {
                let line = line_of(&code, start);
                wrong.push(format!("src/{path}:{line}: core uses {word}: it is a function of numbers"));
            }
        }
    }
    if engine().next().is_none() {
        wrong.push("there is no core/ to look at".to_owned());
    }
    wrong
}

/// Whether a path is that one or goes on from it.
fn within(path: &str, start: &str) -> bool {
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn layer(module: &str) -> Option<usize> {
    rooms::LAYERS.rooms.iter().position(|modules| modules.contains(&module))
}

/// The modules of the root that a file names, each with its line.
fn modules(path: &str, text: &str) -> Vec<(usize, String)> {
    let module = |path: String| path.split("::").next().unwrap_or_default().to_owned();
    let imports = imports(path, text).into_iter();
    let mut found: Vec<_> = imports.map(|(line, path)| (line, module(path))).collect();
    found.dedup();
    found
}

/// What a file names of the root, as paths from there, each with its line: by `crate::x`, in an import or
/// in the midst of the code, by `crate::{x, y}`, and by as many `super::` as lead to the root.
fn imports(path: &str, text: &str) -> Vec<(usize, String)> {
    let code = without_comments(text);
    let depth = path.trim_end_matches("/mod.rs").matches('/').count() + 1;
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for (start, root) in occurrences(&code, "crate::").chain(occurrences(&code, &up)) {
        // An inner module, such as one for tests, is indented and its `super` is the file itself.
        let line_start = code[..start].rfind('\n').map_or(0, |at| at + 1);
        let indented = code[line_start..].starts_with(' ');
        if root.starts_with("super") && (indented || code[..start].ends_with("super::")) {
            continue;
        }
        let line = line_of(&code, start);
        let used = paths(&code[start + root.len()..]);
        found.extend(used.into_iter().map(|path| (line, path)));
    }
    found.retain(|(_, path)| !within(path, "super"));
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> Vec<String> {
        violations(&[(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn steps_down_and_sideways_pass() {
        let text = "use super::Pool;\nuse crate::core::arena::Arena;\nuse crate::{log, report};\n";
        assert_eq!(of("pool/life.rs", text), [""; 0]);
        assert_eq!(of("pool/mod.rs", "use crate::pool::slot::Slot;\n"), [""; 0]);
        assert_eq!(of("log.rs", "use crate::error::Text;\n"), [""; 0]);
        assert_eq!(of("error.rs", "use crate::log::Level;\n"), [""; 0]);
    }

    #[test]
    fn a_step_up_fails() {
        let wrong = of("core/arena.rs", "use std::fmt;\nuse crate::pool::Pool;\n");
        assert_eq!(wrong, ["src/core/arena.rs:2: core uses pool, which is above it"]);
        assert_eq!(of("sys/mod.rs", "use crate::error::Error;\n").len(), 1);
        assert_eq!(of("report.rs", "pub(crate) use crate::device::Device;\n").len(), 1);
    }

    #[test]
    fn a_step_up_is_found_in_every_spelling() {
        assert_eq!(of("core/grow.rs", "use crate::{sys, pool::{Pool, slot}, capi};\n").len(), 2);
        assert_eq!(of("core/grow.rs", "use crate::{\n    sys::env,\n    device::Device,\n};\n").len(), 1);
        assert_eq!(of("core/grow.rs", "fn f() -> crate::pool::Pool {}\n").len(), 1);
        assert_eq!(of("log.rs", "use super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/mod.rs", "use super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/grow.rs", "use super::super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/a/b.rs", "use super::super::super::{sys, pool};\n").len(), 1);
    }

    #[test]
    fn the_root_itself_and_unknown_modules_fail() {
        assert_eq!(of("core/grow.rs", "use crate::Device;\n").len(), 1);
        assert_eq!(of("core/grow.rs", "use crate::*;\n").len(), 1);
        assert_eq!(of("novel.rs", "").len(), 1);
        assert_eq!(violations(&[]).len(), 1);
        assert_eq!(of("lib.rs", "").len(), 1);
    }

    #[test]
    fn what_is_no_import_of_the_root_passes() {
        assert_eq!(
            of("core/grow.rs", "//! See [`crate::pool`].\nuse super::units::UNIT; // crate::pool\n"),
            [""; 0]
        );
        assert_eq!(of("core/mod.rs", "mod tests {\n    use super::*;\n}\n"), [""; 0]);
        assert_eq!(of("core/grow.rs", "mod tests {\n    use super::super::units::UNIT;\n}\n"), [""; 0]);
        assert_eq!(of("core/grow.rs", "use my_crate::pool::Pool;\n"), [""; 0]);
    }

    fn worldly_in(path: &str, text: &str) -> Vec<String> {
        worldly(&[(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn an_engine_of_numbers_passes() {
        let text = "use super::units::UNIT;\nuse crate::core::stats::Stats;\nuse crate::sys::{HostMemoryExhausted, table::LazyTable};\n\
                    use std::{cell::Cell, mem};\n// std::env, Instant, println!\nlet timeline = std::time_of(instantly, Instants);\n";
        assert_eq!(worldly_in("core/arena.rs", text), [""; 0]);
        assert_eq!(worldly_in("core/mod.rs", "fn f() -> super::core::x::X {}\n"), [""; 0]);
    }

    #[test]
    fn a_way_to_the_world_fails() {
        let wrong = worldly_in("core/grow.rs", "\nuse crate::sys::env;\n");
        let words =
            "core uses sys::env, and may use sys::HostMemoryExhausted and sys::table and sys::zeroed only";
        assert_eq!(wrong, [format!("src/core/grow.rs:2: {words}")]);
        for text in [
            "use crate::log;",
            "use crate::log::Level;",
            "use crate::error::Error;",
            "use crate::sys;",
            "use crate::sys::*;",
            "use crate::sys::tables::X;",
            "use crate::sys::{self, table};",
            "use crate::{sys::{HostMemoryExhausted, clock}};",
            "use super::super::sys::clock;",
            "fn f() { crate::log::emit() }",
            "let x = std::env::var(name);",
            "use std::time::Duration;",
            "use std::fs;",
            "use std::io::Write;",
            "use std::{mem, thread};",
            "use std::{\n    cell::Cell,\n    process::{self, Command},\n};",
            "use ::std::net::TcpStream;",
            "let os = std::os::raw::c_int;",
            "let now = Instant::now();",
            "fn f(at: SystemTime) {}",
            "print!(x);",
            "    println!(x);",
            "eprint!(x);",
            "eprintln!(x);",
            "dbg!(x);",
        ] {
            assert_eq!(worldly_in("core/grow.rs", text).len(), 1, "{text}");
            assert_eq!(
                worldly_in("core/grow/deep.rs", &text.replace("use super::", "use super::super::")).len(),
                1
            );
        }
    }

    #[test]
    fn only_what_is_declared_as_a_test_may_do_so() {
        let text = "use crate::log::Level;\nprintln!(x);\n".to_owned();
        let of = |modules: &str, path: &str| {
            let root = ("core/mod.rs".to_owned(), modules.to_owned());
            worldly(&[root, (path.to_owned(), text.clone())]).len()
        };
        for path in ["core/x_tests.rs", "core/x_tests/model.rs"] {
            assert_eq!(of("#[cfg(test)]\nmod x_tests;\n", path), 0);
            assert_eq!(of("mod x_tests;\n", path), 2);
            assert_eq!(of("#[cfg(test)]\nmod x;\n", path), 2);
        }
        let inner = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert_eq!(worldly_in("core/grow.rs", &inner), [""; 0]);
        assert_eq!(worldly_in("core/grow.rs", &format!("{inner}{text}")).len(), 2);
    }

    #[test]
    fn the_driver_is_for_its_backends() {
        let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let backend = source("backend/cuda/calls.rs", "use cuda_sys::Driver;\n");
        let other = source("pool/mod.rs", "// cuda_sys\nuse cuda_sys::Driver;\n");
        let vmm = source("backend/cuda/vmm/life.rs", "use cuda_sys::*;\n");
        assert_eq!(drivers(&[backend.clone(), vmm]), [""; 0]);
        assert_eq!(
            drivers(&[backend.clone(), other.clone()]),
            ["src/pool/mod.rs:2: cuda_sys is for src/backend/cuda only"]
        );
        let beside = source("backend/cuda_vmm.rs", "use cuda_sys::*;\n");
        assert_eq!(
            drivers(&[backend, beside]),
            ["src/backend/cuda_vmm.rs:1: cuda_sys is for src/backend/cuda only"]
        );
        assert_eq!(drivers(&[other]).len(), 2);
    }

    #[test]
    fn other_modules_are_not_the_engine_and_none_at_all_fails() {
        let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let sources = [source("core/mod.rs", ""), source("log.rs", "use std::time::Instant;\n")];
        assert_eq!(worldly(&sources), [""; 0]);
        assert_eq!(worldly(&sources[1..]).len(), 1);
    }
}
