//! The suite `cuda-headers`: cuda-sys, the hooks, the simulated runtime and the handlers against NVIDIA's own headers. See
//! ffi-tests/cuda-headers.

use anyhow::Result;
use serde_json::{Value, json};

use super::context::{Context, Needs};
use crate::files;
use crate::tools;

/// Everything is compiled or read, and nothing is run.
pub fn run(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    let file = context.workspace.target.join("xtask/cuda-lists.json");
    files::write(&file, lists().to_string())?;
    context.pytest("cuda-headers", Needs::Nothing, &[("LIBBFC_TESTS_CUDA_LISTS", &file)])
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
