//! The files that the program is to write. It is better to find out before the run than after hours that they cannot be
//! written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, bail};
use bfc_formats::counters::MAGIC;
use bfc_readers::counters::BYTES;
use bfc_readers::process::{self as processes, Liveness};

use super::args::Run;
use crate::history;
use crate::output;

/// Checks whether counters can be kept in the file of --report. It may contain those of other processes.
pub fn check_report(args: &Run) -> Result<()> {
    let Some(named) = args.report.as_deref().filter(|file| file.as_os_str() != "-") else {
        return Ok(());
    };
    let file = expanded(named);
    let name = file.display();
    check_kind(&file).with_context(|| format!("--report={name}"))?;
    let opened = OpenOptions::new().read(true).append(true).create(true).open(&file);
    let mut head = Vec::new();
    let length = opened
        .and_then(|file| {
            (&file).take(MAGIC.len() as u64).read_to_end(&mut head)?;
            Ok(file.metadata()?.len())
        })
        .with_context(|| format!("--report={name}: cannot be written; name another file"))?;
    if !head.is_empty() && head != MAGIC {
        bail!("--report={name}: the file exists and is not a report; remove it, or name another");
    }
    if length % BYTES as u64 != 0 {
        bail!("--report={name}: a record in the file is truncated; remove it, or name another");
    }
    // Only if this process created it, because another may be about to write.
    if head.is_empty() && file != named {
        let _ = fs::remove_file(&file);
    }
    Ok(())
}

/// Removes an existing trace, because the interposer would take it for another process's, and write beside it. It
/// belongs to another process if that is still running.
pub fn make_room_for_trace(args: &Run) -> Result<()> {
    let Some(named) = &args.trace else {
        return Ok(());
    };
    let file = expanded(named);
    let name = file.display();
    check_kind(&file).with_context(|| format!("--trace {name}"))?;
    let head = head(&file)?;
    if let Some((process, liveness)) = writer(&head) {
        let runs = match liveness {
            Liveness::Running => Some("which runs"),
            // At a normal end the zero bytes are cut off.
            Liveness::Unknown if ends_with_zero(&file) => Some(
                "which may still be running, in another container or on another machine (if not, remove it)",
            ),
            _ => None,
        };
        if let Some(runs) = runs {
            output::complain(format_args!(
                "note: {name} is the trace of process {process}, {runs}; this one is {name}.PID (%p in the name gives \
                 each process its own)"
            ));
            return Ok(());
        }
    }
    if !is_trace(&head) {
        bail!("--trace {name}: the file exists and is not a trace; remove it, or name another");
    }
    match fs::remove_file(&file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("--trace {name}: the old file cannot be removed"));
        }
        _ => {}
    }
    try_to_make(&file).with_context(|| format!("--trace {name}: no file can be created there; name another"))
}

/// Makes room for a history. The library itself renames one of its own version to `FILE.old` once it has a new one, so
/// that a program that makes none leaves it unchanged. It would write beside a history of another version, which is
/// therefore renamed here.
pub fn make_room_for_history(args: &Run) -> Result<()> {
    let Some(file) = &args.history else {
        return Ok(());
    };
    let name = file.display();
    check_kind(file).with_context(|| format!("--history {name}"))?;
    let can_be_made = || {
        try_to_make(file)
            .with_context(|| format!("--history {name}: no file can be created there; name another"))
    };
    if !file.exists() {
        return can_be_made();
    }
    if !history::is_one(file) {
        bail!("--history {name}: the file exists and is not a history; remove it, or name another");
    }
    if let Some(process) = history::running(file) {
        output::complain(format_args!(
            "note: {name} is the history of process {process}, which runs; this one is {name}.PID"
        ));
        return Ok(());
    }
    if history::is_readable(file) {
        return Ok(());
    }
    let mut old = file.clone().into_os_string();
    old.push(".old");
    fs::rename(file, &old).with_context(|| format!("--history {name}: the old file cannot be renamed"))
}

/// Creates a file that does not exist, and removes it.
pub fn try_to_make(file: &Path) -> io::Result<()> {
    File::create_new(file).and_then(|_| fs::remove_file(file))
}

/// Whether a file begins like a trace, or is empty. Any other file was named by mistake and must stay. `#` and `%`
/// alone also begin scripts and documents.
fn is_trace(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    match lines.find(|line| !line.starts_with(b"# ")).unwrap_or_default() {
        [0, ..] | [b'+' | b'-' | b'!', b' ', b'0'..=b'9', ..] => true,
        line => head.is_empty() || line.starts_with(b"%bfc-trace "),
    }
}

/// The beginning of a file. Empty if it does not exist.
fn head(file: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(head),
        opened => opened.and_then(|file| file.take(4096).read_to_end(&mut head)),
    }
    .with_context(|| format!("cannot read {}", file.display()))?;
    Ok(head)
}

/// Neither a folder nor a device.
fn check_kind(file: &Path) -> Result<()> {
    match fs::metadata(file) {
        Ok(found) if !found.is_file() => bail!("not a regular file; name another"),
        _ => Ok(()),
    }
}

/// The process that wrote a trace, as the first line has it: `%bfc-trace 1 process=PID started=TICKS boot=ID
/// namespace=INODE`. Nothing is known here about processes of other machines and containers.
fn writer(head: &[u8]) -> Option<(u32, Liveness)> {
    let line = str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let line = line.strip_prefix("%bfc-trace ")?;
    let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
    let (process, started) = (field("process=")?.parse().ok()?, field("started=")?.parse().ok()?);
    let boot = processes::boot();
    let is_here = field("boot=") == Some(String::from_utf8_lossy(&boot).trim_end())
        && field("namespace=") == Some(&processes::namespace().to_string());
    Some((process, if is_here { processes::liveness(process, started) } else { Liveness::Unknown }))
}

fn ends_with_zero(file: &Path) -> bool {
    let last = || {
        let (mut file, mut last) = (File::open(file)?, [0]);
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last).map(|()| last)
    };
    last().is_ok_and(|last: [u8; 1]| last == [0])
}

/// The name as the interposer reads it (crates/preload/src/settings.rs), in this process, whose number the program will have.
fn expanded(named: &Path) -> PathBuf {
    let mut name = Vec::new();
    let mut left = named.as_os_str().as_bytes();
    while let Some((first, rest)) = left.split_first() {
        left = rest;
        match (first, rest.first()) {
            (b'%', Some(b'p')) => name.extend(process::id().to_string().into_bytes()),
            (b'%', Some(b'%')) => name.push(b'%'),
            _ => {
                name.push(*first);
                continue;
            }
        }
        left = &rest[1..];
    }
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_name_may_have_the_process_in_it() {
        let id = process::id();
        let name = |text: &str| expanded(Path::new(text)).display().to_string();
        assert_eq!(name("/a/t.%p.trace"), format!("/a/t.{id}.trace"));
        assert_eq!(name("100%%.%p%p"), format!("100%.{id}{id}"));
        assert_eq!(name("50% %q %"), "50% %q %");
        let odd = Path::new(OsStr::from_bytes(b"\xff%"));
        assert_eq!(expanded(odd), odd);
    }
}
