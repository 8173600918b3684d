//! Writing a file as a whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a file that only its owner may read. An existing file is replaced once the new one is complete, and stays
/// unchanged after a failure. Anything other than a file, such as `/dev/stdout`, a pipe or a link, is not replaced but
/// written to.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_for(path, 0o600, fill)
}

/// Writes a file like [`write`], which other users may read too, as far as the umask permits.
pub fn write_shared(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_for(path, 0o666, fill)
}

fn write_for(path: &Path, mode: u32, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        let file = OpenOptions::new().write(true).truncate(true).open(path).with_context(what)?;
        let mut out = BufWriter::new(file);
        return fill(&mut out).and_then(|()| Ok(out.flush()?)).with_context(what);
    }
    // In the same folder, so that it can be renamed.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    // A process of the same number may have been killed in the middle: in a container they begin with 1.
    let _ = fs::remove_file(&part);
    let written = create(&part, mode).and_then(|file| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.into_inner()?.sync_all()?;
        fs::rename(&part, path)?;
        Ok(())
    });
    if written.is_err() {
        // An incomplete file is removed.
        let _ = fs::remove_file(&part);
    }
    written.with_context(what)
}

fn create(path: &Path, mode: u32) -> Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if mode == 0o600 {
        // The umask may have removed more permissions.
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_what_is_none_is_written_to() {
        let folder = crate::temporary::Folder::new("bfc-new-file-XXXXXX").expect("a folder");
        let [file, link, pipe] = ["file", "link", "none/pipe"].map(|name| folder.path().join(name));
        let text = |text: &'static str| move |out: &mut dyn Write| Ok(out.write_all(text.as_bytes())?);
        write(&file, text("one")).expect("written");
        let fails = |out: &mut dyn Write| {
            out.write_all(b"half")?;
            anyhow::bail!("no more")
        };
        // Left by a killed process of this number.
        let part = format!("file.{}.part", std::process::id());
        fs::write(folder.path().join(part), "half").expect("written");
        assert!(write(&file, fails).is_err() && write(&pipe, text("two")).is_err());
        assert_eq!(fs::read(&file).expect("there"), b"one");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, text("three")).expect("written");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read(&file).expect("there"), b"three");
        write(Path::new("/dev/null"), text("four")).expect("written");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing unfinished");
    }
}
