//! `bfc info`: which library, what it can do here, and what steers it.

use anyhow::Result;

use crate::device::{probe, steering_environment};
use crate::ffi;
use crate::library::{LIBRARY_VARIABLE, Library};
use crate::output::{Output, table};

/// Ordinals as the contract lays them out: 0 is a device, 256 the host, 258 the caller's own.
const BACKENDS: [(&str, u32, i32); 7] = [
    ("auto, device 0", ffi::BACKEND_AUTO, 0),
    ("auto, host (256)", ffi::BACKEND_AUTO, 256),
    ("host", ffi::BACKEND_HOST, 258),
    ("host-vmm", ffi::BACKEND_HOST_VMM, 258),
    ("custom", ffi::BACKEND_CUSTOM, 258),
    ("cuda, device 0", ffi::BACKEND_CUDA, 0),
    ("cuda-vmm, device 0", ffi::BACKEND_CUDA_VMM, 0),
];

/// Prints all of it.
pub fn info(library: &Library, output: &mut Output) -> Result<()> {
    let path = library.path.display().to_string();
    output.write(&table("library", &[("path", path), ("version", library.version())]))?;

    let rows = BACKENDS.map(|(name, backend, ordinal)| {
        let answer = match probe(library, backend, ordinal) {
            Ok(()) => "yes".to_owned(),
            Err(reason) => format!("no: {reason:#}"),
        };
        (name, answer)
    });
    output.write(&table("\nbackends that can be created here", &rows))?;

    let mut variables = steering_environment();
    variables.extend(std::env::var(LIBRARY_VARIABLE).ok().map(|value| (LIBRARY_VARIABLE.to_owned(), value)));
    let rows: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let text = table("\nenvironment", &rows);
    output.write(&if rows.is_empty() { text + "  no BFC_ variable is set\n" } else { text })
}
