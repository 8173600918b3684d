//! Shared by the tests of histories: the reader of `bfc report`, and one recording at a time.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use bfc_readers::history::reader::{History, parse};

use crate::common::{BFC_OK, bfc_history_stop};

pub use bfc_formats::history::layout;

/// There is one recording in a process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns an unused path in the temporary folder.
pub fn new_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("libbfc-history-{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

pub fn c(path: &Path) -> CString {
    CString::new(path.to_str().expect("UTF-8")).expect("no NUL")
}

pub fn read(path: &Path) -> History {
    read_from(fs::read(path).expect("a file"))
}

/// Reads the contents of a file. Native frames are named by their modules only.
pub fn read_from(file: Vec<u8>) -> History {
    let mut history = parse(&file).expect("a history");
    history.stacks.name(|_, _, _| Vec::new());
    history
}

/// Stops recording, reads the file, and removes it.
pub fn stopped(path: &Path) -> History {
    assert_eq!(bfc_history_stop(), BFC_OK);
    let history = read(path);
    fs::remove_file(path).expect("a file");
    history
}
