//! Determines from a program's file whether LD_PRELOAD can reach the program.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How many interpreters of interpreters the kernel follows.
const DEEPEST: usize = 4;

/// The kernel truncates longer lines.
const FIRST_LINE: usize = 256;

const MAGIC: &[u8] = b"\x7fELF";
const PT_INTERP: u32 = 3;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2010;

/// The machine that this command, and therefore the interposer, is for.
#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u16 = 183;

/// The file that the kernel executes in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where it is.
    pub path: PathBuf,
    /// Whether the program is a script, and this its interpreter.
    pub is_of_script: bool,
    /// What it is.
    pub kind: Kind,
    /// Why the loader would ignore the environment.
    pub privilege: Option<Privilege>,
}

/// The kind of a file, as far as it matters to the interposer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program for this machine, to be loaded by the loader with that path.
    Dynamic(String),
    /// A program without a loader.
    Static,
    /// For another machine, with a description.
    Foreign(String),
    /// Not a program in the usual format, or an unreadable one.
    Unknown,
}

/// Rights that a program gets from its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// It runs as its owner.
    Setuid,
    /// It runs as its group.
    Setgid,
    /// It has capabilities.
    Capabilities,
}

impl Facts {
    /// Examines a program, or for a script the interpreter that the kernel starts.
    pub fn of(program: &Path) -> Self {
        let mut path = program.to_owned();
        for _ in 0..DEEPEST {
            match script_interpreter(&path) {
                Some(next) => path = next,
                None => break,
            }
        }
        let is_of_script = path != program;
        let kind = File::open(&path).ok().and_then(|file| kind(&file)).unwrap_or(Kind::Unknown);
        Self { privilege: privilege(&path), path, is_of_script, kind }
    }
}

/// The file that must exist for this one to be executed: a script's interpreter, or a program's loader.
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    if let Some(interpreter) = script_interpreter(path) {
        return Some(interpreter);
    }
    match kind(&File::open(path).ok()?)? {
        Kind::Dynamic(loader) => Some(loader.into()),
        _ => None,
    }
}

/// Whether the file is a program in the usual format, for any machine.
pub fn is_elf(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| read(&file, 0, MAGIC.len()).is_some_and(|bytes| bytes == MAGIC))
}

/// What follows `#!`.
fn script_interpreter(path: &Path) -> Option<PathBuf> {
    let file = File::open(path).ok()?;
    let mut line = [0; FIRST_LINE];
    let length = file.read_at(&mut line, 0).ok()?;
    let line = line[..length].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).next()?;
    (!word.is_empty()).then(|| OsStr::from_bytes(word).into())
}

/// The contents of the headers. None if they cannot be read.
fn kind(file: &File) -> Option<Kind> {
    let head = read(file, 0, 20)?;
    if !head.starts_with(MAGIC) {
        return None;
    }
    // Class 2 is 64 bits, data 1 little-endian.
    let machine = number(head.get(18..20)?)?;
    if head[4] != 2 || head[5] != 1 || machine != u64::from(OWN_MACHINE) {
        return Some(Kind::Foreign(foreign(head[4], machine)));
    }
    let head = read(file, 0, 64)?;
    let table = number(head.get(32..40)?)?;
    let [size, count] = [number(head.get(54..56)?)?, number(head.get(56..58)?)?];
    for index in 0..count {
        let entry = read(file, table.checked_add(index * size)?, 56)?;
        if number(entry.get(0..4)?)? == u64::from(PT_INTERP) {
            let [at, length] = [number(entry.get(8..16)?)?, number(entry.get(32..40)?)?];
            let text = read(file, at, usize::try_from(length).ok().filter(|length| *length <= 4096)?)?;
            let text = text.split(|byte| *byte == 0).next()?;
            return Some(Kind::Dynamic(String::from_utf8_lossy(text).into_owned()));
        }
    }
    Some(Kind::Static)
}

/// A machine in words.
fn foreign(class: u8, machine: u64) -> String {
    match (class, machine) {
        (_, 3) => "32-bit x86".to_owned(),
        // 64-bit registers, 32-bit pointers: x32 has the number of x86-64.
        (1, 62) => "32-bit (x32)".to_owned(),
        (_, 62) => "x86-64".to_owned(),
        (_, 40) => "32-bit ARM".to_owned(),
        (_, 183) => "64-bit ARM".to_owned(),
        (_, machine) => format!("another machine (ELF number {machine})"),
    }
}

