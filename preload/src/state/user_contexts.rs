//! Contexts that the program creates beside the primary ones. Their memory is not pooled, but their work may use pooled
//! memory: of the same device, as a peer's, or through copies. A pool waits for those whose work may use its memory.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use cuda_sys::*;

use super::contexts;
use crate::sys::lock::{SHORT, wait_for};

struct Slot {
    is_taken: AtomicBool,
    /// NULL while the slot is being taken or released.
    context: AtomicPtr<CUctx_st>,
    device: AtomicI32,
}

/// The existing contexts. The work of contexts that do not fit is not waited for.
static SLOTS: [Slot; u64::BITS as usize] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        context: AtomicPtr::new(ptr::null_mut()),
        device: AtomicI32::new(0),
    }
}; u64::BITS as usize];

/// The number of contexts, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that may have read a handle and have not made it current yet.
static ENTERING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether there are any contexts.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Returns the slot of a context.
fn find(context: CUcontext) -> Option<(usize, &'static Slot)> {
    if !any() || context.is_null() {
        return None;
    }
    SLOTS.iter().enumerate().find(|(_, slot)| slot.context.load(Ordering::Relaxed) == context)
}

/// Returns the number of a context's slot.
pub(crate) fn place_of(context: CUcontext) -> Option<usize> {
    find(context).map(|(place, _)| place)
}

/// Returns the device of a context.
pub(crate) fn device_of(context: CUcontext) -> Option<usize> {
    usize::try_from(find(context)?.1.device.load(Ordering::Relaxed)).ok()
}

/// A slot, which may be empty.
#[derive(Clone, Copy)]
pub(crate) struct UserContext {
    place: usize,
    slot: &'static Slot,
}

impl UserContext {
    /// Returns the number of the slot.
    pub(crate) fn place(self) -> usize {
        self.place
    }

    pub(crate) fn device(self) -> c_int {
        self.slot.device.load(Ordering::Relaxed)
    }

    fn is_live(self) -> bool {
        !self.slot.context.load(Ordering::Relaxed).is_null()
    }
}

fn places() -> impl Iterator<Item = UserContext> {
    SLOTS.iter().enumerate().map(|(place, slot)| UserContext { place, slot })
}

/// Returns the existing contexts.
pub(crate) fn live() -> impl Iterator<Item = UserContext> {
    places().filter(|_| any()).filter(|user| user.is_live())
}

/// Calls `work` with each context current that `is_wanted` selects. Returns the first failure, after which no other
/// context is entered.
pub(crate) fn in_each(is_wanted: impl Fn(UserContext) -> bool, work: impl Fn() -> CUresult) -> CUresult {
    if !any() {
        return CUDA_SUCCESS;
    }
    let wanted = places().filter(|&user| is_wanted(user));
    let codes = wanted.map(|UserContext { slot, .. }| {
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
                // Another thread may destroy the context meanwhile, and its work with it.
                if code == CUDA_ERROR_CONTEXT_IS_DESTROYED { CUDA_SUCCESS } else { code }
            }
            Some(code) => code,
        }
    });
    codes.into_iter().find(|&code| code != CUDA_SUCCESS).unwrap_or(CUDA_SUCCESS)
}

/// Registers a context that the program has created. Calls `prepare` with the number of its slot before other threads
/// see it.
pub(crate) fn note(context: CUcontext, device: CUdevice, prepare: impl FnOnce(usize)) {
    contexts::note_several();
    let free = SLOTS.iter().enumerate().find(|(_, slot)| !slot.is_taken.swap(true, Ordering::AcqRel));
    if let Some((place, slot)) = free {
        prepare(place);
        slot.device.store(device, Ordering::Relaxed);
        slot.context.store(context, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
    }
}

/// Forgets a context that is about to be destroyed. Waits for threads that have read its handle to make it current,
/// because doing so later would crash.
pub(crate) fn forget(context: CUcontext) {
    let is_this = |slot: &&Slot| {
        slot.context.compare_exchange(context, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    if context.is_null() {
        return;
    }
    let Some(slot) = SLOTS.iter().find(is_this) else { return };
    slot.is_taken.store(false, Ordering::Release);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    // The wait is limited: in the child of a fork such a thread does not exist, and this may be its own signal handler.
    wait_for(SHORT, || (ENTERING.load(Ordering::SeqCst) == 0).then_some(()));
}
