//! `bfc info`: which library, what it can do here, and what steers it.

use anyhow::Result;

use crate::device::probe;
use crate::environment::Resolved;
use crate::library::{CallError, Library};
use crate::output::{Output, table};

/// Ordinals as the contract lays them out: 0 is a device, 256 the host, 258 the caller's own.
const BACKENDS: [(&str, u32, i32); 7] = [
    ("auto, device 0", bfc_sys::BFC_BACKEND_AUTO, 0),
    ("auto, host (256)", bfc_sys::BFC_BACKEND_AUTO, 256),
    ("host", bfc_sys::BFC_BACKEND_HOST, 258),
    ("host-vmm", bfc_sys::BFC_BACKEND_HOST_VMM, 258),
    ("custom", bfc_sys::BFC_BACKEND_CUSTOM, 258),
    ("cuda, device 0", bfc_sys::BFC_BACKEND_CUDA, 0),
    ("cuda-vmm, device 0", bfc_sys::BFC_BACKEND_CUDA_VMM, 0),
];

/// Prints all of it.
pub fn info(library: &Library, output: &mut Output) -> Result<()> {
    let path = library.path.display().to_string();
    output.write(&table("library", &[("path", path), ("version", library.version())]))?;

    let rows = BACKENDS.map(|(name, backend, ordinal)| {
        let answer = match probe(library, backend, ordinal) {
            Ok(()) => "yes".to_owned(),
            Err(reason) => format!("no: {}", in_short(&reason)),
        };
        (name, answer)
    });
    output.write(&table("\nbackends that can be created here", &rows))?;

    let resolved = Resolved::defaults(library)?;
    let rows = resolved.remarks();
    let text = table("\nenvironment", &rows);
    output.write(&if rows.is_empty() { text + "  no BFC_ variable is set\n" } else { text })
}

/// Only the reason where a backend is not there: a table has no room for advice to programs, in each row.
fn in_short(error: &anyhow::Error) -> String {
    match error.downcast_ref::<CallError>() {
        Some(call) if call.status == bfc_sys::BFC_ERROR_BACKEND_UNAVAILABLE => call.reason().to_owned(),
        _ => format!("{error:#}"),
    }
}
