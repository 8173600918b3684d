//! `cargo xtask package`: a tarball, Debian packages and RPM packages, by CPack. cmake/package says what is in them.

use std::env::consts::ARCH;
use std::path::Path;

use anyhow::Result;
use clap::Args;

use crate::cargo::{self, Profile};
use crate::files;
use crate::install;
use crate::tools;
use crate::workspace::{VERSION, Workspace};

/// What `cargo xtask package` takes.
#[derive(Args)]
pub struct Package {
    /// Only these: TGZ, DEB, RPM [default: all whose tools are installed]
    #[arg(long, value_name = "FORMAT", value_parser = ["TGZ", "DEB", "RPM"])]
    format: Vec<String>,
}

impl Package {
    /// Builds the packages, each with a file with its checksum beside it.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let built = cargo::build(workspace, Profile::Release)?;
        let host = env!("CARGO_PKG_HOMEPAGE").trim_start_matches("https://");
        let contact = format!("{} <maintainers@{host}>", env!("CARGO_PKG_AUTHORS"));
        let symbols = workspace.path("ffi-tests/symbols.txt");
        let multiarch = format!("lib/{ARCH}-linux-gnu");
        // With the folder for libraries that such systems have, and the tool without which CPack cannot make it.
        for (format, libdir, tool) in
            [("TGZ", "lib", "tar"), ("DEB", &*multiarch, "dpkg-shlibdeps"), ("RPM", "lib64", "rpmbuild")]
        {
            if !(self.format.is_empty() || self.format.iter().any(|named| named == format)) {
                continue;
            }
            if self.format.is_empty() && files::program(tool).is_none() {
                println!("{format} is left out: there is no {tool}");
                continue;
            }
            let folder = workspace.target.join("packages").join(format.to_lowercase());
            files::remove_all(&folder)?;
            let (stage, build) = (folder.join("stage"), folder.join("build"));
            install::stage_tree(workspace, &stage, Path::new(libdir), &built)?;
            let values = [
                ("FORMAT", format),
                ("STAGE", &stage.to_string_lossy()),
                ("LIBDIR", libdir),
                ("ARCH", ARCH),
                ("VERSION", VERSION),
                ("SONAME", &workspace.soname),
                ("SYMBOLS", &symbols.to_string_lossy()),
                ("AUTHORS", env!("CARGO_PKG_AUTHORS")),
                ("CONTACT", &contact),
            ];
            let values = values.map(|(name, value)| (name, Path::new(value)));
            tools::cmake_build(workspace, &workspace.path("cmake/package"), &build, &values)?;
            let mut command = tools::cmake(workspace, "cpack")?;
            command.args(["-G", format, "-B"]).arg(&folder);
            command.arg("--config").arg(build.join("CPackConfig.cmake"));
            workspace.run_well(&format!("package {format}: cpack"), command)?;
            let made = files::entries(&folder)?.into_iter().filter(|path| path.is_file());
            made.for_each(|path| println!("{}", path.display()));
        }
        Ok(())
    }
}
