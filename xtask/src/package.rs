//! `cargo xtask package`: a tarball, and Debian and RPM packages by CPack. cmake/package defines the contents of the
//! latter.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{self, Profile};
use crate::cmake::{self, CMake};
use crate::files;
use crate::install;
use crate::tools;
use crate::workspace::{VERSION, Workspace, capture};

/// The arguments of `cargo xtask package`.
#[derive(Args)]
pub struct Package {
    /// Only these: TGZ, DEB, RPM [default: all whose tools are installed]
    #[arg(long, value_name = "FORMAT", value_parser = ["TGZ", "DEB", "RPM"])]
    format: Vec<String>,
}

impl Package {
    /// Builds the packages, and writes a file with the checksum beside each.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let multiarch = format!("lib/{ARCH}-linux-gnu");
        // The folder for libraries on such systems, and the tool that builds the format.
        let formats =
            [("TGZ", "lib", "tar"), ("DEB", &*multiarch, "dpkg-shlibdeps"), ("RPM", "lib64", "rpmbuild")];
        let is_made = |(format, _, tool): &(&str, &str, &str)| {
            let is_there = files::program(tool).is_some();
            if self.format.is_empty() && !is_there {
                println!("{format} is left out: there is no {tool}");
            }
            if self.format.is_empty() { is_there } else { self.format.iter().any(|named| named == format) }
        };
        let formats: Vec<_> = formats.into_iter().filter(is_made).collect();
        // Before minutes of compiling.
        let is_by_cmake = formats.iter().any(|(format, ..)| *format != "TGZ");
        let cmake = is_by_cmake.then(|| CMake::found(workspace)).transpose()?;
        let date = source_date(workspace)?;

        let built = cargo::build(workspace, Profile::Release)?;
        for (format, libdir, _) in formats {
            let name = format.to_lowercase();
            let folder = workspace.target.join("packages").join(&name);
            let work = workspace.target.join("xtask/packages").join(&name);
            let _lock = tools::lock(&work)?;
            files::remove_all(&folder)?;
            files::remove_all(&work)?;
            let stage = work.join(format!("libbfc-{VERSION}-linux-{ARCH}"));
            install::stage_tree(workspace, &stage, Path::new(libdir), &built)?;
            match &cmake {
                Some(cmake) if format != "TGZ" => by_cpack(workspace, cmake, format, libdir, &stage, &date)?,
                _ => archive(workspace, &stage, &date)?,
            }
            for made in files::entries(&work)?.iter().filter(|path| path.is_file()) {
                let to = folder.join(made.file_name().unwrap_or_default());
                files::copy(made, &to)?;
                println!("{}", to.display());
            }
        }
        Ok(())
    }
}

/// The time of all files in archives, so that two runs give the same result: the user's, as reproducible-builds.org
/// specifies it, else that of the commit, else that of the source if there is no git.
fn source_date(workspace: &Workspace) -> Result<String> {
    let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") else { return date_of(workspace) };
    ensure!(date.parse::<u64>().is_ok(), "SOURCE_DATE_EPOCH is \"{date}\" and not a number of seconds");
    Ok(date)
}

fn date_of(workspace: &Workspace) -> Result<String> {
    if workspace.path(".git").exists() {
        let date = capture(workspace.command("git").args(["log", "-1", "--format=%ct"]));
        return Ok(date.context("SOURCE_DATE_EPOCH is not set")?.trim().to_owned());
    }
    let time = fs::metadata(workspace.path("Cargo.toml"))?.modified()?;
    Ok(time.duration_since(UNIX_EPOCH)?.as_secs().to_string())
}

/// A stage as an archive beside it, with its checksum.
fn archive(workspace: &Workspace, stage: &Path, date: &str) -> Result<()> {
    let name = stage.file_name().and_then(|name| name.to_str()).context("it was named")?;
    let work = stage.parent().context("it lies in a folder")?;
    let file = format!("{name}.tar.gz");
    // Independent of the order on the disk, the user and the umask.
    let same =
        ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=a+rX,u+w,go-w", "--format=gnu"];
    let mut command = workspace.command("tar");
    command.current_dir(work).arg("--create").args(same).arg(format!("--mtime=@{date}"));
    command.args(["--use-compress-program=gzip -9n", "--file", &file, name]);
    workspace.run_well("package TGZ: tar", command)?;
    let sum = capture(workspace.command("sha256sum").arg(&file).current_dir(work))?;
    files::write(&work.join(format!("{file}.sha256")), sum)
}

/// A stage as packages beside it, with their checksums.
fn by_cpack(
    workspace: &Workspace,
    cmake: &CMake,
    format: &str,
    libdir: &str,
    stage: &Path,
    date: &str,
) -> Result<()> {
    let host = env!("CARGO_PKG_HOMEPAGE").trim_start_matches("https://");
    let contact = format!("{} <maintainers@{host}>", env!("CARGO_PKG_AUTHORS"));
    let symbols = workspace.path("ffi-tests/symbols.txt");
    let work = stage.parent().context("it lies in a folder")?;
    let build = work.join("cmake/build");
    let values = [
        ("FORMAT", Path::new(format)),
        ("STAGE", stage),
        ("LIBDIR", Path::new(libdir)),
        ("VERSION", Path::new(VERSION)),
        ("SONAME", Path::new(&workspace.soname)),
        ("SYMBOLS", &symbols),
        ("AUTHORS", Path::new(env!("CARGO_PKG_AUTHORS"))),
        ("CONTACT", Path::new(&contact)),
        ("HOMEPAGE", Path::new(env!("CARGO_PKG_HOMEPAGE"))),
        ("SOURCE_DATE", Path::new(date)),
    ];
    cmake::build(workspace, cmake, &workspace.path("cmake/package"), &build, &values)?;
    // CPack gives folders the permissions that the umask leaves.
    let mut command = workspace.command("sh");
    command.args(["-c", "umask 022; exec \"$@\"", "sh"]).arg(cmake.command(workspace, "cpack").get_program());
    command.args(["-G", format, "-B"]).arg(work).arg("--config").arg(build.join("CPackConfig.cmake"));
    command.env("SOURCE_DATE_EPOCH", date);
    workspace.run_well(&format!("package {format}: cpack"), command).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn without_git_the_date_is_that_of_the_source() {
        let mut workspace = Workspace::find().expect("a checkout");
        let root = std::env::temp_dir().join(format!("xtask-package-{}", std::process::id()));
        files::write(&root.join("Cargo.toml"), "").expect("writable");
        let file = fs::File::open(root.join("Cargo.toml")).expect("it was written");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_580_601_600)).expect("our own file");
        workspace.root.clone_from(&root);
        assert_eq!(date_of(&workspace).expect("a date"), "1580601600");
        files::remove_all(&root).expect("removed");
    }
}
