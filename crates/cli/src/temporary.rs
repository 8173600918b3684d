//! Temporary files.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder for temporary files of this command's user, which is removed when this value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates one, with a name like `pattern`, which ends with six letters X.
    pub fn new(pattern: &str) -> Result<Self> {
        let pattern = std::env::temp_dir().join(pattern);
        let what = || format!("cannot create a folder for temporary files like {}", pattern.display());
        let absolute = std::path::absolute(&pattern).with_context(what)?;
        let mut name = absolute.as_os_str().as_bytes().to_vec();
        name.push(0);
        // SAFETY: NUL-terminated and writable.
        let made = unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) };
        if made.is_null() {
            return Err(io::Error::last_os_error()).with_context(what);
        }
        name.pop();
        Ok(Self(OsStr::from_bytes(&name).into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files left in a folder for temporary files are no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}
