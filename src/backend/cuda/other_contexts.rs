//! Contexts other than a device's own whose default streams were named: those that the program has created, and those
//! of other devices. Each has a number, which a stream's identity includes.
//!
//! A destroyed context must not be "accessed or passed in subsequent API calls" (cuCtxDestroy), but it stays current to
//! other threads, whose calls then fail. The library therefore queries only the current context, and the program must
//! keep a context while memory is in use that was allocated or recorded on its default streams. Handles are reused, so a
//! context is entered only if its number in the driver (cuCtxGetId) is the same as before.

use super::calls::{self, Failure};
use crate::backend::order::Context;
use crate::error::{ErrorKind, fail};
use crate::sys::lock::HeldByThisThread;
use crate::sys::mutex::Mutex;
use bfc_hostmem::HostMemoryExhausted;
use cuda_sys::{CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUcontext, Driver};

#[derive(Clone, Copy)]
struct KnownContext {
    context: Context,
    /// The result of cuCtxGetId: for a green context the number of its primary context.
    id: u64,
    has_ended: bool,
}

/// The contexts in the order of their numbers, which begin at 1. None is removed, because pools may know its number.
static KNOWN: Mutex<Vec<KnownContext>> = Mutex::new(Vec::new());

/// Returns the number of a context that exists. An earlier one with its handle has ended.
pub(super) fn number_of(context: Context, id: u64) -> Result<Option<u32>, ErrorKind> {
    let mut known = KNOWN.lock().map_err(|HeldByThisThread| {
        fail!(
            ErrorKind::Busy,
            "a signal handler interrupted a call of this thread that named a default stream: call again after the handler has returned"
        )
    })?;
    let mut place = None;
    for (at, other) in known.iter_mut().enumerate() {
        if (other.context, other.id, other.has_ended) == (context, id, false) {
            place = Some(at);
        } else if other.context.handle == context.handle {
            other.has_ended = true;
        }
    }
    let place = match place {
        Some(place) => place,
        None => {
            known.try_reserve(1).map_err(HostMemoryExhausted::from)?;
            known.push(KnownContext { context, id, has_ended: false });
            known.len() - 1
        }
    };
    Ok(u32::try_from(place + 1).ok())
}

/// Returns the context with a number, unless it is known to have ended.
pub(super) fn context(number: u32) -> Option<Context> {
    find(number).map(|known| known.context)
}

/// Returns the result of cuCtxGetId for the context with a number, which may have ended.
pub(super) fn id(number: u32) -> Option<u64> {
    get(number).map(|known| known.id)
}

fn get(number: u32) -> Option<KnownContext> {
    KNOWN.lock().ok()?.get((number as usize).checked_sub(1)?).copied()
}

fn find(number: u32) -> Option<KnownContext> {
    get(number).filter(|known| !known.has_ended)
}

/// Notes that the contexts with a handle have ended.
pub(super) fn note_end(handle: u64) {
    let Ok(mut known) = KNOWN.lock() else { return };
    known.iter_mut().filter(|known| known.context.handle == handle).for_each(|known| known.has_ended = true);
}

/// Returns whether the driver reports that a context has ended. Other failures, such as of an earlier kernel, do not
/// show it.
pub(super) fn is_end<T>(asked: &Result<T, Failure>) -> bool {
    let is_one = |failure: &Failure| {
        [CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT].iter().any(|&code| failure.is(code))
    };
    asked.as_ref().is_err_and(is_one)
}

/// Calls `work` with the context of a number current. Returns `None` if the context has ended.
pub(super) fn inside<T>(
    driver: Driver,
    number: u32,
    work: impl FnOnce(Driver) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let Some(KnownContext { context, id: expected, .. }) = find(number) else { return Ok(None) };
    // SAFETY: the context exists, as this module requires of the program.
    let id = unsafe { calls::id_of(driver, context.handle as CUcontext) };
    if is_end(&id) || id?.unwrap_or_default() != expected {
        note_end(context.handle);
        return Ok(None);
    }
    // SAFETY: it exists.
    unsafe { calls::push_other(driver, context.handle as CUcontext) }?;
    let done = work(driver);
    let popped = calls::pop(driver);
    done.and_then(|done| popped.map(|()| Some(done)))
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, number_of};
    use crate::backend::order::Context;
    use crate::error::ErrorKind;

    /// 0 would be the default stream of the pool's own context.
    #[test]
    fn a_signal_handler_is_told_to_call_again() {
        let known = KNOWN.lock().expect("no call is under way");
        assert_eq!(number_of(Context { handle: 8, number: 1 }, 1), Err(ErrorKind::Busy));
        drop(known);
        assert!(number_of(Context { handle: 8, number: 1 }, 1).is_ok_and(|number| number.is_some()));
    }
}
