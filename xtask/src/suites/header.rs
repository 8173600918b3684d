//! The suite `header`: bfc.h, bfc_adapters.h and bfc.hpp, as a compiler sees them.

use std::ffi::OsString;

use anyhow::{Result, ensure};

use super::context::{Context, Count};
use crate::bindings::{self, Generated};
use crate::files;
use crate::gates::header;
use crate::header::{ADAPTERS, Header};
use crate::tools;

/// The checked-in headers against the generated ones, then the headers by themselves, and included twice.
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

    let c: (OsString, _, _) = (tools::c_compiler(), "c", "c11");
    let cxx = (tools::cxx_compiler(), "c++", "c++17");
    for (file, (compiler, language, standard)) in [
        ("bfc.h", &c),
        ("bfc.h", &cxx),
        (ADAPTERS, &c),
        (ADAPTERS, &cxx),
        ("bfc.hpp", &cxx),
        ("bfc/pmr.hpp", &cxx),
    ] {
        if !tools::works(compiler) {
            let why = format!("there is no {}", compiler.display());
            context.skip(&format!("{file} as {standard}"), &why);
            continue;
        }
        for times in [1, 2] {
            let text = format!("#include \"{file}\"\n").repeat(times);
            let source = context.workspace.target.join("xtask/header.c");
            files::write(&source, text)?;
            let mut command = context.workspace.command(compiler);
            command.arg(format!("-std={standard}"));
            command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
            command.arg("-I").arg(&include);
            command.args(["-x", language]).arg(&source);
            let how = ["", " included twice"][times - 1];
            context.program(&format!("{file}{how} as {standard}"), command, Count::One)?;
        }
    }
    Ok(())
}
