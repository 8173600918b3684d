//! `cargo xtask hooks`: docs/hooks.md is made from the interposer's one list of hooks.

#[path = "../../preload/src/hook_list.rs"]
mod hook_list;
#[path = "../../preload/src/unanalyzed_list.rs"]
mod unanalyzed_list;

use std::fmt::Write;

use anyhow::Result;

use self::hook_list::{HookKind, NOT_HOOKED, RUNTIME};
use crate::files;
use crate::workspace::Workspace;

/// Where the page lies in the source.
pub const PAGE: &str = "docs/hooks.md";

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

/// A hook of a function that is not analysed.
struct Unanalyzed {
    symbol: &'static str,
    name: &'static str,
    since: i32,
    why: &'static str,
}

macro_rules! unanalyzed_rows {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        const UNANALYZED: &[Unanalyzed] =
            &[$(Unanalyzed { symbol: stringify!($symbol), name: $name, since: $since, why: $why },)*];
    };
}
unanalyzed_list::unanalyzed!(unanalyzed_rows);

/// Writes the page, and says whether anything changed.
pub fn write(workspace: &Workspace) -> Result<()> {
    let path = workspace.path(PAGE);
    let page = page();
    if path.exists() && files::read(&path)? == page {
        println!("{PAGE} is up to date");
        return Ok(());
    }
    files::write(&path, page)?;
    println!("{PAGE} is new");
    Ok(())
}

/// What libbfc_preload.so exports: the hooks, and the function by which programs look them up.
pub fn exports() -> Vec<&'static str> {
    let mut names: Vec<&str> = HOOKS.iter().map(|hook| hook.symbol).collect();
    names.extend(UNANALYZED.iter().map(|hook| hook.symbol));
    names.push("dlsym");
    names
}

/// The page as it has to be.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    page += "\n## What the driver is asked for\n\n| function | | why |\n|---|---|---|\n";
    for hook in HOOKS {
        let _ = writeln!(page, "| `{}` | {} | {} |", hook.symbol, in_words(hook.kind), hook.why);
    }
    page += UNANALYZED_FUNCTIONS;
    for hook in UNANALYZED {
        let _ = writeln!(page, "| `{}` | {} |", hook.symbol, hook.why);
    }
    page += HARMLESS_FUNCTIONS;
    for (names, why) in unanalyzed_list::HARMLESS {
        let names: Vec<String> = names.split(' ').map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| {} | {why} |", names.join(", "));
    }
    page +=
        "\n## What has no hook\n\nThese give, take or map memory too, and go to the driver as they are.\n\n";
    page += "| functions | why |\n|---|---|\n";
    for (names, why) in NOT_HOOKED {
        let names: Vec<String> = names.split(' ').map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| {} | {why} |", names.join(", "));
    }
    page += "\n## What the runtime is asked for\n\nIts functions are not hooked: what counts is where they end.\n\n";
    page += "| function | ends in | |\n|---|---|---|\n";
    for (name, driver) in RUNTIME {
        let kind = HOOKS.iter().find(|hook| hook.symbol == *driver).map(|hook| in_words(hook.kind));
        let _ = writeln!(page, "| `{name}` | `{driver}` | {} |", kind.unwrap_or("passed through, no hook"));
    }
    page
}

/// Parts of the names of functions that give, take or map memory, or begin or end a capture.
const PARTS: [&str; 28] = [
    "Alloc",
    "Malloc",
    "Free",
    "ArrayCreate",
    "Array3DCreate",
    "ArrayDestroy",
    "MemCreate",
    "MemMap",
    "Unmap",
    "MemRelease",
    "MemPoolCreate",
    "MemPoolDestroy",
    "MemPoolTrimTo",
    "MemPoolImport",
    "MemHandle",
    "HostRegister",
    "HostUnregister",
    "AddressReserve",
    "ExternalMemory",
    "GraphMemTrim",
    "BindMem",
    "BindAddr",
    "Unbind",
    "MapResources",
    "GetMappedPointer",
    "BeginCapture",
    "BeginRecapture",
    "EndCapture",
];

/// Parts of the names of those that only ask or set, and of the exceptions.
const QUESTIONS: [&str; 4] = ["Get", "Set", "Retain", "Params"];
const NO_QUESTIONS: [&str; 2] = ["MemHandle", "GetMapped"];

