//! Linking by the pkg-config file: with the shared library, with the archive, and wholly statically; and the
//! interposer that it names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::context::Context;
use super::package;
use crate::files;
use crate::install::{self, pkg_config};
use crate::workspace::{Workspace, capture};

/// How to link.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Archive,
    Static,
}

/// Links the probe in each way and runs it. `state` is what became of the tree, for the tests' names.
pub fn run(context: &mut Context, prefix: &Path, state: &str) -> Result<()> {
    let tool = files::program("pkg-config");
    if tool.is_none() {
        let why = "it is not installed (Debian: apt-get install pkg-config); xtask reads bfc.pc itself";
        context.skip("pkg-config", why);
    }
    let ways =
        [("a shared link", Link::Shared), ("the archive", Link::Archive), ("a static program", Link::Static)];
    for (words, link) in ways {
        let name = format!("pkg-config, {state}: {words}");
        context.check(&name, |workspace| {
            let mut flags = match &tool {
                Some(tool) => asked(workspace, tool, prefix, link)?,
                None => read(prefix, link)?,
            };
            match link {
                Link::Shared => {}
                // As bfc.pc says: the one library by its file name.
                Link::Archive => replace(&mut flags, "-lbfc", "-l:libbfc.a")?,
                Link::Static => flags.insert(0, "-static".to_owned()),
            }
            try_out(workspace, &flags, prefix, link)
        });
    }
    context.check(&format!("pkg-config, {state}: the interposer"), |workspace| {
        let path = interposer(workspace, tool.as_deref(), prefix)?;
        preloaded(workspace, &path, prefix)
    });
    Ok(())
}

fn interposer(workspace: &Workspace, tool: Option<&Path>, prefix: &Path) -> Result<PathBuf> {
    let file = prefix.join(install::PKG_CONFIG_FILE);
    let folder = file.parent().unwrap_or(prefix);
    let path = match tool {
        Some(tool) => {
            let mut command = workspace.command(tool);
            command.env("PKG_CONFIG_PATH", folder).args(["--variable=preload_library", "bfc"]);
            capture(&mut command)?
        }
        None => pkg_config::variable(&files::read(&file)?, &folder.to_string_lossy(), "preload_library")?,
    };
    Ok(path.trim().into())
}

/// Any program will do: the interposer finds libbfc.so beside itself, and says that it is there.
fn preloaded(workspace: &Workspace, interposer: &Path, prefix: &Path) -> Result<()> {
    let check = workspace.target.join("xtask/interposer.check");
    files::remove(&check)?;
    let mut command = workspace.command(prefix.join("bin/bfc"));
    command.arg("--version").env("LD_PRELOAD", interposer).env("BFC_PRELOAD_CHECK", &check);
    capture(&mut command)?;
    let said = if check.exists() { files::read(&check)? } else { String::new() };
    if !said.contains(" loaded ") {
        bail!("{} was not loaded: {said}", interposer.display());
    }
    Ok(())
}

fn asked(workspace: &Workspace, tool: &Path, prefix: &Path, link: Link) -> Result<Vec<String>> {
    let mut command = workspace.command(tool);
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    command.args(["--cflags", "--libs"]);
    if link != Link::Shared {
        command.arg("--static");
    }
    let said = capture(command.arg("bfc"))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

fn read(prefix: &Path, link: Link) -> Result<Vec<String>> {
    let file = prefix.join(install::PKG_CONFIG_FILE);
    let folder = file.parent().unwrap_or(prefix).to_string_lossy();
    pkg_config::flags(&files::read(&file)?, &folder, link != Link::Shared)
}

fn replace(flags: &mut [String], old: &str, new: &str) -> Result<()> {
    let Some(flag) = flags.iter_mut().find(|flag| *flag == old) else {
        bail!("there is no {old} among {flags:?}");
    };
    *flag = new.to_owned();
    Ok(())
}

fn try_out(workspace: &Workspace, flags: &[String], prefix: &Path, link: Link) -> Result<()> {
    let lib = prefix.join("lib");
    let shared = link == Link::Shared;
    let executable = package::compile_probe(workspace, "pkg-config", flags)?;
    let dynamic = capture(workspace.command("readelf").arg("-dW").arg(&executable))?;
    if dynamic.contains("[libbfc.so.") != shared {
        bail!("the program is linked the other way:\n{dynamic}");
    }
    let mut command = workspace.command(&executable);
    if shared {
        command.env("LD_LIBRARY_PATH", &lib);
    }
    let version = &workspace.version;
    let said = capture(&mut command)?;
    if said.trim() != format!("{version} {version}") {
        bail!("it printed {said}");
    }
    Ok(())
}
