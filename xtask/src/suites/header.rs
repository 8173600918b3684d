//! The suite `header`: what is generated from the C ABI is up to date. That the headers compile is tested by CTest.

use anyhow::{Result, ensure};

use super::context::Context;
use crate::bindings::{self, Generated};
use crate::files;
use crate::gates::header;
use crate::header::Header;

/// The checked-in headers against the generated ones, and what is generated from them.
pub fn run(context: &mut Context) -> Result<()> {
    let include = context.workspace.path("include");
    for Header { name, text } in crate::header::generate(&context.workspace)? {
        let checked_in = files::read(&include.join(name))?;
        let name = format!("include/{name}");
        context
            .gate(&format!("{name} is the generated one"), &header::differences(&name, &checked_in, &text));
    }
    context.check("bfc-sys and Python declare what the headers do", |workspace| {
        for Generated { path, text } in bindings::generate(workspace)? {
            let wrong = header::differences(path, &files::read(&workspace.path(path))?, &text);
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
        Ok(())
    });
    Ok(())
}
