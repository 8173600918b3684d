//! The suite `cuda-headers`: cuda-sys, the hooks, the simulated runtime and the handlers against NVIDIA's own headers. See
//! ffi-tests/cuda-headers; the hooks are compared here, by the functions that write their page.

use anyhow::Result;
use serde_json::{Value, json};

use super::context::Context;
use crate::cuda_headers::{self, Headers};
use crate::files;
use crate::hooks;
use crate::pages::owned::Owned;
use crate::tools;

/// Fetches the headers if need be.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let found = cuda_headers::find(&context.workspace);
    let Some(versions) = context.or_skip("all of it", found)? else { return Ok(()) };
    for headers in &versions {
        of_hooks(context, headers)?;
    }
    let file = context.workspace.target.join("xtask/cuda-lists.json");
    files::write(&file, lists().to_string())?;
    let pages = Owned::of_suite(&context.workspace, "cuda-headers")?;
    context.pytest_with("cuda-headers", &[("BFC_TESTS_CUDA_LISTS", file)])?;
    if context.arguments.is_empty() {
        context.all_ran(&pages);
    }
    Ok(())
}

/// The hooks and their page know every function of a version's headers that concerns them.
fn of_hooks(context: &mut Context, Headers { major, include }: &Headers) -> Result<()> {
    for header in ["cuda.h", "cuda_runtime_api.h"] {
        let text = files::read(&include.join(header))?;
        let name = format!(
            "CUDA {major}: {}, on every function of {header} that gives memory or begins a capture",
            hooks::PAGE
        );
        context.gate(&name, &hooks::missing(&text, &hooks::page()));
    }
    let text = files::read(&include.join("cuda.h"))?;
    let name = format!(
        "CUDA {major}: every function of cuda.h that copies, fills, maps or changes nodes of graphs is hooked or harmless"
    );
    context.gate(&name, &hooks::unseen(&text));
    if *major == 13 {
        let typedefs = files::read(&include.join("cudaTypedefs.h"))?;
        context.gate("versions of functions that are not analysed", &hooks::unknown_versions(&typedefs));
    }
    Ok(())
}

/// The lists of cuda-sys for Python.
fn lists() -> Value {
    let functions = cuda_sys::FUNCTIONS.iter().map(|function| {
        let arguments: Vec<_> = function.arguments.iter().map(|(_, rust)| rust).collect();
        let cuda_sys::Function { symbol, name, since, twin, .. } = function;
        json!({"symbol": symbol, "name": name, "since": since, "twin": twin, "arguments": arguments})
    });
    let types = [cuda_sys::TYPES, cuda_sys::HANDLES].concat();
    let types = types.iter().map(|item| json!({"name": item.name, "size": item.size}));
    let structs = cuda_sys::STRUCTS.iter().map(|item| {
        let fields = item
            .fields
            .iter()
            .map(|field| json!({"name": field.name, "offset": field.offset, "size": field.size}));
        let cuda_sys::Struct { name, size, alignment, .. } = item;
        json!({"name": name, "size": size, "alignment": alignment, "fields": fields.collect::<Vec<_>>()})
    });
    let constants = cuda_sys::CONSTANTS.iter().map(|item| json!({"name": item.name, "value": item.value}));
    json!({
        "functions": functions.collect::<Vec<_>>(),
        "types": types.collect::<Vec<_>>(),
        "structs": structs.collect::<Vec<_>>(),
        "constants": constants.collect::<Vec<_>>(),
    })
}
