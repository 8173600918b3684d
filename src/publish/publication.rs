//! The one file of this process: creating it, writing rounds, and removing it at the end.

use super::location::{self, Location, NoLocation};
use crate::log::{self, Level};
use crate::sys::c_string::{decimal, joined};
use crate::sys::file_mapping::FileMapping;
use crate::sys::folder::{Folder, Unusable};
use crate::sys::mutex::Mutex;
use crate::sys::{self, clock, process};
use bfc_formats::published::layout::{
    ENDED, FILE_BYTES, HEADER_BYTES, Header, KEPT_SECONDS, MAGIC, POOLS, PUBLISHING, Pool, Record,
    is_unfinished, process_of,
};
use bfc_hostmem::HostMemoryExhausted;
use os::terminal::Lossy;
use std::ffi::{CStr, CString};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// The file of this process.
struct Publication {
    memory: FileMapping,
    folder: CString,
    name: CString,
    /// It tells the file from a later one of the same name.
    inode: u64,
    /// The process that the file is of. The child of a raw `clone` has this too.
    process: i32,
}

static CURRENT: Mutex<Option<Publication>> = Mutex::new(None);
/// The mapped file, which stays mapped. Null without one.
static BASE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// How many entries of the folder are looked at.
const MOST_ENTRIES: usize = 4096;

/// Creates the file of this process. If that fails the log has a warning.
#[inline(never)]
pub(crate) fn begin(interval: Duration) -> bool {
    // Not locked yet: the log may call a function of the program.
    let publication = match create(interval) {
        Ok(publication) => publication,
        Err(why) => {
            warn(&why);
            return false;
        }
    };
    let Ok(mut current) = CURRENT.lock() else { return false };
    BASE.store(publication.memory.base(), Release);
    *current = Some(publication);
    true
}

/// Why nothing is published.
enum Refusal {
    Location(NoLocation),
    File(CString, i32),
}

impl From<HostMemoryExhausted> for Refusal {
    fn from(_: HostMemoryExhausted) -> Self {
        Refusal::Location(NoLocation::HostMemory)
    }
}

fn create(interval: Duration) -> Result<Publication, Refusal> {
    let Location { folder, path } = location::find().map_err(Refusal::Location)?;
    let namespace = sys::process_namespace();
    let mut digits = [0; 20];
    let process = process();
    let mut name = joined(&[decimal(process.unsigned_abs().into(), &mut digits)])?;
    if namespace_of(&folder, &name).is_some_and(|other| other != namespace) {
        // A process of another container has the same number.
        let mut other = [0; 20];
        name = joined(&[name.to_bytes(), b".", decimal(namespace, &mut other)])?;
    }
    // Left by an earlier process of this number, or by the program that this one has replaced (exec).
    folder.remove(&name);
    let memory = match folder.map_new(&name, FILE_BYTES) {
        Ok(memory) => memory,
        Err(errno) => return Err(Refusal::File(joined(&[path.to_bytes(), b"/", name.to_bytes()])?, errno)),
    };
    write_header(&memory, namespace, interval);
    let inode = folder.inode(&name).unwrap_or(0);
    Ok(Publication { memory, folder: path, name, inode, process })
}

/// Returns the namespace of the process that has written a file, if the file is one of this version.
fn namespace_of(folder: &Folder, name: &CStr) -> Option<u64> {
    head_of(folder, name).map(|head| word(&head, offset_of!(Header, namespace)))
}

type Head = [u8; size_of::<Header>()];

fn head_of(folder: &Folder, name: &CStr) -> Option<Head> {
    let mut buffer = [const { MaybeUninit::uninit() }; size_of::<Header>()];
    let head: Head = folder.read_start(name, &mut buffer).ok()?.try_into().ok()?;
    head.starts_with(&MAGIC).then_some(head)
}

fn word(head: &Head, at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&head[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn write_header(memory: &FileMapping, namespace: u64, interval: Duration) {
    let header: *mut Header = memory.base().cast();
    // SAFETY: the memory is new, zeroed, aligned to a page and large enough, and nothing else refers to it.
    let header = unsafe { &mut *header };
    (header.header_bytes, header.record_bytes) = (HEADER_BYTES as u32, size_of::<Record>() as u32);
    (header.records, header.process) = (POOLS as u32, std::process::id());
    (header.started, header.namespace) = (sys::process_started(), namespace);
    header.interval_ms = interval.as_millis() as u32;
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, header.program.as_mut_ptr()) };
    header.updated.store(clock::unix_ns(), Relaxed);
    header.state.store(PUBLISHING, Release);
    // Last: a reader takes a file without it for one that is being created.
    header.magic = MAGIC;
}

