//! `bfc info`: the library in use, the backends that work here, and the variables that control it.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::device::probe;
use crate::environment::{Cost, Resolved, Variable};
use crate::library::{CallError, Library};
use crate::output::{Output, progress, table};

/// The arguments of `bfc info`.
#[derive(Args)]
pub struct Info {
    /// Print one JSON document instead of tables (fields: bfc info --help)
    #[arg(long)]
    json: bool,
}

/// Shown after the options of `bfc info`.
pub const EXAMPLES: &str = "\
Examples:
  bfc info                            can libbfc use this machine's GPU?
  bfc info --json                     machine-readable output
  BFC_MEMORY_LIMIT=8GB bfc info       the effect of a variable";

/// Shown after the examples by `bfc info --help`.
pub const SCHEMA: &str = "\
The JSON document of --json (fields may be added):
  schema         \"bfc-info/1\"
  library        path, version
  backends[]     backend (auto, host, host-vmm, custom, cuda or cuda-vmm), device (the ordinal
                 it was tried on), available (whether an allocation succeeded), reason (why
                 not, or null)
  environment[]  the BFC_ variables that are set: name, value, used (whether it determines a
                 setting of an allocator without options), remark (the effect of a value that
                 is not simply used, or null)
  costs[]        the settings that make an allocator without options hold more memory than
                 most programs need: setting, effect, advice (what to set instead)";

/// Ordinals as the contract lays them out: 0 is a device, 256 the host, 258 the caller's own.
const BACKENDS: [(&str, &str, u32, i32); 7] = [
    ("auto, device 0", "auto", bfc_sys::BFC_BACKEND_AUTO, 0),
    ("auto, host (256)", "auto", bfc_sys::BFC_BACKEND_AUTO, 256),
    ("host", "host", bfc_sys::BFC_BACKEND_HOST, 258),
    ("host-vmm", "host-vmm", bfc_sys::BFC_BACKEND_HOST_VMM, 258),
    ("custom", "custom", bfc_sys::BFC_BACKEND_CUSTOM, 258),
    ("cuda, device 0", "cuda", bfc_sys::BFC_BACKEND_CUDA, 0),
    ("cuda-vmm, device 0", "cuda-vmm", bfc_sys::BFC_BACKEND_CUDA_VMM, 0),
];

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    library: LibraryInfo,
    backends: Vec<Probed>,
    environment: &'a [Variable],
    costs: &'a [Cost],
}

#[derive(Serialize)]
struct LibraryInfo {
    path: String,
    version: String,
}

/// A backend, and whether it works here.
#[derive(Serialize)]
struct Probed {
    #[serde(skip)]
    label: &'static str,
    backend: &'static str,
    device: i32,
    available: bool,
    reason: Option<String>,
}

/// Prints all of it.
pub fn info(args: &Info, library: &Library, output: &mut Output) -> Result<()> {
    let found = LibraryInfo { path: library.path.display().to_string(), version: library.version() };
    let resolved = Resolved::defaults(library)?;
    let environment = resolved.variables();
    if args.json {
        let (backends, costs) = (probe_all(library), resolved.costs());
        let document = Document { schema: "bfc-info/1", library: found, backends, environment, costs };
        return output.write_json(&document);
    }
    output.write(&table("library", &[("path", found.path), ("version", found.version)]))?;

    let rows: Vec<_> = probe_all(library)
        .into_iter()
        .map(|Probed { label, reason, .. }| {
            (label, reason.map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}")))
        })
        .collect();
    output.write(&table("\nbackends that can be created here", &rows))?;

    let rows = resolved.remarks();
    let text = table("\nenvironment", &rows);
    output.write(&if rows.is_empty() { text + "  no BFC_ variable is set\n" } else { text })?;

    let rows = resolved.advice();
    let heading = "\nsettings that hold more memory than most programs need";
    if rows.is_empty() { Ok(()) } else { output.write(&table(heading, &rows)) }
}

/// Tries each backend. A driver may take seconds to start.
fn probe_all(library: &Library) -> Vec<Probed> {
    let bar = progress(false, Some(BACKENDS.len() as u64), "{msg} {wide_bar} {pos}/{len}");
    let probed = BACKENDS.map(|(label, backend, number, device)| {
        bar.set_message(format!("trying {label}"));
        bar.tick();
        let reason = probe(library, number, device).err().map(|reason| in_short(&reason));
        bar.inc(1);
        Probed { label, backend, device, available: reason.is_none(), reason }
    });
    bar.finish_and_clear();
    probed.into()
}

/// Only the reason why a backend is unavailable: a table has no room for advice to programs in each row.
fn in_short(error: &anyhow::Error) -> String {
    match error.downcast_ref::<CallError>() {
        Some(call) if call.status == bfc_sys::BFC_ERROR_BACKEND_UNAVAILABLE => call.reason().to_owned(),
        _ => format!("{error:#}"),
    }
}
