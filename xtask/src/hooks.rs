//! `cargo xtask hooks`: generates docs/hooks.md from the interposer's list of hooks.

use std::fmt::Write;

use crate::generated::Generated;
use hook_list::{HookKind, NOT_HOOKED, RUNTIME};

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

/// The page as it has to be.
pub fn generate() -> Generated {
    let mut page = String::from(INTRODUCTION);
    page += "\n## Driver functions\n\n| functions | handling | details |\n|---|---|---|\n";
    rows_of_the_same(&mut page, HOOKS);
    page += UNANALYZED_FUNCTIONS;
    page +=
        "\n## Functions without a hook\n\nThese allocate, free or map memory too, and go to the driver.\n\n";
    page += "| functions | reason |\n|---|---|\n";
    rows_of_functions(&mut page, NOT_HOOKED);
    page += "\n## Runtime functions\n\nThe runtime is not hooked. The driver function that it calls decides: \
                the one of the same name, or that in parentheses.\n\n";
    page += "| handling | functions |\n|---|---|\n";
    let mut rows: Vec<(&str, String)> = Vec::new();
    for (name, driver) in RUNTIME {
        let kind = HOOKS.iter().find(|hook| hook.symbol == *driver).map(|hook| in_words(hook.kind));
        let kind = kind.unwrap_or("passed through, no hook");
        let is_same = name.strip_prefix("cuda") == driver.trim_end_matches("_v2").strip_prefix("cu");
        let function = if is_same { format!("`{name}`") } else { format!("`{name}` (`{driver}`)") };
        match rows.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, names)) => _ = write!(names, ", {function}"),
            None => rows.push((kind, function)),
        }
    }
    for (kind, names) in rows {
        let _ = writeln!(page, "| {kind} | {names} |");
    }
    Generated { path: "docs/hooks.md".to_owned(), text: page }
}

/// Rows that combine each function with the previous ones if they are handled in the same way.
fn rows_of_the_same(page: &mut String, hooks: &[Hook]) {
    let mut rows: Vec<(String, HookKind, &str)> = Vec::new();
    let mut before = "";
    for &Hook { symbol, kind, why } in hooks {
        match rows.last_mut() {
            Some((names, of, _)) if why == "the same" && *of == kind => {
                // A twin for the per-thread default stream is shown only by its suffix, after its function.
                let suffix = symbol.strip_prefix(before).filter(|suffix| suffix.starts_with("_pt"));
                let _ = write!(names, ", `{}`", suffix.unwrap_or(symbol));
            }
            _ => rows.push((format!("`{symbol}`"), kind, why)),
        }
        before = symbol;
    }
    for (names, kind, why) in rows {
        let _ = writeln!(page, "| {names} | {} | {why} |", in_words(kind));
    }
}

/// Rows with the names of functions, separated by spaces.
fn rows_of_functions(page: &mut String, rows: &[(&str, &str)]) {
    for (names, why) in rows {
        let _ = writeln!(page, "| `{}` | {why} |", names.replace(' ', "`, `"));
    }
}

const INTRODUCTION: &str = "<!-- made by `cargo xtask hooks` from crates/preload/hook-list/src/lib.rs -->
# Hooks of the interposer

These tables show how `libbfc_preload.so` handles every function of the CUDA driver and runtime that concerns memory.
[interposition.md](interposition.md) explains what this means for a program.

| handling | meaning |
|---|---|
| pooled | served by libbfc |
| pooled on request | served by libbfc if a variable says so, else passed through |
| corrected | passed to the driver, and its answer about pooled memory is corrected |
| refused | an error for pooled memory, else passed through |
| passed through | served by the driver |
| retried | passed to the driver. If it is out of memory, the pool is trimmed and the driver is called again. The details say what it needs memory for |
| watched | served by the driver, and recorded by the interposer |

`_ptsz` and `_ptds` are the variants of the function before them for the per-thread default stream.
";

const UNANALYZED_FUNCTIONS: &str = "
## Functions that relate all contexts

Through these functions work of one context may use another device's memory, and the interposer does not analyze their
arguments. Each is passed through. From the first call in a process with several contexts, every pool waits for every context. A
function that is newer than the headers checked here, and whose name begins like these, has the same effect when it is looked up.

- batched copies, copies with attributes, decompression: `cuMemcpyBatchAsync`, `cuMemcpyWithAttributesAsync`, `cuMemBatchDecompressAsync`
- copies between memory and arrays, and fills of rectangles: `cuMemcpyDtoA`, `cuMemcpyAtoD`, `cuMemsetD2D8` and others
- writes and waits in streams: `cuStreamWriteValue32`, `cuStreamWaitValue32`, `cuStreamBatchMemOp` and others
- nodes of graphs that copy, fill, or are of any kind: `cuGraphAddNode`, `cuGraphAddMemsetNode` and others
- memory of others: `cuLogicalEndpointBindAddr`, `cuImportExternalMemory`

`crates/preload/src/unanalyzed_list.rs` in the source names all of them, and similar functions that have no hook, with the reasons.
";

fn in_words(kind: HookKind) -> &'static str {
    match kind {
        HookKind::Pooled => "pooled",
        HookKind::Optional => "pooled on request",
        HookKind::Corrected => "corrected",
        HookKind::Watched => "watched",
        HookKind::Passed => "passed through",
        HookKind::Retried => "retried",
        HookKind::Refused => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hook_stands_twice_and_the_runtime_s_functions_lead_somewhere() {
        let mut names: Vec<&str> = HOOKS.iter().map(|hook| hook.symbol).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let unanalyzed: Vec<&str> =
            UNANALYZED_FUNCTIONS.split(|end: char| !end.is_alphanumeric() && end != '_').collect();
        for (name, driver) in RUNTIME {
            let known = names.contains(driver)
                || unanalyzed.contains(driver)
                || NOT_HOOKED.iter().any(|(names, _)| names.contains(driver));
            assert!(known, "{name} ends in {driver}, which is not in the list");
        }
    }
}
