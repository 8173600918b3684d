//! What libbfc_preload.so shows the linker and the loader.

use anyhow::{Context as _, Result};

use super::stage::Stage;
use crate::gates::constructors::{Allowed, constructors};
use crate::gates::elf::{self, Dynamic, Exports};
use crate::gates::version;
use crate::hooks;
use crate::install::INTERPOSER;
use crate::suites::context::Context;
use crate::workspace::{Workspace, capture};

/// The gates over nm's and readelf's words on the interposer as it is installed.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let interposer = stage.interposer();
    let said = |workspace: &Workspace, tool: &str, args: &[&str]| {
        capture(workspace.command(tool).args(args).arg(&interposer))
            .with_context(|| format!("{tool} is part of binutils, which comes with the C compiler"))
    };
    let defined = said(&context.workspace, "nm", &["-D", "--defined-only"])?;
    let list = hooks::exports().join("\n");
    let listed = Exports { library: INTERPOSER, listed_in: "preload/src/hook_list.rs", list: &list };
    context.gate(&format!("{INTERPOSER}: dlsym and the hooks, no others"), &elf::exports(&defined, &listed));

    let undefined = said(&context.workspace, "nm", &["-D", "--undefined-only"])?;
    let (major, minor) = elf::NEWEST_GLIBC;
    let wrong = elf::glibc(&undefined, elf::NEWEST_GLIBC);
    context.gate(&format!("{INTERPOSER} runs with glibc {major}.{minor}"), &wrong);

    let library = version::soname(&context.workspace.version);
    let soname = library.replace("libbfc.so", INTERPOSER);
    let expected =
        Dynamic { library: INTERPOSER, soname: &soname, runpath: Some("$ORIGIN"), needed: &[&library] };
    let dynamic = said(&context.workspace, "readelf", &["-dW"])?;
    let wrong = elf::dynamic(&dynamic, &expected);
    context.gate(&format!("{INTERPOSER}: SONAME, NODELETE, NOW, RUNPATH, what is loaded"), &wrong);

    let [sections, relocations, symbols] =
        ["-SW", "-rW", "-sW"].map(|flag| said(&context.workspace, "readelf", &[flag]));
    let (sections, relocations, symbols) = (sections?, relocations?, symbols?);
    for allowed in [BEGINNING, END] {
        let wrong = constructors(&sections, &relocations, &symbols, &allowed);
        context.gate(&format!("{INTERPOSER}: {} is ours only", allowed.section), &wrong);
    }
    Ok(())
}

/// Beside ours: the compiler's, which register frames, and that of Rust's standard library, which notes the arguments.
const BEGINNING: Allowed<'_> = Allowed {
    section: ".init_array",
    names: &["frame_dummy", "3std3sys4args"],
    ours: "11bfc_preload9lifecycle6loaded",
};

const END: Allowed<'_> = Allowed {
    section: ".fini_array",
    names: &["__do_global_dtors_aux"],
    ours: "11bfc_preload9lifecycle8unloaded",
};
