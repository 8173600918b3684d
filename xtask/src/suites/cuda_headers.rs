//! The suite `cuda-headers`: cuda-sys, and the handlers with their page, against NVIDIA's own headers.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cuda_sys::Function;

use super::context::Context;
use crate::cuda_headers::{self, Headers, Lists};
use crate::files;
use crate::hooks;
use crate::pages::owned::Owned;
use crate::tools;
use crate::workspace::{Ended, Workspace};

/// Compiles the lists against each version, and lists with a fault, which must not compile.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let Some(versions) = context.or_skip("all of it", cuda_headers::find(&context.workspace))? else {
        return Ok(());
    };
    let lists = Lists::new();
    for headers in &versions {
        let major = headers.major;
        let [functions, types, structs, constants] =
            [lists.functions.len(), lists.types.len(), lists.structs.len(), lists.constants.len()];
        for (symbol, why) in lists.absent(major) {
            context.skip(&format!("{symbol} of CUDA {major}"), why);
        }
        let what = format!(
            "CUDA {major}: {functions} functions, {types} types, {structs} structs, {constants} constants"
        );
        context.check(&what, |workspace| {
            let ended = compile(workspace, headers, &lists, "lists")?;
            if !ended.success {
                bail!("{}", ended.complaint());
            }
            Ok(())
        });
        for header in ["cuda.h", "cuda_runtime_api.h"] {
            let text = files::read(&headers.include.join(header))?;
            let name = format!(
                "CUDA {major}: {}, on every function of {header} that gives memory or begins a capture",
                hooks::PAGE
            );
            context.gate(&name, &hooks::missing(&text, &hooks::page()));
        }
        let text = files::read(&headers.include.join("cuda.h"))?;
        let name = format!(
            "CUDA {major}: every function of cuda.h that copies, fills, maps or changes nodes of graphs is hooked or harmless"
        );
        context.gate(&name, &hooks::unseen(&text));
        for (fault, put) in FAULTS {
            context.check(&format!("CUDA {major}: found: {fault}"), |workspace| {
                let mut lists = lists.clone();
                let complaint = put(&mut lists)?;
                found_it(&compile(workspace, headers, &lists, fault)?, complaint)
            });
        }
    }
    newest(context, &versions)?;
    handlers(context, &versions)
}

/// The interposer stands before functions of the versions that were looked at, and of no later ones: the list says which
/// version that is, the headers are of it, and NVIDIA has published none since.
fn newest(context: &mut Context, versions: &[Headers]) -> Result<()> {
    let newest = versions.last().context("there are headers")?;
    let text = files::read(&newest.include.join("cuda.h"))?;
    let typedefs = files::read(&newest.include.join("cudaTypedefs.h"))?;
    context.gate("versions of functions that are not analysed", &hooks::unknown_versions(&typedefs));
    context.check("cuda_sys::NEWEST_HEADERS is the version of the newest headers", |_| {
        let version = hooks::version(&text).context("cuda.h does not say its version")?;
        if version != cuda_sys::NEWEST_HEADERS {
            bail!("the headers are of {version}, the list says {}", cuda_sys::NEWEST_HEADERS);
        }
        Ok(())
    });
    let published = cuda_headers::published(&context.workspace);
    let Some(published) = context.or_skip("the headers are the newest on PyPI", published)? else {
        return Ok(());
    };
    context.check("the headers are the newest on PyPI", |_| {
        let pinned = cuda_headers::PINNED;
        if published != pinned {
            bail!(
                "PyPI has {published} of {}, these are {pinned}: change xtask/src/cuda_headers/mod.rs, and then \
                 preload/src/hook_list.rs and cuda_sys::NEWEST_HEADERS as this suite says",
                cuda_headers::NEWEST
            );
        }
        Ok(())
    });
    Ok(())
}

