//! `cargo xtask hooks`: docs/hooks.md is made from the interposer's one list of hooks.

#[path = "../../preload/src/hook_list.rs"]
mod hook_list;
#[path = "../../preload/src/unanalyzed_list.rs"]
mod unanalyzed_list;

use std::fmt::Write;

use self::hook_list::{HookKind, NOT_HOOKED, RUNTIME};
use crate::header::Generated;

/// A hook as the list has it.
struct Hook {
    symbol: &'static str,
    kind: HookKind,
    why: &'static str,
}

macro_rules! rows {
    ($($symbol:ident: $of:ident, $kind:ident, $why:literal;)*) => {
        const HOOKS: &[Hook] =
            &[$(Hook { symbol: stringify!($symbol), kind: HookKind::$kind, why: $why },)*];
    };
}
hook_list::hooks!(rows);

/// Hooks of functions that are not analysed, and why.
macro_rules! unanalyzed_rows {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        const UNANALYZED: &[(&str, &str)] = &[$((stringify!($symbol), $why),)*];
    };
}
unanalyzed_list::unanalyzed!(unanalyzed_rows);

/// The page as it has to be.
pub fn generate() -> Generated {
    let mut page = String::from(INTRODUCTION);
    page += "\n## What the driver is asked for\n\n| function | | why |\n|---|---|---|\n";
    for hook in HOOKS {
        let _ = writeln!(page, "| `{}` | {} | {} |", hook.symbol, in_words(hook.kind), hook.why);
    }
    page += UNANALYZED_FUNCTIONS;
    rows_of_functions(&mut page, UNANALYZED);
    page += HARMLESS_FUNCTIONS;
    rows_of_functions(&mut page, unanalyzed_list::HARMLESS);
    page +=
        "\n## What has no hook\n\nThese give, take or map memory too, and go to the driver as they are.\n\n";
    page += "| functions | why |\n|---|---|\n";
    rows_of_functions(&mut page, NOT_HOOKED);
    page += "\n## What the runtime is asked for\n\nIts functions are not hooked: what counts is where they end.\n\n";
    page += "| function | ends in | |\n|---|---|---|\n";
    for (name, driver) in RUNTIME {
        let kind = HOOKS.iter().find(|hook| hook.symbol == *driver).map(|hook| in_words(hook.kind));
        let _ = writeln!(page, "| `{name}` | `{driver}` | {} |", kind.unwrap_or("passed through, no hook"));
    }
    Generated { path: "docs/hooks.md".to_owned(), text: page }
}

/// Rows with the names of functions, which spaces separate.
fn rows_of_functions(page: &mut String, rows: &[(&str, &str)]) {
    for (names, why) in rows {
        let _ = writeln!(page, "| `{}` | {why} |", names.replace(' ', "`, `"));
    }
}

const INTRODUCTION: &str = "<!-- made by `cargo xtask hooks` from preload/src/hook_list.rs -->
# The hooks of the interposer

What `libbfc_preload.so` does with every function of the driver and of the runtime that has to do with memory.
[interposition.md](interposition.md) tells what that means for a program.

- **pooled**: libbfc serves it.
- **pooled on request**: libbfc serves it if a variable says so; else it is passed through.
- **corrected**: the driver is asked, and what it says of pooled memory is put right.
- **refused**: an error for pooled memory.
- **passed through**, **watched**: the driver does it; what is watched, the interposer has to know of.
";

const UNANALYZED_FUNCTIONS: &str = "
## Functions that relate all contexts

Work of one context may touch another device's memory through these, and the interposer does not look at their arguments.
Each is passed through; from the first call on in a process with several contexts, every pool waits for every context. A
function whose name begins like these and that is newer than the headers checked here has that effect when it is looked up.

| function | why |
|---|---|
";

const HARMLESS_FUNCTIONS: &str = "
These have names like them and no hook:

| functions | why |
|---|---|
";

fn in_words(kind: HookKind) -> &'static str {
    match kind {
        HookKind::Pooled => "pooled",
        HookKind::Optional => "pooled on request",
        HookKind::Corrected => "corrected",
        HookKind::Watched => "watched",
        HookKind::Passed => "passed through",
        HookKind::Refused => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hook_stands_twice_and_the_runtime_s_functions_lead_somewhere() {
        let mut names: Vec<&str> = HOOKS.iter().map(|hook| hook.symbol).collect();
        names.extend(UNANALYZED.iter().map(|(symbol, _)| symbol));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for (name, driver) in RUNTIME {
            let known = names.contains(driver) || NOT_HOOKED.iter().any(|(names, _)| names.contains(driver));
            assert!(known, "{name} ends in {driver}, of which the list says nothing");
        }
    }
}
