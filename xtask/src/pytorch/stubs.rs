//! Libraries in place of NVIDIA's, which PyTorch is linked with: for each that is missing one that has every symbol that
//! torch's libraries import from it, under the version that they want, and answers 0 to everything.
//!
//! A few functions have to do a little more, give a handle say: they are written by hand in ffi-tests/pytorch/stubs, a
//! file a library. None computes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::files;
use crate::simcuda;
use crate::tools;
use crate::workspace::{Workspace, capture};

/// What NVIDIA's libraries are called, those that PyTorch is linked with.
const OF_NVIDIA: [&str; 3] = ["libcu", "libnv", "libnccl"];

/// Those that the simulation has.
const SIMULATED: [&str; 2] = ["libcuda.so", "libcudart.so"];

/// What some libraries are linked with and import.
#[derive(Default, Debug, PartialEq)]
struct Imports {
    /// SONAMEs.
    needed: BTreeSet<String>,
    /// Symbols with their versions, if they have one.
    symbols: BTreeSet<(String, Option<String>)>,
    /// SONAMEs by the versions of the symbols that they have.
    versions: BTreeMap<String, String>,
}

/// A library to make.
#[derive(Debug, PartialEq)]
struct Stub {
    soname: String,
    /// By version.
    symbols: BTreeMap<Option<String>, BTreeSet<String>>,
}

/// Makes them all, and gives their folder.
pub fn build(workspace: &Workspace, torch: &Path) -> Result<PathBuf> {
    let mut imports = Imports::default();
    let libraries = files::entries(torch)?;
    let is_library = |path: &Path| path.to_string_lossy().contains(".so");
    for library in libraries.iter().filter(|path| path.is_file() && is_library(path)) {
        let mut command = workspace.command("readelf");
        command.arg("-dVW").arg("--dyn-syms").arg(library);
        imports.read(&capture(&mut command)?);
    }
    let folder = workspace.target.join("pytorch/stubs");
    files::remove_all(&folder)?;
    let stubs = imports.stubs();
    if stubs.is_empty() {
        bail!("the libraries in {} are linked with none of NVIDIA's", torch.display());
    }
    for stub in stubs {
        compile(workspace, &folder, &stub)?;
    }
    Ok(folder)
}

impl Imports {
    /// Adds what `readelf -dVW --dyn-syms` says of a library.
    fn read(&mut self, table: &str) {
        let mut file = None;
        for line in table.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, "(NEEDED)", .., name] => {
                    self.needed.insert(name.trim_matches(['[', ']']).to_owned());
                }
                // Num, Value, Size, Type, Bind, Vis, Ndx, Name and perhaps the version's number.
                [number, _, _, _, _, _, "UND", name, ..] if number.ends_with(':') => {
                    let (name, version) = match name.split_once('@') {
                        Some((name, version)) => (name, Some(version.trim_start_matches('@').to_owned())),
                        None => (name, None),
                    };
                    self.symbols.insert((name.to_owned(), version));
                }
                // What the versions are of that follow: needed ones.
                [_, "Version:", _, "File:", name, ..] => file = Some(name.to_owned()),
                [_, "Name:", version, "Flags:", ..] => {
                    if let Some(file) = &file {
                        self.versions.insert(version.to_owned(), file.clone());
                    }
                }
                // Versions that a library has itself begin so.
                ["Version", ..] => file = None,
                _ => (),
            }
        }
    }

    /// The libraries of NVIDIA's, without those that the simulation has.
    fn stubs(&self) -> Vec<Stub> {
        let missing = self.needed.iter().filter(|soname| {
            let is_of = |names: &[&str]| names.iter().any(|name| soname.starts_with(name));
            is_of(&OF_NVIDIA) && !is_of(&SIMULATED)
        });
        let mut stubs: Vec<Stub> =
            missing.map(|soname| Stub { soname: soname.clone(), symbols: BTreeMap::new() }).collect();
        for (symbol, version) in &self.symbols {
            let owner = match version {
                Some(version) => {
                    let soname = self.versions.get(version);
                    stubs.iter_mut().find(|stub| Some(&stub.soname) == soname)
                }
                // The loader takes a symbol without a version from anywhere: from the library whose name it begins
                // with, and with the longest such name.
                None => {
                    let owners = stubs.iter_mut().filter(|stub| stub.begins(symbol));
                    owners.max_by_key(|stub| stub.stem().len())
                }
            };
            if let Some(owner) = owner {
                owner.symbols.entry(version.clone()).or_default().insert(symbol.clone());
            }
        }
        stubs
    }
}

impl Stub {
    /// `cublasLt` of `libcublasLt.so.13`.
    fn stem(&self) -> &str {
        let name = self.soname.strip_prefix("lib").unwrap_or(&self.soname);
        name.split_once(".so").map_or(name, |(stem, _)| stem)
    }

