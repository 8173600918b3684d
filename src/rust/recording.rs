//! What is recorded about a program's memory: operations and histories.

use super::{Error, Result};
use crate::device::history;
use crate::error::{ErrorKind, fail};
use crate::history::{NATIVE, PYTHON};
use crate::scope;
use std::ffi::CString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The operation that this thread allocates for, in reports and memory maps. Ends when it is dropped.
///
/// Give it a name (`_scope`): `let _ = Scope::enter(..)` ends it at once. Scopes nest at most 8 deep, and are of one thread.
/// The end of one is the end of those that began inside of it.
///
/// ```
/// use bfc::{HostPool, Scope};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let activations = {
///     let _scope = Scope::enter("forward", 1)?;
///     pool.alloc(1000)?
/// };
/// assert!(pool.report()?.contains("forward"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    depth: usize,
    /// Not to be sent to another thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Scope {
    /// Begins an operation. `step` is the caller's count. Names longer than 119 bytes are truncated.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if scopes are nested too deep, and [`ErrorKind::OutOfMemory`] for host memory.
    pub fn enter(operation: &str, step: u64) -> Result<Self> {
        let depth = scope::enter(operation, step).map_err(Error::last)?;
        Ok(Scope { depth, of_this_thread: PhantomData })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        scope::leave(self.depth);
    }
}

bitflags::bitflags! {
    /// Which backtraces a history has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Stacks: u32 {
        /// Of native code.
        const NATIVE = NATIVE;
        /// Of Python.
        const PYTHON = PYTHON;
    }
}

/// A history that is being recorded: the last events of all allocators of the process. `bfc report` reads it, while it is
/// recorded and after the process has ended or was killed. Recording stops when this is dropped. There is one history in the
/// process, which C code may stop too.
///
/// ```
/// use bfc::{History, HostPool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("bfc-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let pool = HostPool::new(1 << 20)?;
/// let history = History::builder().events(4096).record(&folder.join("run.bfch"))?;
/// let block = pool.alloc(1000)?;
/// history.mark("epoch 1")?;
/// history.stop()?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "recording stops when this is dropped"]
pub struct History(());

impl History {
    /// Returns the settings of a history.
    pub fn builder() -> HistoryBuilder {
        HistoryBuilder { events: 0, stacks: None }
    }

    /// Marks this moment, for example the beginning of an epoch. The events between two marks can then be compared.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] in a signal handler that interrupted a call of the library.
    pub fn mark(&self, name: &str) -> Result<()> {
        history::mark(name).map_err(Error::last)
    }

    /// Writes a copy of the history so far to a new file. Recording goes on meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the file exists or cannot be created. After a failure there is no new file.
    pub fn save(&self, path: &Path) -> Result<()> {
        history::save(&c_path(path)?).map_err(Error::last)
    }

    /// Stops recording, and reports.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if C code has stopped it.
    pub fn stop(self) -> Result<()> {
        std::mem::forget(self);
        history::stop().map_err(Error::last)
    }
}

impl Drop for History {
    fn drop(&mut self) {
        let _ = history::stop();
    }
}

/// The settings of a history.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct HistoryBuilder {
    events: u64,
    stacks: Option<Stacks>,
}

impl HistoryBuilder {
    /// How many of the last events are kept, rounded up to a power of two from 1,024 to 2^28. The default is 262,144. Each
    /// takes 64 bytes.
    pub fn events(self, events: u64) -> Self {
        HistoryBuilder { events, ..self }
    }

    /// Records a backtrace with each allocation, which then takes microseconds. The default is what `BFC_HISTORY_STACKS`
    /// says, and else none.
    pub fn stacks(self, stacks: Stacks) -> Self {
        HistoryBuilder { stacks: Some(stacks), ..self }
    }

    /// Starts recording into a new file, readable by its owner only.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if a history is recorded already; [`ErrorKind::InvalidArgument`] if the file exists or
    /// cannot be created; [`ErrorKind::OutOfMemory`] for host memory; [`ErrorKind::Unsupported`] for [`Stacks::PYTHON`]
    /// in a process without CPython 3.10 to 3.14.
    pub fn record(self, path: &Path) -> Result<History> {
        self.start(Some(&*c_path(path)?))
    }

    /// Starts recording into memory, which [`History::save`] writes to a file.
    ///
    /// # Errors
    /// As [`HistoryBuilder::record`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// use bfc::{ErrorKind, History, Stacks};
    ///
    /// let history = History::builder().events(1024).stacks(Stacks::NATIVE).record_in_memory()?;
    /// assert_eq!(History::builder().record_in_memory().unwrap_err().kind(), ErrorKind::AlreadyExists);
    /// history.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn record_in_memory(self) -> Result<History> {
        self.start(None)
    }

    fn start(self, path: Option<&std::ffi::CStr>) -> Result<History> {
        let started = match self.stacks {
            Some(stacks) => history::start(path, self.events, stacks.bits()),
            None => history::start_with_default_stacks(path, self.events),
        };
        started.map(|()| History(())).map_err(Error::last)
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Error::last(fail!(ErrorKind::InvalidArgument, "the path {} contains a NUL", path.display()))
    })
}
