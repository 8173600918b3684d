//! Files that are created or written: regular files of this user, not readable by others, and not reached through a
//! symbolic link. Their names may be in a folder that others can write to, such as /tmp.

use crate::descriptors::Descriptor;
use crate::errno;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_int;

/// The permissions of a new file.
const MODE: libc::mode_t = 0o600;

/// The reason why a file is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// A system call failed.
    Errno(i32),
    /// It belongs to another user.
    ForeignOwner,
    /// It is a folder, a device or a pipe.
    NotRegular,
}

impl From<i32> for Unusable {
    fn from(errno: i32) -> Self {
        Unusable::Errno(errno)
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Unusable::Errno(libc::ELOOP) => f.write_str("it is a symbolic link"),
            Unusable::Errno(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(errno)),
            Unusable::ForeignOwner => f.write_str("it belongs to another user"),
            Unusable::NotRegular => f.write_str("it is not a regular file"),
        }
    }
}

/// Creates a file for reading and writing. It must not exist yet.
pub fn create(path: &CStr) -> Result<Descriptor, i32> {
    create_in(None, path)
}

/// Creates a file like [`create`], with a path relative to a folder.
pub fn create_in(folder: Option<&Descriptor>, path: &CStr) -> Result<Descriptor, i32> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    Descriptor::open_at(folder.map_or(libc::AT_FDCWD, Descriptor::number), path, flags, MODE)
}

/// Removes a file, relative to a folder.
pub fn remove_in(folder: Option<&Descriptor>, path: &CStr) -> Result<(), i32> {
    let folder = folder.map_or(libc::AT_FDCWD, Descriptor::number);
    // SAFETY: the path is NUL-terminated.
    if unsafe { libc::unlinkat(folder, path.as_ptr(), 0) } == 0 { Ok(()) } else { Err(errno()) }
}

/// Opens a file that exists. `access` is `O_RDONLY` or `O_RDWR`.
pub fn open(path: &CStr, access: c_int) -> Result<(Descriptor, libc::stat), Unusable> {
    let (file, facts) = open_regular(path, access)?;
    if facts.st_uid == user() { Ok((file, facts)) } else { Err(Unusable::ForeignOwner) }
}

/// Opens a file for reading and appending, which is created if it does not exist.
pub fn open_to_append(path: &CStr) -> Result<Descriptor, Unusable> {
    open_shared(path, libc::O_APPEND | libc::O_CREAT)
}

/// Opens a file for reading and writing. It may belong to root too, because a process that has dropped root's rights
/// continues to use the file that was created for it.
pub fn open_shared(path: &CStr, flags: c_int) -> Result<Descriptor, Unusable> {
    let (file, facts) = open_regular(path, libc::O_RDWR | flags)?;
    if [user(), 0].contains(&facts.st_uid) { Ok(file) } else { Err(Unusable::ForeignOwner) }
}

fn open_regular(path: &CStr, flags: c_int) -> Result<(Descriptor, libc::stat), Unusable> {
    // A pipe is opened without waiting for its other end.
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = Descriptor::open_at(libc::AT_FDCWD, path, flags, MODE)?;
    let facts = file.facts()?;
    if facts.st_mode & libc::S_IFMT == libc::S_IFREG { Ok((file, facts)) } else { Err(Unusable::NotRegular) }
}

fn user() -> libc::uid_t {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::{Path, PathBuf};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("libbfc-os-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn c(path: &Path) -> CString {
        CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
    }

    #[test]
    fn new_files_are_private_and_links_are_not_followed() {
        let scratch = Scratch::new("private");
        let [new, appended, link] = ["new", "appended", "link"].map(|name| scratch.0.join(name));
        create(&c(&new)).unwrap();
        open_to_append(&c(&appended)).unwrap().write(b"ab").unwrap();
        open_to_append(&c(&appended)).unwrap().write(b"cd").unwrap();
        assert_eq!(fs::read(&appended).unwrap(), b"abcd");
        for path in [&new, &appended] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        symlink(&new, &link).unwrap();
        assert_eq!(create(&c(&new)).err(), Some(libc::EEXIST));
        assert_eq!(create(&c(&link)).err(), Some(libc::EEXIST));
        assert_eq!(open_to_append(&c(&link)).err(), Some(Unusable::Errno(libc::ELOOP)));
        assert_eq!(open(&c(&link), libc::O_RDONLY).err(), Some(Unusable::Errno(libc::ELOOP)));
    }

    #[test]
    fn only_regular_files_of_this_user_are_used() {
        let scratch = Scratch::new("own");
        let [pipe, foreign] = ["pipe", "foreign"].map(|name| scratch.0.join(name));
        // SAFETY: the path is NUL-terminated.
        assert_eq!(unsafe { libc::mkfifo(c(&pipe).as_ptr(), 0o600) }, 0);
        for unusable in [&pipe, Path::new("/dev/null")] {
            assert_eq!(open_to_append(&c(unusable)).err(), Some(Unusable::NotRegular));
        }
        assert_eq!(open(&c(&scratch.0), libc::O_RDONLY).err(), Some(Unusable::NotRegular));
        fs::write(&foreign, "").unwrap();
        assert!(open(&c(&foreign), libc::O_RDWR).is_ok());
        // Only root can change the owner of a file.
        if chown(&foreign, Some(65534), None).is_ok() {
            assert_eq!(open_to_append(&c(&foreign)).err(), Some(Unusable::ForeignOwner));
        }
    }
}
