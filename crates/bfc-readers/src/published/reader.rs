//! Reads the files that processes publish. They may be written at the same time, damaged, or something else, so nothing
//! in them is trusted.

#![allow(missing_docs)] // Of fields and methods whose names say it.

use std::collections::HashSet;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, SystemTime};

use crate::process::{self, Liveness};
use bfc_formats::published::layout::{
    self, ENDED, FAILED, FAMILY, FILE_BYTES, GONE, HEADER_BYTES, Header, KEPT_SECONDS, LIVE, MAGIC, POOLS,
    Pool, Record, is_unfinished, process_of,
};

/// What is read at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    /// By number.
    pub processes: Vec<Process>,
    /// Files that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// A process that publishes, or published until its end.
#[derive(Debug, Clone)]
pub struct Process {
    pub id: u32,
    pub started: u64,
    pub program: String,
    pub state: State,
    /// When it last wrote, in nanoseconds since 1970.
    pub updated: u64,
    /// Pools for which its file has no room.
    pub left_out: u64,
    /// By ordinal.
    pub pools: Vec<PoolReading>,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    /// It is running, but has not written for some time: it is stopped, or has executed another program.
    Stalled,
    /// It has ended, without removing its file. The statistics are the last ones.
    Ended,
    /// The system does not report whether it is running.
    Unknown,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Stalled => "stalled",
            State::Ended => "ended",
            State::Unknown => "unknown",
        }
    }
}

/// A pool, as its process last wrote it.
#[derive(Debug, Clone)]
pub struct PoolReading {
    pub device: u64,
    pub name: String,
    pub backend: String,
    /// Whether it was disabled after an internal error.
    pub is_failed: bool,
    /// When the statistics were copied, in nanoseconds since 1970.
    pub time: u64,
    pub statistics: [u64; layout::STATISTICS.len()],
    /// When the holders were summed up. 0: no operation has a name.
    pub holders_time: u64,
    pub holders: Vec<HolderReading>,
}

/// The memory in use of one operation.
#[derive(Debug, Clone)]
pub struct HolderReading {
    /// None for memory that was allocated outside of all scopes.
    pub operation: Option<String>,
    pub bytes: u64,
    pub chunks: u64,
    pub last_step: u64,
}

/// The error says why a file is not read.
type Result<T> = std::result::Result<T, String>;

/// Puts what failed before the system's reason.
fn failed(what: &str) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// A process counts as stalled after this time, and after ten of its intervals.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// A record is written four times a second, so the second try should succeed.
const TRIES: usize = 100;

/// The folders in which processes of this user publish.
pub fn folders() -> Vec<PathBuf> {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    // Processes of another session have the one below /run/user in their environment.
    let all = [own, Some(format!("/run/user/{user}").into())].into_iter().flatten();
    let mut folders: Vec<PathBuf> = all.map(|folder| folder.join("libbfc")).collect();
    folders.push(format!("/dev/shm/libbfc-{user}").into());
    let mut seen = HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

/// Reads all processes in these folders. A folder that does not exist has none.
pub fn read_all(folders: &[PathBuf]) -> Reading {
    let mut reading = Reading::default();
    let mut seen = HashSet::new();
    for path in folders {
        match Folder::open(path) {
            Ok(None) => {}
            // The same folder under another name.
            Ok(Some(folder)) if !seen.insert(folder.identity) => {}
            Ok(Some(folder)) => folder.read(&mut reading),
            Err(error) => reading.unreadable.push((path.clone(), error)),
        }
    }
    reading.processes.sort_by_key(|process| (process.id, process.started));
    reading
}

/// An open folder that belongs to this user alone.
struct Folder {
    path: PathBuf,
    handle: File,
    identity: (u64, u64),
}

impl Folder {
    fn open(path: &Path) -> Result<Option<Self>> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let handle = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("cannot be opened, or is a symbolic link"))?,
        };
        let facts = handle.metadata().map_err(failed("cannot be examined"))?;
        require_own(&facts)?;
        if facts.mode() & 0o077 != 0 {
            return Err("other users have access to it; its mode must be 0700".into());
        }
        Ok(Some(Folder { path: path.to_owned(), handle, identity: (facts.dev(), facts.ino()) }))
    }

    /// Returns the path of a file that does not depend on the folder's own path, which could be exchanged.
    fn inside(&self, name: &std::ffi::OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.handle.as_raw_fd().to_string()).join(name)
    }

    fn read(&self, reading: &mut Reading) {
        let entries = match fs::read_dir(self.inside("".as_ref())) {
            Ok(entries) => entries,
            Err(error) => return reading.unreadable.push((self.path.clone(), error.to_string())),
        };
        for name in entries.flatten().map(|entry| entry.file_name()) {
            let is_named = process_of(name.as_bytes()).is_some();
            match read_file(&self.inside(&name), is_named, SystemTime::now()) {
                Ok(Found::Nothing) => {}
                Ok(Found::Process(process)) => reading.processes.push(process),
                // A failure shows in the next reading.
                Ok(Found::Stale) => drop(fs::remove_file(self.inside(&name))),
                Err(error) => reading.unreadable.push((self.path.join(&name), error)),
            }
        }
    }
}

fn require_own(facts: &fs::Metadata) -> Result<()> {
    // SAFETY: no preconditions.
    if facts.uid() != unsafe { libc::geteuid() } {
        return Err("it belongs to another user".into());
    }
    Ok(())
}

