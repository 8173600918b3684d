//! A folder that only this user can write to, and the files in it.
//!
//! Files are reached through the folder's descriptor, so that another user cannot exchange the folder between the check
//! and the use.

use super::c_string::joined;
use super::file_mapping::FileMapping;
use bfc_hostmem::HostMemoryExhausted;
use os::descriptors::{Descriptor, facts_of_link};
use os::{errno, files};
use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::MaybeUninit;

/// The reason why a folder is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    Errno(i32),
    /// It belongs to another user.
    ForeignOwner,
    /// Other users have access.
    Open,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What O_NOFOLLOW and O_DIRECTORY return for a symbolic link depends on the kernel.
            Unusable::Errno(libc::ENOTDIR | libc::ELOOP) => {
                f.write_str("it is no folder, or a symbolic link")
            }
            Unusable::Errno(libc::EACCES) => f.write_str("permission denied"),
            Unusable::Errno(libc::ENOENT) => f.write_str("there is no such folder"),
            Unusable::Errno(libc::ENOSPC) => f.write_str("no room on the device"),
            Unusable::Errno(errno) => write!(f, "errno {errno}"),
            Unusable::ForeignOwner => f.write_str("it belongs to another user"),
            Unusable::Open => f.write_str("other users have access to it; its mode must be 0700"),
        }
    }
}

/// An open folder of this user.
pub(crate) struct Folder(Descriptor);

impl Folder {
    /// Creates a folder with mode 0700 if it does not exist yet, and opens it. Fails for a symbolic link, for a folder of
    /// another user, and for one that other users have access to.
    pub(crate) fn make_private(path: &CStr) -> Result<Self, Unusable> {
        // SAFETY: the path is NUL-terminated.
        let made = unsafe { libc::mkdir(path.as_ptr(), 0o700) };
        if made != 0 && errno() != libc::EEXIST {
            return Err(Unusable::Errno(errno()));
        }
        Self::open_private(path)
    }

    /// Opens a folder that exists, with the same conditions.
    pub(crate) fn open_private(path: &CStr) -> Result<Self, Unusable> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let folder = Descriptor::open(path, flags).map_err(Unusable::Errno)?;
        let facts = folder.facts().map_err(Unusable::Errno)?;
        // SAFETY: no preconditions.
        match unsafe { libc::geteuid() } {
            user if user != facts.st_uid => Err(Unusable::ForeignOwner),
            _ if facts.st_mode & 0o077 != 0 => Err(Unusable::Open),
            _ => Ok(Folder(folder)),
        }
    }

    /// Creates a file of `bytes` zeros there and maps it, as [`FileMapping::create`] does.
    pub(crate) fn map_new(&self, name: &CStr, bytes: usize) -> Result<FileMapping, i32> {
        FileMapping::create_in(Some(&self.0), name, bytes)
    }

    /// Reads the beginning of a regular file of this user, as much as the buffer takes.
    pub(crate) fn read_start<'a>(
        &self,
        name: &CStr,
        buffer: &'a mut [MaybeUninit<u8>],
    ) -> Result<&'a [u8], i32> {
        let file = self.0.open_in(name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
        if file.facts()?.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(libc::EINVAL);
        }
        file.read(buffer)
    }

    /// Returns the inode of a file, which distinguishes it from a later one of the same name.
    pub(crate) fn inode(&self, name: &CStr) -> Option<u64> {
        facts_of_link(Some(&self.0), name).ok().map(|facts| facts.st_ino)
    }

    /// Returns when a file was last changed, in nanoseconds since 1970, to the second.
    pub(crate) fn changed(&self, name: &CStr) -> Option<u64> {
        let facts = facts_of_link(Some(&self.0), name).ok()?;
        u64::try_from(facts.st_mtime).ok()?.checked_mul(1_000_000_000)
    }

    /// Removes a file. A missing file or a folder is ignored.
    pub(crate) fn remove(&self, name: &CStr) {
        let _ = files::remove_in(Some(&self.0), name);
    }

    /// Returns the names of at most `most` entries. For the library's own threads: it is a cancellation point.
    pub(crate) fn names(&self, most: usize) -> Result<Vec<CString>, HostMemoryExhausted> {
        let mut names = Vec::new();
        // A descriptor of its own, because the list of entries is read through its position.
        let Ok(copy) = self.0.open_in(c".", libc::O_RDONLY | libc::O_DIRECTORY) else {
            return Ok(names);
        };
        // SAFETY: the descriptor is open.
        let stream = unsafe { libc::fdopendir(copy.number()) };
        if stream.is_null() {
            return Err(HostMemoryExhausted);
        }
        // The stream owns it now.
        copy.into_number();
        let mut result = Ok(());
        while names.len() < most && result.is_ok() {
            // SAFETY: the stream is open, and used by this thread only.
            let entry = unsafe { libc::readdir(stream) };
            if entry.is_null() {
                break;
            }
            let name = entry.wrapping_byte_add(std::mem::offset_of!(libc::dirent, d_name)).cast();
            // SAFETY: a name in an entry, which is NUL-terminated and valid until the next call.
            let name = unsafe { CStr::from_ptr(name) };
            result = add(&mut names, name);
        }
        // SAFETY: the stream is open, and not used again.
        unsafe { libc::closedir(stream) };
        result.map(|()| names)
    }
}

fn add(names: &mut Vec<CString>, name: &CStr) -> Result<(), HostMemoryExhausted> {
    let name = joined(&[name.to_bytes()])?;
    names.try_reserve(1)?;
    names.push(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("libbfc-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn c(path: &Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn only_a_private_folder_is_used() {
        let scratch = scratch("private");
        let path = scratch.join("new");
        drop(Folder::make_private(&c(&path)).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(Folder::make_private(&c(&path)).is_ok(), "it exists already");
        symlink(&path, scratch.join("link")).unwrap();
        fs::write(scratch.join("file"), "").unwrap();
        for name in ["link", "file"] {
            let error = Folder::make_private(&c(&scratch.join(name))).err();
            assert!(matches!(error, Some(Unusable::Errno(libc::ENOTDIR | libc::ELOOP))), "{name}: {error:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(Folder::make_private(&c(&path)).err(), Some(Unusable::Open));
        // As root "/" belongs to this user, but others may read it.
        assert!(Folder::open_private(c"/").is_err());
        assert_eq!(Folder::open_private(c"/nonexistent").err(), Some(Unusable::Errno(libc::ENOENT)));
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn files_are_found_read_and_removed_by_name() {
        let path = scratch("files");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let folder = Folder::open_private(&c(&path)).unwrap();
        let mapping = folder.map_new(c"17", 4096).unwrap();
        // SAFETY: within the mapping.
        unsafe { mapping.base().write(7) };
        assert_eq!(folder.map_new(c"17", 4096).err(), Some(libc::EEXIST));
        let mut start = [const { MaybeUninit::uninit() }; 16];
        let begin = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(folder.read_start(c"17", &mut start), Ok(&begin[..]));
        symlink("17", path.join("link")).unwrap();
        assert_eq!(folder.read_start(c"link", &mut start), Err(libc::ELOOP));
        assert_eq!(folder.read_start(c".", &mut start), Err(libc::EINVAL));
        assert!(folder.inode(c"17").is_some() && folder.inode(c"18").is_none());
        let names = folder.names(100).unwrap();
        assert!(names.contains(&c"17".to_owned()) && names.len() == 4, "{names:?}");
        folder.remove(c"17");
        assert!(!path.join("17").exists());
        fs::remove_dir_all(path).unwrap();
    }
}