/// Whether a function gives, takes or maps memory, or begins or ends a capture, by its name.
fn concerns(name: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    name.starts_with("cu") && has(&PARTS) && (!has(&QUESTIONS) || has(&NO_QUESTIONS))
}

/// The symbol that a program is linked to where a header of NVIDIA's has a function, and whether there is a twin of it
/// for the per-thread default stream: `#define cuMemAlloc cuMemAlloc_v2`, or `__CUDA_API_PTSZ(cuMemFreeAsync)`.
fn symbol<'a>(header: &'a str, name: &'a str) -> (&'a str, bool) {
    let definition = header.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix("#define ")?.trim_start();
        rest.strip_prefix(name)?.strip_prefix([' ', '\t'])
    });
    let Some(target) =
        definition.map(str::trim).filter(|target| target.contains("cu") || target.contains("PT"))
    else {
        return (name, false);
    };
    match target.split_once('(') {
        Some((_, inner)) => (inner.trim_end_matches(')').trim(), true),
        None => (target, false),
    }
}

/// What a header of NVIDIA's has that gives, takes or maps memory, or begins or ends a capture, and of which the page says
/// nothing: of the runtime's header functions, of the driver's the symbols, and the twins of hooks.
pub fn missing(header: &str, page: &str) -> Vec<String> {
    // A declaration; what comments name is not always a function.
    let declared = ["CUDAAPI ", "CUDARTAPI "].into_iter().flat_map(|word| header.split(word).skip(1));
    let called = declared.filter_map(|rest| Some(rest.split_once('(')?.0.trim()));
    let mut wanted = Vec::new();
    for name in called.filter(|name| concerns(name)) {
        if name.starts_with("cuda") {
            wanted.push(name.trim_end_matches("_ptsz").trim_end_matches("_ptds").to_owned());
            continue;
        }
        let (symbol, has_twin) = symbol(header, name);
        if has_twin && HOOKS.iter().any(|hook| hook.symbol == symbol) {
            wanted.push(format!("{symbol}_ptsz"));
        }
        wanted.push(symbol.to_owned());
    }
    wanted.sort_unstable();
    wanted.dedup();
    if wanted.is_empty() {
        return vec!["the header has no function that gives memory".to_owned()];
    }
    let unknown = wanted.into_iter().filter(|name| !page.contains(&format!("`{name}`")));
    unknown.map(|name| format!("{name} is not in preload/src/hook_list.rs")).collect()
}

/// What a header of the driver's has through which work may touch memory, and which is neither hooked nor known to be
/// harmless. The other symbols are those of an older interface, which the header declares by their own names.
pub fn unseen(header: &str) -> Vec<String> {
    let declared = header.split("CUDAAPI ").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.trim()));
    let mut wanted = Vec::new();
    for name in declared.filter(|name| unanalyzed_list::may_touch(name)) {
        let (symbol, _) = symbol(header, name);
        wanted.push(symbol.to_owned());
        wanted.push(name.to_owned());
        wanted.extend(twin(header, symbol));
    }
    wanted.sort_unstable();
    wanted.dedup();
    if wanted.is_empty() {
        return vec!["the header has no function that touches memory".to_owned()];
    }
    let exports = exports();
    wanted.retain(|symbol| !exports.contains(&&**symbol) && !unanalyzed_list::is_harmless(symbol));
    wanted.into_iter().map(|symbol| format!("{symbol} is not in preload/src/unanalyzed_list.rs")).collect()
}

/// The twin of a symbol for the per-thread default stream, if a header has one.
fn twin(header: &str, symbol: &str) -> Option<String> {
    let has = |macro_name: &str| header.contains(&format!("{macro_name}({symbol})"));
    let suffix = [("__CUDA_API_PTSZ", "_ptsz"), ("__CUDA_API_PTDS", "_ptds")];
    suffix.into_iter().find(|(name, _)| has(name)).map(|(_, suffix)| format!("{symbol}{suffix}"))
}

