//! The operation that a thread allocates for: a name and a step, for the reports.
//!
//! TensorFlow has this in its debug build. Here it is always available. While no thread of the process is in a scope,
//! the allocation path only checks one number.

use crate::error::{ErrorKind, fail};
use crate::options;
use crate::sys::thread::{Local, per_thread};
use bfc_core::op_names::{self, Name};
use bfc_core::seed::Seed;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The maximum nesting of scopes.
pub const MAX_DEPTH: usize = 8;
/// Longer names are truncated.
pub const MAX_NAME_BYTES: usize = 119;
/// The names of all scopes, separated by slashes.
const MAX_PATH_BYTES: usize = MAX_DEPTH * (MAX_NAME_BYTES + 1) - 1;

#[derive(Clone, Copy)]
struct Scope {
    /// The end of the path, which begins with that of the enclosing scope.
    end: u16,
    /// The hash of the whole path.
    hash: u64,
    step: u64,
}

#[derive(Clone, Copy)]
struct Stack {
    path: [u8; MAX_PATH_BYTES],
    scopes: [Scope; MAX_DEPTH],
    depth: usize,
}

per_thread!(static STACKS: Stack);

impl Local for Stack {
    const EMPTY: Self = {
        let empty = Scope { end: 0, hash: 0, step: 0 };
        Stack { path: [0; MAX_PATH_BYTES], scopes: [empty; MAX_DEPTH], depth: 0 }
    };

    fn end(&self) {
        OPEN.fetch_sub(self.depth, Relaxed);
    }
}

impl Stack {
    fn innermost(&self) -> Option<&Scope> {
        self.scopes.get(self.depth.checked_sub(1)?)
    }

    fn path(&self) -> &[u8] {
        &self.path[..self.innermost().map_or(0, |scope| scope.end.into())]
    }

    /// Opens a scope. Returns false if scopes are nested too deep.
    fn push(&mut self, seed: Seed, name: &str, step: u64) -> bool {
        if self.depth == MAX_DEPTH {
            return false;
        }
        let mut end = self.path().len();
        if self.depth != 0 {
            self.path[end] = b'/';
            end += 1;
        }
        self.path[end..end + name.len()].copy_from_slice(name.as_bytes());
        self.scopes[self.depth] = Scope { end: (end + name.len()) as u16, hash: 0, step };
        self.depth += 1;
        self.scopes[self.depth - 1].hash = op_names::hash(seed, self.path());
        // Counted here, where no signal handler can come between, so that both numbers agree for every thread.
        OPEN.fetch_add(1, Relaxed);
        true
    }
}

/// Returns the seed of the hashes of names. It is the same for all allocators of the process: a name is hashed once for
/// many requests, whichever allocators serve them.
fn seed() -> Seed {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let mut seed = DRAWN.load(Relaxed);
    if seed == 0 {
        let new = options::hash_seed_of_process().max(1);
        seed = DRAWN.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|first| first, |_| new);
    }
    Seed::new(seed)
}

/// Returns the hash of a name, different in each process.
pub(crate) fn hash(name: &[u8]) -> u64 {
    op_names::hash(seed(), name)
}

/// The number of open scopes in all threads, and [`ALL_OBSERVED`].
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// Set if every allocation takes the path of those in a scope.
const ALL_OBSERVED: usize = 1 << 62;

/// Makes every allocation of the process take the path of those in a scope, where its backtrace is captured. The usual
/// path thus checks one number for both.
pub(crate) fn observe_all(is_on: bool) {
    match is_on {
        true => OPEN.fetch_or(ALL_OBSERVED, Relaxed),
        false => OPEN.fetch_and(!ALL_OBSERVED, Relaxed),
    };
}

/// Returns whether this thread is in a scope, or every allocation is observed.
#[inline]
pub(crate) fn is_open() -> bool {
    OPEN.load(Relaxed) != 0 && is_open_here()
}

#[cold]
#[inline(never)]
fn is_open_here() -> bool {
    OPEN.load(Relaxed) & ALL_OBSERVED != 0 || STACKS.get(|stack| stack.depth != 0).unwrap_or(false)
}

/// Opens a scope: subsequent allocations of this thread belong to a step of an operation.
pub fn begin(name: &str, step: u64) -> Result<(), ErrorKind> {
    enter(name, step).map(drop)
}

