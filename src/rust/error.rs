//! Errors that carry their message.

use crate::error::{ErrorKind, OutOfMemory, last_shortage, with_last_error};
use bfc_hostmem::try_box;
use std::fmt;

/// Why a call failed: a kind for the program, and a message for people.
///
/// `Display` and `Debug` both show the message, so it is seen when `main` returns an error. After a failure nothing has
/// changed.
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
/// assert_eq!(numbers.would_fit(), 1 << 20);
/// assert!(pool.alloc(numbers.would_fit() as usize).is_ok());
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

    /// The numbers of a request that found no memory. None for other errors, and where host memory ran out.
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

/// Errors are equal if their kinds are.
impl PartialEq<ErrorKind> for Error {
    fn eq(&self, kind: &ErrorKind) -> bool {
        self.kind == *kind
    }
}

impl From<ErrorKind> for Error {
    /// Takes the message of this thread's last failure, which must be that of the call that returned the kind.
    fn from(kind: ErrorKind) -> Self {
        Error::last(kind)
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