    /// Whether a symbol is one of this library, by its name: `cuFileRead` of `libcufile.so.0`.
    fn begins(&self, symbol: &str) -> bool {
        let stem = self.stem().trim_end_matches("_host").to_ascii_lowercase();
        symbol.to_ascii_lowercase().starts_with(&stem)
    }

    /// Weak, so that what is written by hand is taken instead.
    fn source(&self) -> String {
        let mut text = String::from("/* Generated: answers 0 to everything. */\n");
        let once: BTreeSet<&String> = self.symbols.values().flatten().collect();
        for symbol in once {
            let _ = writeln!(text, "__attribute__((weak)) long {symbol}(void) {{ return 0; }}");
        }
        text
    }

    /// A version script; none where there are no versions. Symbols without one are among those that have one: the
    /// loader does not mind.
    fn versions(&self) -> Option<String> {
        let mut text = String::new();
        let named = self.symbols.iter().filter_map(|(version, symbols)| Some((version.as_ref()?, symbols)));
        for (version, symbols) in named {
            let list: Vec<&str> = symbols.iter().map(String::as_str).collect();
            let _ = writeln!(text, "{version} {{ global: {}; }};", list.join("; "));
        }
        (!text.is_empty()).then_some(text)
    }
}

fn compile(workspace: &Workspace, folder: &Path, stub: &Stub) -> Result<()> {
    let source = folder.join(&stub.soname).with_extension("c");
    files::write(&source, stub.source())?;
    let mut command = workspace.command(tools::c_compiler());
    // The compiler knows some of the names as other functions than these.
    command.args(simcuda::C_FLAGS).args(["-shared", "-fPIC", "-fno-builtin"]).arg(&source);
    let by_hand = workspace.path("ffi-tests/pytorch/stubs").join(format!("{}.c", stub.stem()));
    if by_hand.exists() {
        command.arg(by_hand);
    }
    command.arg(format!("-Wl,-soname,{}", stub.soname));
    if let Some(versions) = stub.versions() {
        let map = folder.join(format!("{}.map", stub.soname));
        files::write(&map, versions)?;
        command.arg(format!("-Wl,--version-script={}", map.display()));
    }
    command.arg("-o").arg(folder.join(&stub.soname));
    workspace.run_well(&format!("pytorch stub {}", stub.soname), command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As readelf writes it.
    const TABLE: &str = "
 0x0000000000000001 (NEEDED)             Shared library: [libcublas.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libcusparse.so.12]
 0x0000000000000001 (NEEDED)             Shared library: [libcusparseLt.so.0]
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libnvshmem_host.so.3]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cublasCreate_v2@libcublas.so.13 (2)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (3)
     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cusparseLtInit
     4: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaFree@libcudart.so.13 (4)
     5: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND nvshmem_init@NVSHMEM (5)
     6: 00000000000a0000    12 FUNC    GLOBAL DEFAULT   14 cublasDefined
Version needs section '.gnu.version_r' contains 4 entries:
  000000: Version: 1  File: libcublas.so.13  Cnt: 1
  0x0010:   Name: libcublas.so.13  Flags: none  Version: 2
  0x0020: Version: 1  File: libnvshmem_host.so.3  Cnt: 1
  0x0030:   Name: NVSHMEM  Flags: none  Version: 5
  0x0040: Version: 1  File: libc.so.6  Cnt: 1
  0x0050:   Name: GLIBC_2.2.5  Flags: none  Version: 3
";

    fn stubs() -> Vec<Stub> {
        let mut imports = Imports::default();
        imports.read(TABLE);
        imports.stubs()
    }

    #[test]
    fn each_symbol_is_in_the_library_that_it_is_wanted_from() {
        let stubs = stubs();
        let all: Vec<String> =
            stubs.iter().map(|stub| format!("{} {:?}", stub.soname, stub.symbols)).collect();
        assert_eq!(
            all,
            [
                r#"libcublas.so.13 {Some("libcublas.so.13"): {"cublasCreate_v2"}}"#,
                r#"libcusparse.so.12 {}"#,
                r#"libcusparseLt.so.0 {None: {"cusparseLtInit"}}"#,
                r#"libnvshmem_host.so.3 {Some("NVSHMEM"): {"nvshmem_init"}}"#,
            ]
        );
    }

    #[test]
    fn a_version_script_has_the_versions_that_are_wanted() {
        let scripts: Vec<_> = stubs().iter().map(Stub::versions).collect();
        assert_eq!(scripts[0].as_deref(), Some("libcublas.so.13 { global: cublasCreate_v2; };\n"));
        assert_eq!(scripts[2], None);
        assert!(stubs()[2].source().contains("long cusparseLtInit(void)"));
    }
}
