//! Where the file is: `$XDG_RUNTIME_DIR/libbfc/PID`, or `/dev/shm/libbfc-UID/PID` if there is no such folder.

use crate::log::{self, Level};
use crate::sys::c_string::{decimal, joined};
use crate::sys::folder::{Folder, Unusable};
use bfc_hostmem::HostMemoryExhausted;
use os::terminal::Lossy;
use os::variables;
use std::ffi::{CStr, CString};

/// An open folder, and its path.
pub(super) struct Location {
    pub(super) folder: Folder,
    pub(super) path: CString,
}

/// Why there is none.
pub(super) enum NoLocation {
    HostMemory,
    Unusable(CString, Unusable),
}

impl From<HostMemoryExhausted> for NoLocation {
    fn from(_: HostMemoryExhausted) -> Self {
        NoLocation::HostMemory
    }
}

/// Opens the folder, and creates it if need be.
pub(super) fn find() -> Result<Location, NoLocation> {
    if let Some(path) = runtime_folder()? {
        match Folder::make_private(&path) {
            Ok(folder) => return Ok(Location { folder, path }),
            Err(why) => log::emit(
                Level::Info,
                format_args!("{}: {why}; /dev/shm is used instead", Lossy(path.to_bytes())),
            ),
        }
    }
    let path = shared_memory_folder()?;
    match Folder::make_private(&path) {
        Ok(folder) => Ok(Location { folder, path }),
        Err(why) => Err(NoLocation::Unusable(path, why)),
    }
}

/// Returns the folder below `XDG_RUNTIME_DIR`. A relative path counts as not set, as the specification says.
fn runtime_folder() -> Result<Option<CString>, HostMemoryExhausted> {
    let path = variables::value(c"XDG_RUNTIME_DIR").map(CStr::to_bytes).filter(|path| path.starts_with(b"/"));
    path.map(|path| joined(&[path, b"/libbfc"])).transpose()
}

fn shared_memory_folder() -> Result<CString, HostMemoryExhausted> {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let mut digits = [0; 20];
    joined(&[b"/dev/shm/libbfc-", decimal(user.into(), &mut digits)])
}
