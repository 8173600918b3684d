//! Errors that carry their message.

use crate::error::{ErrorKind, OutOfMemory, last_shortage, with_last_error};
use bfc_hostmem::try_box;
use std::fmt;

/// Why a call failed: a kind for the program, and a message for people.
///
/// `Display` and `Debug` both show the message, so it is seen when `main` returns an error. After a failure nothing has
/// changed. An error has memory of its own for the message: signal handlers use [`raw`](crate::raw), which has not.
///
/// ```
/// use bfc::{ErrorKind, HostPool};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let error = pool.alloc(2 << 20).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// assert!(error.message().contains("the request is larger than the limit of 1.00 MiB"));
/// let numbers = error.out_of_memory().unwrap();
/// assert_eq!(numbers.would_fit(), Some(1 << 20));
/// assert!(pool.alloc(numbers.would_fit().unwrap()).is_ok());
/// # Ok(())
/// # }
/// ```
pub struct Error {
    kind: ErrorKind,
    /// None if there was no host memory for them.
    details: Option<Box<Details>>,
}

struct Details {
    message: String,
    shortage: Option<OutOfMemory>,
}

impl Error {
    /// Takes the message and the numbers of the call that has just failed in this thread.
    #[cold]
    #[inline(never)]
    pub(super) fn last(kind: ErrorKind) -> Self {
        let message = with_last_error(|words| {
            let mut message = String::new();
            message.try_reserve_exact(words.len()).ok()?;
            message.push_str(words);
            Some(message)
        });
        let details = |message| try_box(Details { message, shortage: last_shortage() }).ok();
        Error { kind, details: message.and_then(details) }
    }

    /// The kind, for the program.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message, for people: what was asked for, why it failed and what would help. Without host memory for it, the text
    /// of the kind.
    pub fn message(&self) -> &str {
        self.details.as_ref().map_or_else(|| self.kind.text(), |details| &details.message)
    }

    /// The numbers of a request that found no memory. None for other errors, where host memory ran out, and with
    /// [`Request::no_growth`](crate::Request::no_growth).
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        self.details.as_ref()?.shortage.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message())
    }
}

impl std::error::Error for Error {}

/// An end that failed, with the object that it would have ended: a [`Block`](crate::Block) still owns its memory, and a
/// [`Pool`](crate::Pool) its allocator.
///
/// `?` turns it into the [`Error`], and drops the object, which tries again without reporting. Where a function returns
/// another error type, write `.map_err(bfc::Error::from)?`.
///
/// ```
/// use bfc::{Block, ErrorKind, HostPool};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let pointer = pool.as_pool().alloc(100)?.into_raw();
/// let refused = pool.destroy().unwrap_err();
/// assert_eq!(refused.error().kind(), ErrorKind::Busy);
/// let pool = refused.into_inner();
/// // SAFETY: the pointer is from `into_raw`, and is not used again.
/// unsafe { Block::from_raw(&pool, pointer, 100) }.free()?;
/// pool.destroy()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Refused<T> {
    error: Error,
    object: T,
}

impl<T> Refused<T> {
    pub(super) fn new(error: Error, object: T) -> Self {
        Refused { error, object }
    }

    /// Why it failed.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the object.
    pub fn into_inner(self) -> T {
        self.object
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Refused<U> {
        Refused { error: self.error, object: change(self.object) }
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

// Not by `std::error::Error`: that would have to be `'static`, which blocks are not.
impl<T> From<Refused<T>> for Box<dyn std::error::Error> {
    fn from(refused: Refused<T>) -> Self {
        refused.error.into()
    }
}

impl<T> From<Refused<T>> for Box<dyn std::error::Error + Send + Sync> {
    fn from(refused: Refused<T>) -> Self {
        refused.error.into()
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::OutOfMemory => std::io::ErrorKind::OutOfMemory,
            ErrorKind::InvalidArgument => std::io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => std::io::ErrorKind::Unsupported,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}
