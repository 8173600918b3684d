//! On whose behalf a thread allocates: an operation's name and a step, for the reports.
//!
//! TensorFlow has this in its debug build; here it is always there. Until some thread of the process
//! opens a scope the allocation path only looks at one flag.

use crate::error::{Error, fail};
use crate::sys::HostMemoryExhausted;
use crate::sys::thread::{Local, per_thread};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How deep scopes nest.
pub const MAX_DEPTH: usize = 8;
/// Longer names are cut.
pub const MAX_NAME_BYTES: usize = 119;

#[derive(Clone, Copy)]
struct Scope {
    name: [u8; MAX_NAME_BYTES],
    length: u8,
    step: u64,
}

#[derive(Clone, Copy)]
struct Stack {
    scopes: [Scope; MAX_DEPTH],
    depth: usize,
}

per_thread!(static STACKS: Stack);

impl Local for Stack {
    const EMPTY: Self = {
        let empty = Scope { name: [0; MAX_NAME_BYTES], length: 0, step: 0 };
        Stack { scopes: [empty; MAX_DEPTH], depth: 0 }
    };
}

static USED: AtomicBool = AtomicBool::new(false);

/// Whether any thread ever opened a scope.
#[inline]
pub(crate) fn is_used() -> bool {
    USED.load(Relaxed)
}

/// This thread's allocations are for an operation's step from now on.
pub fn begin(name: &str, step: u64) -> Result<(), Error> {
    let length =
        (0..=name.len().min(MAX_NAME_BYTES)).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    let begun = STACKS.update(|stack| {
        let Some(scope) = stack.scopes.get_mut(stack.depth) else { return false };
        scope.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        (scope.length, scope.step) = (length as u8, step);
        stack.depth += 1;
        true
    });
    match begun {
        Some(true) => {
            USED.store(true, Relaxed);
            Ok(())
        }
        Some(false) => Err(fail!(
            Error::InvalidArgument,
            "scopes nest at most {MAX_DEPTH} deep: a bfc_scope_end is missing"
        )),
        None => Err(HostMemoryExhausted.into()),
    }
}

/// Ends the innermost scope of this thread.
pub fn end() -> Result<(), Error> {
    let depth = STACKS.get(|stack| stack.depth).unwrap_or(0);
    let Some(outer) = depth.checked_sub(1) else {
        return Err(fail!(Error::InvalidArgument, "bfc_scope_end without a bfc_scope_begin in this thread"));
    };
    STACKS.update(|stack| stack.depth = outer);
    Ok(())
}

/// Runs `work` with the innermost scope's name and step.
pub(crate) fn with_current<T>(work: impl FnOnce(Option<(&str, u64)>) -> T) -> T {
    // A copy, for the work may call back into a function that opens a scope.
    let scope = STACKS.get(|stack| Some(stack.scopes[stack.depth.checked_sub(1)?])).flatten();
    match &scope {
        None => work(None),
        Some(scope) => {
            let name = &scope.name[..scope.length.into()];
            work(Some((std::str::from_utf8(name).unwrap_or_default(), scope.step)))
        }
    }
}
