//! Names the native frames of a history, from the files of its modules: functions, files and lines from debug information,
//! and otherwise functions from the symbol table.
//!
//! A file is used only if its build id shows that it is what the process had mapped. A file without a build id is used
//! if it is older than the history. The history is not trusted: what it names is opened only if it is a regular file.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use addr2line::Loader;
use indicatif::ProgressBar;
use object::Object;
use object::read::ReadCache;

use bfc_readers::history::reader::History;
use bfc_readers::history::stacks::{Frame, Module};

/// Longer names, for example of templates, are truncated.
const MOST_NAME: usize = 300;
/// The frames of functions that are inlined at an address.
const MOST_INLINED: usize = 32;
/// Larger files are not read.
const MOST_BYTES: u64 = 16 << 30;

/// Names the frames as precisely as the files of this machine allow. The progress bar counts them.
pub fn resolve(history: &mut History, bar: &ProgressBar) {
    let began = history.began;
    // The file of each module. A file has several modules if it is loaded again, and a path may be long.
    let mut numbers: HashMap<(PathBuf, Vec<u8>), usize> = HashMap::new();
    let number = |module: &Module| {
        let next = numbers.len();
        *numbers.entry((module.path.clone(), module.build_id.clone())).or_insert(next)
    };
    let file_of: Vec<usize> = history.stacks.modules.iter().map(number).collect();
    let mut files: HashMap<usize, Option<Loader>> = HashMap::new();
    history.stacks.name(|position, module, address| {
        bar.inc(1);
        let file = files.entry(file_of[position]).or_insert_with(|| open(module, began));
        file.as_ref().map(|file| frames(file, address.wrapping_sub(module.bias))).unwrap_or_default()
    });
}

/// Opens the file of a module, or that with its debug information.
fn open(module: &Module, began: u64) -> Option<Loader> {
    let is_right = |path: &Path| is_that_of(path, module, began);
    let candidates = debug_file(&module.build_id).into_iter().chain([module.path.clone()]);
    candidates.filter(|path| is_right(path)).find_map(|path| Loader::new(path).ok())
}

/// Where distributions install debug information.
fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug").into())
}

/// Returns whether a file is what was mapped.
fn is_that_of(path: &Path, module: &Module, began: u64) -> bool {
    let Ok(about) = fs::metadata(path) else { return false };
    if !path.is_absolute() || !about.is_file() || about.len() > MOST_BYTES {
        return false;
    }
    if module.build_id.is_empty() {
        let began = UNIX_EPOCH + Duration::from_nanos(began);
        return about.modified().is_ok_and(|changed| changed <= began);
    }
    let Ok(file) = fs::File::open(path) else { return false };
    let cache = ReadCache::new(file);
    let object = object::File::parse(&cache);
    object.is_ok_and(|object| object.build_id().is_ok_and(|id| id == Some(&module.build_id)))
}

/// The functions at an address of the file, the innermost first.
fn frames(file: &Loader, at: u64) -> Vec<Frame> {
    let mut frames = Vec::new();
    let symbol = || file.find_symbol(at).map(|name| addr2line::demangle_auto(name.into(), None).into_owned());
    // The whole function is libbfc's, whatever was inlined into it. `stacks` leaves it out.
    let own = symbol().filter(|name| name.starts_with("bfc::") || name.starts_with("bfc_"));
    if own.is_none()
        && let Ok(mut found) = file.find_frames(at)
    {
        while let Ok(Some(frame)) = found.next()
            && frames.len() < MOST_INLINED
        {
            let function = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned()));
            let location = frame.location;
            let Some(function) = function.or_else(symbol) else { continue };
            frames.push(Frame {
                function: short(function),
                file: location.as_ref().and_then(|place| place.file).map(|file| short(file.to_owned())),
                line: location.and_then(|place| place.line).unwrap_or(0),
            });
        }
    }
    if frames.is_empty() {
        frames.extend(symbol().map(|function| Frame { function: short(function), ..Frame::default() }));
    }
    frames
}

fn short(mut name: String) -> Rc<str> {
    if name.len() > MOST_NAME {
        let end = (0..=MOST_NAME).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
        name.truncate(end);
        name.push_str("...");
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, build_id: &[u8]) -> Module {
        Module { since: 1, start: 0, end: 1, bias: 0, build_id: build_id.to_vec(), path: path.into() }
    }

    fn own() -> (String, Vec<u8>) {
        let path = std::env::current_exe().expect("a path").display().to_string();
        let cache = ReadCache::new(fs::File::open(&path).expect("a file"));
        let object = object::File::parse(&cache).expect("an object");
        (path, object.build_id().expect("readable").expect("the linker writes one").to_vec())
    }

    #[test]
    fn only_the_file_that_was_mapped_is_read() {
        let (path, id) = own();
        assert!(is_that_of(Path::new(&path), &module(&path, &id), 0));
        assert!(!is_that_of(Path::new(&path), &module(&path, b"other"), 0));
        // Without a build id, the time decides.
        assert!(!is_that_of(Path::new(&path), &module(&path, b""), 0));
        assert!(is_that_of(Path::new(&path), &module(&path, b""), u64::MAX));
        for other in ["/dev/zero", "/nonexistent", "relative", "/"] {
            assert!(!is_that_of(Path::new(other), &module(other, b""), u64::MAX), "{other}");
        }
    }

    #[test]
    fn a_long_name_is_cut_at_a_whole_character() {
        assert_eq!(*short("f".into()), *"f");
        assert_eq!(*short("ä".repeat(200)), *("ä".repeat(150) + "..."));
        assert_eq!(*short("a".to_owned() + &"ä".repeat(200)), *("a".to_owned() + &"ä".repeat(149) + "..."));
    }
}