/// Opens a scope. Returns its depth, from 1.
pub(crate) fn enter(name: &str, step: u64) -> Result<usize, ErrorKind> {
    let length =
        (0..=name.len().min(MAX_NAME_BYTES)).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    let seed = seed();
    let pushed = STACKS.update(|stack| stack.push(seed, &name[..length], step).then_some(stack.depth))?;
    pushed.ok_or_else(|| {
        fail!(ErrorKind::InvalidArgument, "scopes nest at most {MAX_DEPTH} deep: a bfc_scope_end is missing")
    })
}

/// Closes the scope of that depth and those inside of it, if they are open.
pub(crate) fn leave(depth: usize) {
    let _ = STACKS.update(|stack| {
        let closed = stack.depth.saturating_sub(depth - 1);
        stack.depth -= closed;
        OPEN.fetch_sub(closed, Relaxed);
    });
}

/// Closes the innermost scope of this thread.
pub fn end() -> Result<(), ErrorKind> {
    let end = |stack: &mut Stack| {
        let outer = stack.depth.checked_sub(1)?;
        stack.depth = outer;
        OPEN.fetch_sub(1, Relaxed);
        Some(())
    };
    // A thread without a value does not need one for this.
    let ended = if STACKS.exists() { STACKS.update(end)? } else { None };
    ended.ok_or_else(|| {
        fail!(ErrorKind::InvalidArgument, "bfc_scope_end without a bfc_scope_begin in this thread")
    })
}

/// In a forked child, drops the scopes of other threads from the count. After a fork in a signal handler that
/// interrupted an access to this thread's own scopes, they stay counted, which costs time but nothing else.
pub(crate) fn after_fork_in_child() {
    observe_all(false);
    match STACKS.get(|stack| stack.depth) {
        Some(depth) => OPEN.store(depth, Relaxed),
        None if STACKS.exists() => {}
        None => OPEN.store(0, Relaxed),
    }
}

/// Passes the path of this thread's scopes and the step of the innermost one to `read`, if there is one. `read` must
/// not open or close a scope.
pub(crate) fn read<T>(read: impl FnOnce(Name<'_>, u64) -> T) -> Option<T> {
    let read = |stack: &Stack| {
        let scope = stack.innermost()?;
        Some(read(Name::with_hash(stack.path(), scope.hash), scope.step))
    };
    STACKS.get(read).flatten()
}

/// Locked by tests that are in scopes, or count them.
#[cfg(test)]
pub(crate) static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> usize {
        OPEN.load(Relaxed)
    }

    /// Paths are hashed with the seed of the process, which cannot be known in advance.
    #[test]
    fn hashes_of_names_are_those_of_this_process_alone() {
        let _only = ONE_TEST.lock();
        begin("outer", 1).unwrap();
        begin("inner", 2).unwrap();
        let here = read(|name, _| format!("{name:?}"));
        assert_eq!(here, Some(format!("{:?}", Name::with_hash(b"outer/inner", hash(b"outer/inner")))));
        assert_ne!(hash(b"outer/inner"), op_names::hash(Seed::new(0), b"outer/inner"));
        (0..2).for_each(|_| end().unwrap());
    }

    /// Once no scope is open, no allocation searches for one, whether the scopes or their threads have ended.
    #[test]
    fn scopes_that_are_over_do_not_count() {
        let _only = ONE_TEST.lock();
        begin("outer", 1).unwrap();
        begin("inner", 2).unwrap();
        assert_eq!((open(), is_open()), (2, true));
        std::thread::spawn(|| assert!(!is_open(), "another thread is in none")).join().unwrap();
        // More threads than can be served without an allocation.
        let barrier = std::sync::Barrier::new(40);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    (0..3).for_each(|step| begin("left open", step).unwrap());
                    end().unwrap();
                    barrier.wait();
                });
            }
        });
        // The scope joins its threads before their last destructors have run.
        let begun = std::time::Instant::now();
        while open() != 2 && begun.elapsed() < std::time::Duration::from_secs(30) {
            std::thread::yield_now();
        }
        assert_eq!(open(), 2);
        (0..MAX_DEPTH - 2).for_each(|_| begin("deep", 3).unwrap());
        assert_eq!(begin("too deep", 3), Err(ErrorKind::InvalidArgument));
        (0..MAX_DEPTH).for_each(|_| end().unwrap());
        assert_eq!(end(), Err(ErrorKind::InvalidArgument));
        assert_eq!((open(), is_open()), (0, false));
    }
}