/// Reads bytes of the file, all of them or none.
fn read(file: &File, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

/// The rights that the file gives a program beyond those of the user who starts it.
fn privilege(path: &Path) -> Option<Privilege> {
    let file = path.metadata().ok()?;
    // SAFETY: takes nothing and cannot fail.
    let [user, group] = [unsafe { libc::getuid() }, unsafe { libc::getgid() }];
    let capable = has_capabilities(path).unwrap_or(false);
    privilege_of(file.mode(), [file.uid(), file.gid()], [user, group], capable)
}

/// The kernel's rule: what changes nothing for this user does not count, and root has all capabilities anyway.
fn privilege_of(mode: u32, owner: [u32; 2], own: [u32; 2], capable: bool) -> Option<Privilege> {
    match () {
        () if mode & SETUID != 0 && owner[0] != own[0] => Some(Privilege::Setuid),
        () if mode & SETGID == SETGID && owner[1] != own[1] => Some(Privilege::Setgid),
        () if capable && own[0] != 0 => Some(Privilege::Capabilities),
        () => None,
    }
}

fn has_capabilities(path: &Path) -> io::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let name = c"security.capability";
    // SAFETY: both names are NUL-terminated; with no room given nothing is written.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    Ok(length > 0)
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    fn temporary(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = env::temp_dir().join(format!("bfc-file-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("the folder for temporary files is writable");
        path
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let program = env::current_exe().expect("a path");
        let facts = Facts::of(&program);
        assert_eq!((&facts.path, facts.is_of_script, facts.privilege), (&program, false, None));
        let Kind::Dynamic(loader) = facts.kind else { panic!("{:?}", facts.kind) };
        assert!(Path::new(&loader).exists(), "{loader}");
        assert_eq!(interpreter(&program), Some(loader.into()));
        assert!(is_elf(&program));
    }

    #[test]
    fn headers_that_are_changed_are_other_programs() {
        let program = fs::read(env::current_exe().expect("a path")).expect("the test itself");
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut bytes = program.clone();
            change(&mut bytes);
            let path = temporary("changed", bytes);
            let kind = Facts::of(&path).kind;
            fs::remove_file(path).expect("it was written");
            kind
        };
        // No program headers: no PT_INTERP among them.
        assert_eq!(changed(|bytes| bytes[56..58].fill(0)), Kind::Static);
        assert_eq!(
            changed(|bytes| bytes[18..20].copy_from_slice(&[3, 0])),
            Kind::Foreign("32-bit x86".into())
        );
        assert_eq!(
            changed(|bytes| bytes[18] = 243),
            Kind::Foreign("another machine (ELF number 243)".into())
        );
        assert_eq!(changed(|bytes| bytes.truncate(60)), Kind::Unknown);
        assert_eq!(changed(|bytes| bytes[32..40].fill(0xff)), Kind::Unknown);
        assert_eq!(changed(|bytes| bytes[0] = 0), Kind::Unknown);
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let inner = temporary("inner", "#! /bin/sh -e\n");
        let outer = temporary("outer", format!("#!{}\n", inner.display()));
        let facts = Facts::of(&outer);
        assert_eq!((facts.path, facts.is_of_script), ("/bin/sh".into(), true));
        assert_eq!(interpreter(&outer), Some(inner.clone()));
        // An interpreter of itself: the kernel gives up, and so does this function.
        fs::write(&inner, format!("#!{}\n", inner.display())).expect("writable");
        assert_eq!(Facts::of(&inner).kind, Kind::Unknown);
        fs::write(&inner, "#!\n").expect("writable");
        assert_eq!(interpreter(&inner), None);
        assert!(!is_elf(&inner));
        for path in [inner, outer] {
            fs::remove_file(path).expect("it was written");
        }
    }

    #[test]
    fn only_rights_that_the_user_does_not_have_count() {
        let rights = |mode, owner, own, capable| privilege_of(mode, owner, own, capable);
        assert_eq!(rights(0o104755, [0, 0], [1000, 1000], false), Some(Privilege::Setuid));
        assert_eq!(rights(0o104755, [0, 0], [0, 0], false), None);
        assert_eq!(rights(0o102755, [0, 5], [1000, 1000], false), Some(Privilege::Setgid));
        // Without the group's right to execute the bit means something else.
        assert_eq!(rights(0o102745, [0, 5], [1000, 1000], false), None);
        assert_eq!(rights(0o100755, [0, 0], [1000, 1000], true), Some(Privilege::Capabilities));
        assert_eq!(rights(0o100755, [0, 0], [0, 0], true), None);
        assert_eq!(rights(0o100755, [0, 0], [1000, 1000], false), None);
    }
}