#[cold]
fn warn(why: &Refusal) {
    const NOTHING: &str = "BFC_PUBLISH is ignored";
    match why {
        Refusal::Location(NoLocation::HostMemory) => {
            log::emit(Level::Warn, format_args!("{NOTHING}: out of host memory (allocator metadata)"));
        }
        Refusal::Location(NoLocation::Unusable(path, why)) => {
            log::emit(
                Level::Warn,
                format_args!("{NOTHING}: {} cannot be used: {why}", Lossy(path.to_bytes())),
            );
        }
        Refusal::File(path, errno) => log::emit(
            Level::Warn,
            format_args!(
                "{NOTHING}: {} cannot be created: {}",
                Lossy(path.to_bytes()),
                Unusable::Errno(*errno)
            ),
        ),
    }
}

/// A round of the writer, of which there is one.
pub(crate) struct Round(&'static Header);

impl Round {
    /// Returns `None` if nothing is published.
    pub(crate) fn start() -> Option<Self> {
        // SAFETY: null, or a mapping that stays, which begins with a header.
        unsafe { BASE.load(Acquire).cast::<Header>().as_ref() }.map(Round)
    }

    /// Writes the record of an index below [`POOLS`].
    pub(crate) fn write(&self, index: usize, pool: &Pool) {
        self.record(index).write(pool);
    }

    /// Changes the state in a record, whose statistics stay.
    pub(crate) fn change_state(&self, index: usize, state: u64) {
        if let Some(pool) = self.record(index).read() {
            self.write(index, &Pool { state, ..pool });
        }
    }

    /// Takes the holders over from what was written last for the same device.
    pub(crate) fn keep_holders(&self, index: usize, pool: &mut Pool) {
        let old = self.record(index).read().filter(|old| old.device == pool.device);
        if let Some(old) = old {
            (pool.holders, pool.holders_time) = (old.holders, old.holders_time);
        }
    }

    fn record(&self, index: usize) -> &'static Record {
        assert!(index < POOLS);
        let base = std::ptr::from_ref(self.0).cast::<u8>();
        let record = base.wrapping_add(HEADER_BYTES + index * size_of::<Record>()).cast::<Record>();
        // SAFETY: within the file, at a multiple of the record's alignment behind a page.
        unsafe { &*record }
    }

    /// Ends the round. `left_out` is the number of pools without a record.
    pub(crate) fn end(self, left_out: u64) {
        self.0.left_out.store(left_out, Relaxed);
        self.0.updated.store(clock::unix_ns(), Relaxed);
        self.0.rounds.fetch_add(1, Release);
    }
}

/// Removes files of processes that were killed some time ago. For the library's own thread.
pub(crate) fn remove_stale_files() {
    let Ok(Location { folder, .. }) = location::find() else { return };
    let Ok(names) = folder.names(MOST_ENTRIES) else { return };
    let namespace = sys::process_namespace();
    for name in &names {
        if let Some(process) = process_of(name.to_bytes())
            && last_use(&folder, name, process, namespace).is_some_and(is_long_ago)
        {
            folder.remove(name);
        }
    }
}

/// Returns when a file was last written, in nanoseconds since 1970, if it belongs to no process that may still run.
fn last_use(folder: &Folder, name: &CStr, process: u32, namespace: u64) -> Option<u64> {
    let mut start = [const { MaybeUninit::uninit() }; MAGIC.len()];
    if is_unfinished(folder.read_start(name, &mut start).ok()?) {
        // A process that still runs has finished it long before it is removed.
        return folder.changed(name);
    }
    let head = head_of(folder, name)?;
    // Numbers of another namespace say nothing here.
    let has_ended = word(&head, offset_of!(Header, namespace)) == namespace
        && sys::has_ended(process, word(&head, offset_of!(Header, started)));
    has_ended.then(|| word(&head, offset_of!(Header, updated)))
}

fn is_long_ago(time: u64) -> bool {
    clock::unix_ns().saturating_sub(time) > KEPT_SECONDS * 1_000_000_000
}

/// Forgets the file in a forked child. What the child's copy of an interrupted call still writes does not reach it.
pub(crate) fn after_fork_in_child() {
    BASE.store(null_mut(), Relaxed);
    // SAFETY: this is the only thread. The lock is never held while a program's function is called.
    let old = unsafe { CURRENT.replace_in_child(None) };
    if let Some(publication) = old {
        publication.memory.leave_in_child();
        std::mem::forget(publication.memory);
    }
}

/// Removes the file at a normal end of the process.
extern "C" fn at_exit() {
    let Ok(mut current) = CURRENT.lock() else { return };
    let Some(publication) = current.take_if(|it| it.process == process()) else { return };
    if let Some(round) = Round::start() {
        round.0.state.store(ENDED, Release);
    }
    if let Ok(folder) = Folder::open_private(&publication.folder)
        && folder.inode(&publication.name) == Some(publication.inode)
    {
        folder.remove(&publication.name);
    }
    // The thread may be writing to it.
    std::mem::forget(publication.memory);
}

// SAFETY: the section holds an array of such functions. This one may run at any time.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