/// The versions of functions that are not analysed that cudaTypedefs.h does not have.
pub fn unknown_versions(typedefs: &str) -> Vec<String> {
    let types = UNANALYZED.iter().map(|hook| {
        let suffix = ["_ptsz", "_ptds"].into_iter().find(|suffix| hook.symbol.ends_with(suffix));
        let version = if suffix.is_some() { hook.since.max(7000) } else { hook.since };
        format!("PFN_{}_v{version}{}", hook.name, suffix.unwrap_or_default())
    });
    let unknown = types.filter(|name| !typedefs.contains(&format!("*{name})")));
    unknown.map(|name| format!("{name} is not in cudaTypedefs.h")).collect()
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
        let mut names = exports();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for (name, driver) in RUNTIME {
            let known = names.contains(driver) || NOT_HOOKED.iter().any(|(names, _)| names.contains(driver));
            assert!(known, "{name} ends in {driver}, of which the list says nothing");
        }
    }

    #[test]
    fn a_function_of_which_the_page_says_nothing_is_found() {
        let header = "cudaError_t CUDARTAPI cudaMalloc(void **); CUresult CUDAAPI cuMemNewAlloc (int);\n\
                      CUresult CUDAAPI cuMemAllocGetParams(void); /* and cuNotAlloc() */";
        assert_eq!(missing(header, &page()), ["cuMemNewAlloc is not in preload/src/hook_list.rs"]);
        assert_eq!(missing("int f(void);", &page()).len(), 1);
    }

    /// A later version of a function by its old name, a beginning of captures, and the twin of a hook.
    #[test]
    fn later_symbols_captures_and_twins_are_found() {
        let header = "#define cuMemAlloc                          cuMemAlloc_v3\n\
                      #define cuMemFree  cuMemFree_v2\n\
                      #define cuStreamBeginCaptureToMoon  __CUDA_API_PTSZ(cuStreamBeginCaptureToMoon_v2)\n\
                      #define cuCtxNothing cuCtxNothing_v2\n\
                      CUresult CUDAAPI cuMemAlloc(CUdeviceptr *, size_t); CUresult CUDAAPI cuMemFree(CUdeviceptr);\n\
                      CUresult CUDAAPI cuStreamBeginCaptureToMoon(CUstream); CUresult CUDAAPI cuCtxNothing(void);";
        let complaints = missing(header, &page());
        assert_eq!(
            complaints,
            ["cuMemAlloc_v3", "cuStreamBeginCaptureToMoon_v2"]
                .map(|name| format!("{name} is not in preload/src/hook_list.rs"))
        );
        let header = "#define cuStreamEndCapture __CUDA_API_PTSZ(cuStreamEndCapture)\n\
                      CUresult CUDAAPI cuStreamEndCapture(CUstream, CUgraph *);";
        assert!(missing(header, &page()).is_empty());
        let without = page().replace("`cuStreamEndCapture_ptsz`", "");
        assert_eq!(missing(header, &without), ["cuStreamEndCapture_ptsz is not in preload/src/hook_list.rs"]);
    }

    #[test]
    fn a_new_function_that_touches_memory_is_found() {
        let header = "#define cuMemcpyBatchAsync __CUDA_API_PTSZ(cuMemcpyBatchAsync_v3)\n\
                      #define cuGraphLaunch  __CUDA_API_PTSZ(cuGraphLaunch)\n\
                      CUresult CUDAAPI cuMemcpyBatchAsync(int); CUresult CUDAAPI cuGraphLaunch(int);\n\
                      CUresult CUDAAPI cuMemcpyToMoon(int); CUresult CUDAAPI cuGraphAddMoonNode(int);\n\
                      CUresult CUDAAPI cuMemPrefetchAsync(int); CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(int);";
        let expected =
            ["cuGraphAddMoonNode", "cuMemcpyBatchAsync_v3", "cuMemcpyBatchAsync_v3_ptsz", "cuMemcpyToMoon"];
        assert_eq!(
            unseen(header),
            expected.map(|name| format!("{name} is not in preload/src/unanalyzed_list.rs"))
        );
        assert_eq!(unseen("int f(void);").len(), 1);
        assert_eq!(unknown_versions("").len(), UNANALYZED.len());
    }

    #[test]
    fn the_page_says_what_becomes_of_cudamalloc() {
        assert!(page().contains("| `cudaMalloc` | `cuMemAlloc_v2` | pooled |\n"), "{}", page());
    }
}
