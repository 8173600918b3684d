//! A new file that is written through a mapping: its contents are complete however the process ends.
//!
//! No descriptor stays open, because the program might close it and reuse its number.

use super::memfile::limit_of;
use os::descriptors::Descriptor;
use os::{errno, files};
use std::ffi::CStr;

/// The mapping of a whole file, unmapped on drop. The file stays.
pub(crate) struct FileMapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is plain memory of the process, and its owner may use it from any thread.
unsafe impl Send for FileMapping {}
// SAFETY: a shared mapping only provides its base and length.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Creates a file of `bytes` zeros that only its owner may read and write. It must not exist yet. Disk space is
    /// allocated at once, because a full disk would raise a signal at the first write to a page. On failure there is no
    /// file. The error is the errno.
    pub(crate) fn create(path: &CStr, bytes: usize) -> Result<Self, i32> {
        Self::create_in(None, path, bytes)
    }

    /// Creates a file like [`Self::create`], with a path relative to an open folder.
    pub(super) fn create_in(folder: Option<&Descriptor>, path: &CStr, bytes: usize) -> Result<Self, i32> {
        // Exceeding the process's file size limit would raise a signal too.
        if bytes as u64 > limit_of(libc::RLIMIT_FSIZE) {
            return Err(libc::EFBIG);
        }
        let file = files::create_in(folder, path)?;
        fill(&file, bytes).and_then(|()| Self::map(&file, bytes)).inspect_err(|_| {
            let _ = files::remove_in(folder, path);
        })
    }

    fn map(file: &Descriptor, bytes: usize) -> Result<Self, i32> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.number(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(FileMapping { base: base.cast(), bytes })
    }

    /// Replaces the file by private memory in a forked child, which must not write into its parent's file. A
    /// call that a signal handler interrupted to fork may still write there.
    pub(crate) fn leave_in_child(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is this mapping's own, and remaining users only read and write.
        unsafe { libc::mmap(self.base.cast(), self.bytes, protection, flags, -1, 0) };
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and is not used again.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Allocates disk space for the whole file, which reads as zeros.
fn fill(file: &Descriptor, bytes: usize) -> Result<(), i32> {
    match file.allocate(0, bytes as u64) {
        // The file system has no such call: write zeros.
        Err(libc::EOPNOTSUPP | libc::ENOSYS) => write_zeros(file, bytes),
        done => done,
    }
}

fn write_zeros(file: &Descriptor, bytes: usize) -> Result<(), i32> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut left = bytes;
    while left != 0 {
        match file.write(&ZEROS[..left.min(ZEROS.len())])? {
            0 => return Err(libc::EIO),
            wrote => left -= wrote,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_file_is_its_owners_and_has_what_was_written() {
        let path = std::env::temp_dir().join(format!("libbfc-file-mapping-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let file = FileMapping::create(&name, 8192).unwrap();
        // SAFETY: within the mapping.
        unsafe { file.base().wrapping_add(5000).write(7) };
        assert_eq!(FileMapping::create(&name, 8192).err(), Some(libc::EEXIST));
        drop(file);
        let read = std::fs::read(&path).unwrap();
        assert_eq!((read.len(), read[5000], read[4999]), (8192, 7, 0));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(FileMapping::create(c"/nonexistent/folder/file", 4096).err(), Some(libc::ENOENT));
    }

    #[test]
    fn a_file_can_be_filled_by_writes() {
        let path = std::env::temp_dir().join(format!("libbfc-file-zeros-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let file = files::create(&name).unwrap();
        write_zeros(&file, 100_000).unwrap();
        drop(file);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000);
        std::fs::remove_file(&path).unwrap();
    }
}