/// The functions for cuTensorNet and nvJPEG against their headers.
fn handlers(context: &mut Context, versions: &[Headers]) -> Result<()> {
    let found = cuda_headers::handlers(&context.workspace);
    let Some(folders) = context.or_skip("the handlers of cuTensorNet and nvJPEG", found)? else {
        return Ok(());
    };
    // The headers of 12 want some of nvcc's, which are in the wheels of 13.
    let folders = folders.iter().chain(versions.iter().map(|headers| &headers.include));
    let folders: Vec<&PathBuf> = folders.collect();
    let compile = |workspace: &Workspace, name: &str, source: &Path, fault: Option<&str>| {
        let mut command = workspace.command(tools::c_compiler());
        command
            .args(["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", "-I"])
            .arg(workspace.path("include"));
        for folder in &folders {
            command.arg("-isystem").arg(folder);
        }
        command.args(fault).arg(source);
        workspace.run(name, command)
    };
    let compiles = |workspace: &Workspace, name: &str, source: &Path| {
        let ended = compile(workspace, name, source, None)?;
        if ended.success { Ok(()) } else { bail!("{}", ended.complaint()) }
    };
    let signatures = context.workspace.path("ffi-tests/handlers/signatures.c");
    context.check("the handlers of cuTensorNet and nvJPEG have our types", |workspace| {
        compiles(workspace, "handlers", &signatures)
    });
    context.check("the handlers: found: another type", |workspace| {
        let ended = compile(workspace, "handlers, fault", &signatures, Some("-DFAULT"))?;
        found_it(&ended, "static assertion failed")
    });
    let pages = Owned::of_suite(&context.workspace, "cuda-headers")?;
    for page in &pages {
        for block in &page.blocks {
            context.check(&format!("{}: {} compiles", page.page, block.name), |workspace| {
                compiles(workspace, &format!("handlers {}", block.name), &page.file(&block.name)?)?;
                page.ran(&block.name)
            });
        }
    }
    context.all_ran(&pages);
    Ok(())
}

/// Spoils the lists; gives what the compiler then has to complain about.
type Fault = fn(&mut Lists) -> Result<&'static str>;

const FAULTS: [(&str, Fault); 6] = [
    ("a wrong argument", |lists| {
        alloc(lists)?.arguments = &[("dptr", "*mut CUdeviceptr"), ("bytesize", "c_uint")];
        Ok("__typeof__(&cuMemAlloc_v2)")
    }),
    ("a function that there is not", |lists| {
        alloc(lists)?.symbol = "cuMemAlloc_v9";
        Ok("cuMemAlloc_v9")
    }),
    ("a wrong version", |lists| {
        alloc(lists)?.since = 2000;
        Ok("PFN_cuMemAlloc_v2000")
    }),
    ("a function that is called absent and is there", |lists| {
        lists.absent.extend([12, 13].map(|major| ("cuMemAlloc_v2", major, "a fault")));
        Ok("cuMemAlloc_v2")
    }),
    ("a wrong constant", |lists| {
        let constant = lists.constants.iter_mut().find(|constant| constant.name == "CUDA_ERROR_NOT_READY");
        constant.context("it is in the list")?.value += 1;
        Ok("CUDA_ERROR_NOT_READY")
    }),
    ("a wrong size", |lists| {
        let layout = lists.structs.iter_mut().find(|layout| layout.name == "CUmemAllocationProp");
        layout.context("it is in the list")?.size += 8;
        Ok("sizeof(CUmemAllocationProp)")
    }),
];

fn alloc(lists: &mut Lists) -> Result<&mut Function> {
    let found = lists.functions.iter_mut().find(|function| function.symbol == "cuMemAlloc_v2");
    found.context("cuMemAlloc_v2 is in the list")
}

fn compile(workspace: &Workspace, headers: &Headers, lists: &Lists, name: &str) -> Result<Ended> {
    let name = format!("cuda headers {} {name}", headers.major);
    let source: PathBuf = workspace.target.join("xtask").join(name.replace(' ', "-")).with_extension("c");
    files::write(&source, lists.c_file(headers.major)?)?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=gnu11", "-fsyntax-only", "-fmax-errors=20"]);
    // A system folder: what NVIDIA's headers may be warned of is not our concern.
    command.arg("-isystem").arg(&headers.include).arg(&source);
    workspace.run(&name, command)
}

/// The fault has to be the reason, and not a missing header.
fn found_it(ended: &Ended, complaint: &str) -> Result<()> {
    let says = |words: &str| ended.text.lines().any(|line| line.contains("error:") && line.contains(words));
    if ended.success || !says(complaint) {
        bail!("the compiler does not complain of {complaint}: {}", ended.complaint());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_complaint_counts() {
        let ended = |success, text: &str| Ended {
            success,
            status: "exit status: 1".to_owned(),
            text: text.to_owned(),
            log: "log".into(),
        };
        let error = "x.c:9:1: error: static assertion failed: \"sizeof(X)\"\n";
        assert!(found_it(&ended(false, error), "sizeof(X)").is_ok());
        assert!(found_it(&ended(true, error), "sizeof(X)").is_err());
        assert!(found_it(&ended(false, error), "sizeof(Y)").is_err());
        assert!(found_it(&ended(false, "fatal error: cuda.h: No such file\n"), "sizeof(X)").is_err());
    }
}
