//! Contexts that the program creates in addition to the primary ones. Their memory is not pooled, but their work may
//! use pooled memory: of the same device, as a peer's, or through copies. A pool waits for those whose work may use its
//! memory.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use cuda_sys::*;

use super::contexts;
use crate::sys::lock::{SHORT, wait_for};
use crate::sys::slots;

struct Slot {
    is_taken: AtomicBool,
    /// NULL while the slot is being taken or released, and while its context is being destroyed.
    context: AtomicPtr<CUctx_st>,
    device: AtomicI32,
    /// The number of times the program got the context, less the number of times it was detached.
    uses: AtomicU64,
    /// The devices whose pools' memory the context's work may use: a bit for each.
    owners: AtomicU64,
}

// SAFETY: zero bytes are false, 0 and NULL.
unsafe impl slots::Slot for Slot {
    const EMPTY: Self = Slot {
        is_taken: AtomicBool::new(false),
        context: AtomicPtr::new(ptr::null_mut()),
        device: AtomicI32::new(0),
        uses: AtomicU64::new(0),
        owners: AtomicU64::new(0),
    };

    fn take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::AcqRel)
    }
}

/// The existing contexts.
static SLOTS: slots::Slots<Slot> = slots::Slots::new();

/// The number of contexts, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Set if there was no memory for a context. Waiting for its work is impossible, so every later wait fails.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// The number of threads that may have read a handle and have not made it current yet.
static ENTERING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether there are any contexts.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Returns a context that is known by its handle.
pub(crate) fn find(context: CUcontext) -> Option<UserContext> {
    if !any() || context.is_null() {
        return None;
    }
    live().find(|user| user.0.context.load(Ordering::Relaxed) == context)
}

/// A slot, which may be empty.
#[derive(Clone, Copy)]
pub(crate) struct UserContext(&'static Slot);

impl UserContext {
    pub(crate) fn device(self) -> c_int {
        self.0.device.load(Ordering::Relaxed)
    }

    /// Returns whether the program has related the context to the memory of a device's pool.
    pub(crate) fn is_related(self, owner: usize) -> bool {
        self.0.owners.load(Ordering::Acquire) >> owner & 1 != 0
    }

    /// Relates the context to the memory of a device's pool.
    pub(crate) fn relate(self, owner: usize) {
        if !self.is_related(owner) {
            self.0.owners.fetch_or(1 << owner, Ordering::AcqRel);
        }
    }

    fn is_live(self) -> bool {
        !self.0.context.load(Ordering::Relaxed).is_null()
    }
}

/// Returns the existing contexts.
pub(crate) fn live() -> impl Iterator<Item = UserContext> {
    SLOTS.iter().map(UserContext).filter(|_| any()).filter(|user| user.is_live())
}

/// Calls `work` with each context that `is_wanted` selects, made current. Returns the first failure, after which no
/// other context is entered.
pub(crate) fn in_each(is_wanted: impl Fn(UserContext) -> bool, work: impl Fn() -> CUresult) -> CUresult {
    if !any() {
        return CUDA_SUCCESS;
    }
    if IS_INCOMPLETE.load(Ordering::Acquire) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let wanted = SLOTS.iter().map(UserContext).filter(|&user| is_wanted(user));
    let codes = wanted.map(|UserContext(slot)| {
        ENTERING.fetch_add(1, Ordering::SeqCst);
        let context = slot.context.load(Ordering::SeqCst);
        // An empty slot.
        let entered = if context.is_null() { None } else { Some(contexts::push(context)) };
        ENTERING.fetch_sub(1, Ordering::SeqCst);
        match entered {
            None => CUDA_SUCCESS,
            Some(CUDA_SUCCESS) => {
                let code = work();
                contexts::pop();
                // Another thread may destroy the context and its work meanwhile.
                if code == CUDA_ERROR_CONTEXT_IS_DESTROYED { CUDA_SUCCESS } else { code }
            }
            Some(code) => code,
        }
    });
    codes.into_iter().find(|&code| code != CUDA_SUCCESS).unwrap_or(CUDA_SUCCESS)
}

/// Registers a context that the program has created.
pub(crate) fn note(context: CUcontext, device: CUdevice) {
    contexts::note_several();
    let Some(slot) = SLOTS.take() else {
        IS_INCOMPLETE.store(true, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
        return;
    };
    // The relations of the context that used the slot before.
    slot.owners.store(0, Ordering::Relaxed);
    slot.device.store(device, Ordering::Relaxed);
    slot.uses.store(1, Ordering::Relaxed);
    slot.context.store(context, Ordering::Release);
    COUNT.fetch_add(1, Ordering::AcqRel);
}

/// Counts one more use of a context (cuCtxAttach).
pub(crate) fn note_attached(context: CUcontext) {
    if let Some(UserContext(slot)) = find(context) {
        slot.uses.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts one use less of a context (cuCtxDetach).
pub(crate) fn note_detached(context: CUcontext) {
    if let Some(UserContext(slot)) = find(context) {
        slot.uses.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the next cuCtxDetach ends a context.
pub(crate) fn is_last_use(context: CUcontext) -> bool {
    find(context).is_none_or(|UserContext(slot)| slot.uses.load(Ordering::Relaxed) <= 1)
}

/// A context that is about to be destroyed.
pub(crate) struct Ending(Option<(&'static Slot, CUcontext)>);

/// Forgets a context that is about to be destroyed. Waits for threads that have read its handle to make it current,
/// because doing so later would crash.
pub(crate) fn forget(context: CUcontext) -> Ending {
    let is_this = |slot: &&Slot| {
        slot.context.compare_exchange(context, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let Some(slot) = SLOTS.iter().filter(|_| !context.is_null()).find(is_this) else { return Ending(None) };
    // The wait is limited: in the child of a fork such a thread does not exist, and this may be its own signal handler.
    wait_for(SHORT, || (ENTERING.load(Ordering::SeqCst) == 0).then_some(()));
    Ending(Some((slot, context)))
}

impl Ending {
    /// Ends this value if the driver has destroyed the context. Otherwise the context is known again.
    pub(crate) fn end(self, code: CUresult) {
        let Some((slot, context)) = self.0 else { return };
        if code == CUDA_SUCCESS {
            slot.is_taken.store(false, Ordering::Release);
            COUNT.fetch_sub(1, Ordering::AcqRel);
        } else {
            slot.context.store(context, Ordering::Release);
        }
    }
}