/// What a file is.
enum Found {
    Process(Process),
    /// It was removed meanwhile, or is being created.
    Nothing,
    /// Its process has ended long ago.
    Stale,
}

/// Reads a file. `is_named` says that it has the name of a process's file.
fn read_file(path: &Path, is_named: bool, now: SystemTime) -> Result<Found> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        opened => opened.map_err(failed("cannot be opened, or is a symbolic link"))?,
    };
    let facts = file.metadata().map_err(failed("cannot be examined"))?;
    if !facts.is_file() {
        return Err("is no file".into());
    }
    require_own(&facts)?;
    let mut bytes = vec![0; FILE_BYTES];
    let length = facts.len();
    let read = read_up_to(&file, &mut bytes).map_err(failed("cannot be read"))?;
    let bytes = &bytes[..read];
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let is_long_ago = |time| now.saturating_sub(time) > Duration::from_secs(KEPT_SECONDS);
    if is_named && is_unfinished(bytes) {
        let changed = Duration::from_secs(facts.mtime().try_into().unwrap_or(0));
        return Ok(if is_long_ago(changed) { Found::Stale } else { Found::Nothing });
    }
    if !bytes.starts_with(FAMILY) {
        return Err("is not a file of published statistics".into());
    }
    if !bytes.starts_with(&MAGIC) {
        return Err("is of another version of libbfc; use the bfc command of that version".into());
    }
    if length != FILE_BYTES as u64 || read != FILE_BYTES {
        return Err(format!("is damaged: it has {length} bytes instead of {FILE_BYTES}"));
    }
    let sizes = [
        (number32(bytes, offset_of!(Header, header_bytes)), HEADER_BYTES),
        (number32(bytes, offset_of!(Header, record_bytes)), size_of::<Record>()),
        (number32(bytes, offset_of!(Header, records)), POOLS),
    ];
    if sizes.iter().any(|&(there, here)| there as usize != here) {
        return Err("is damaged: the sizes in the header are not those of this version".into());
    }
    let mut process = head(bytes, now);
    for index in 0..POOLS {
        process.pools.extend(read_record(&file, bytes, index)?);
    }
    process.pools.sort_by_key(|pool| pool.device);
    let is_stale = process.state == State::Ended && is_long_ago(Duration::from_nanos(process.updated));
    Ok(if is_stale { Found::Stale } else { Found::Process(process) })
}

fn head(bytes: &[u8], now: Duration) -> Process {
    let id = number32(bytes, offset_of!(Header, process));
    let started = number64(bytes, offset_of!(Header, started));
    let updated = number64(bytes, offset_of!(Header, updated));
    let interval = Duration::from_millis(number32(bytes, offset_of!(Header, interval_ms)).into());
    let age = now.saturating_sub(Duration::from_nanos(updated));
    let is_here = number64(bytes, offset_of!(Header, namespace)) == process::namespace();
    let state = match process::liveness(id, started) {
        _ if number32(bytes, offset_of!(Header, state)) == ENDED => State::Ended,
        // A process number from another container denotes another process here.
        _ if !is_here => State::Unknown,
        Liveness::Ended => State::Ended,
        Liveness::Unknown => State::Unknown,
        Liveness::Running if age > STALLED_AFTER.max(interval.saturating_mul(10)) => State::Stalled,
        Liveness::Running => State::Running,
    };
    let program = offset_of!(Header, program);
    Process {
        id,
        started,
        program: text(&bytes[program..program + 16]),
        state,
        updated,
        left_out: number64(bytes, offset_of!(Header, left_out)),
        pools: Vec::new(),
    }
}

/// Reads a record. `bytes` is the file as it was read first.
fn read_record(file: &File, bytes: &[u8], index: usize) -> Result<Option<PoolReading>> {
    let at = HEADER_BYTES + index * size_of::<Record>();
    let mut sequence = Record::sequence_of(&bytes[at..]).ok_or("is damaged")?;
    let mut record = [0; size_of::<Record>()];
    let mut word = [0; 8];
    for _ in 0..TRIES {
        if sequence == 0 {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        file.read_exact_at(&mut record, at as u64).map_err(failed("cannot be read"))?;
        fence(Ordering::Acquire);
        file.read_exact_at(&mut word, at as u64).map_err(failed("cannot be read"))?;
        let after = u64::from_ne_bytes(word);
        if after == sequence {
            let pool = Record::copy_of(&record, sequence).ok_or("is damaged")?;
            return of_record(&pool).map_err(|why| format!("is damaged: record {index}: {why}"));
        }
        sequence = after;
    }
    Err(format!("is damaged: record {index} keeps changing"))
}

fn of_record(pool: &Pool) -> Result<Option<PoolReading>> {
    if pool.device > 1023 {
        return Err(format!("there is no device {}", pool.device));
    }
    let is_failed = match pool.state {
        LIVE => false,
        FAILED => true,
        GONE => return Ok(None),
        other => return Err(format!("{other} is no state")),
    };
    let holders = pool.holders.iter().filter(|holder| holder.bytes != 0).map(|holder| HolderReading {
        operation: Some(text(&holder.name)).filter(|name| !name.is_empty()),
        bytes: holder.bytes,
        chunks: holder.chunks,
        last_step: holder.last_step,
    });
    Ok(Some(PoolReading {
        device: pool.device,
        name: text(&pool.name),
        backend: text(&pool.backend),
        is_failed,
        time: pool.time,
        statistics: pool.statistics,
        holders_time: pool.holders_time,
        holders: holders.collect(),
    }))
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
