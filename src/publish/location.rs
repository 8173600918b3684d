//! Where the file is: `$XDG_RUNTIME_DIR/libbfc/PID`, or `/dev/shm/libbfc-UID/PID` if there is no such folder.

use crate::log::{self, Level};
use crate::sys::HostMemoryExhausted;
use crate::sys::c_string::{decimal, joined};
use crate::sys::folder::{Folder, Unusable};
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

/// Returns the process whose file has this name: `PID`, or `PID.NAMESPACE`.
pub(super) fn process_of(name: &CStr) -> Option<u32> {
    let name = name.to_str().ok()?;
    let (process, namespace) = name.split_once('.').unwrap_or((name, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(process) && is_number(namespace) { process.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_numbers() {
        let names = [c"17", c"17.4026531836", c"", c"x", c"17.", c"17.x", c"-1", c"99999999999", c"."];
        let found = names.map(process_of);
        assert_eq!(found[..2], [Some(17), Some(17)]);
        assert!(found[2..].iter().all(Option::is_none), "{found:?}");
    }
}
