//! Building for another machine, and the differences of an installation for one.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::workspace::Workspace;

/// Builds for a target, which is checked before anything is compiled.
pub fn build(workspace: &Workspace, profile: Profile, triple: &str) -> Result<Built> {
    check(triple).with_context(|| format!("cannot build for {triple}"))?;
    let command = || cargo::cargo(workspace, &["build", "--target", triple]);
    cargo::build_by(workspace, profile, command).with_context(|| {
        let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
        format!("cannot build for {triple}: if the linker is the wrong one, set {variable}")
    })
}

fn check(triple: &str) -> Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let ask = |words: &[&str]| {
        let mut command = Command::new(&rustc);
        let output = command.args(words).stdin(Stdio::null()).output().context("cannot start rustc")?;
        let text = String::from_utf8(output.stdout).context("rustc did not print text")?;
        anyhow::Ok(output.status.success().then_some(text))
    };
    let Some(properties) = ask(&["--print", "cfg", "--target", triple])? else {
        bail!("rustc has no such target; `rustc --print target-list` lists them");
    };
    let has = |property: &&str| properties.lines().any(|line| line == *property);
    let needed = ["target_os=\"linux\"", "target_pointer_width=\"64\"", "target_env=\"gnu\""];
    ensure!(needed.iter().all(has), "libbfc supports 64-bit Linux with glibc only");
    let sysroot = ask(&["--print", "sysroot"])?.context("rustc has no sysroot")?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(triple).join("lib");
    ensure!(library.exists(), "its standard library is not installed: rustup target add {triple}");
    Ok(())
}

/// The processor of a library, by CMake's name. Read from the file, because cargo's configuration may name a target
/// too.
pub fn processor(library: &Path) -> Result<&'static str> {
    let head = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let machine = match head.get(..20) {
        Some([b'\x7f', b'E', b'L', b'F', _, 2, .., high, low]) => u16::from_be_bytes([*high, *low]),
        Some([b'\x7f', b'E', b'L', b'F', .., low, high]) => u16::from_le_bytes([*low, *high]),
        _ => bail!("{} is no ELF file", library.display()),
    };
    Ok(match machine {
        21 => "ppc64le",
        22 => "s390x",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        258 => "loongarch64",
        _ => bail!("{} is for the unknown ELF machine {machine}", library.display()),
    })
}

/// The program that removes debug information from libraries for a processor, if there is one.
pub fn strip(processor: &str) -> Option<PathBuf> {
    if processor == ARCH {
        return files::program("strip");
    }
    let names = [format!("{processor}-linux-gnu-strip"), "llvm-strip".to_owned()];
    names.iter().find_map(|name| files::program(name))
}

/// The bfc command as a program for this machine, because one for another machine cannot write its man pages here.
pub fn command(workspace: &Workspace, built: &Built, processor: &str) -> Result<PathBuf> {
    if processor == ARCH {
        return Ok(built.command.clone());
    }
    let mut command = cargo::cargo(workspace, &["build", "--package=bfc-cli"]);
    command.env_remove("CARGO_BUILD_TARGET");
    let files = cargo::artifacts(command)?;
    files.into_iter().find(|path| path.ends_with("bfc")).context("cargo built no bfc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_that_of_the_file() {
        let folder = std::env::temp_dir().join(format!("xtask-cross-{}", std::process::id()));
        let library = folder.join("libbfc.so");
        let of = |endian: u8, machine: [u8; 2]| {
            let head = [b"\x7fELF\x02", &[endian][..], &[0; 12], &machine].concat();
            files::write(&library, head).expect("writable");
            processor(&library).ok()
        };
        assert_eq!(of(1, [183, 0]), Some("aarch64"));
        assert_eq!(of(2, [0, 22]), Some("s390x"));
        assert_eq!(of(1, [40, 0]), None);
        assert_eq!(processor(&std::env::current_exe().expect("this test")).ok(), Some(ARCH));
        files::remove_all(&folder).expect("removed");
    }
}
