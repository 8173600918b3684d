//! Contexts that the program creates beside the primary ones. Their memory is not pooled, but their work may touch what is:
//! of the same device, as a peer's, or by copies. A pool waits for those whose work may touch its memory.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use cuda_sys::*;

use super::contexts;
use crate::sys::lock::{SHORT, wait_for};

struct Slot {
    is_taken: AtomicBool,
    /// NULL while the place is taken or given up.
    context: AtomicPtr<CUctx_st>,
    device: AtomicI32,
}

/// Those that live. The work of further ones is not waited for.
static SLOTS: [Slot; u64::BITS as usize] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        context: AtomicPtr::new(ptr::null_mut()),
        device: AtomicI32::new(0),
    }
}; u64::BITS as usize];

/// How many there are, so that none costs one look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many threads may have a handle in hand that they have not made current yet.
static ENTERING: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// What is noted of a context.
fn find(context: CUcontext) -> Option<(usize, &'static Slot)> {
    if !any() || context.is_null() {
        return None;
    }
    SLOTS.iter().enumerate().find(|(_, created)| created.context.load(Ordering::Relaxed) == context)
}

/// The number of a context's place.
pub(crate) fn place_of(context: CUcontext) -> Option<usize> {
    find(context).map(|(place, _)| place)
}

/// The device of a context.
pub(crate) fn device_of(context: CUcontext) -> Option<usize> {
    usize::try_from(find(context)?.1.device.load(Ordering::Relaxed)).ok()
}

/// A context that is noted, or a place for one.
#[derive(Clone, Copy)]
pub(crate) struct UserContext {
    place: usize,
    created: &'static Slot,
}

impl UserContext {
    /// The number of its place.
    pub(crate) fn place(self) -> usize {
        self.place
    }

    pub(crate) fn device(self) -> c_int {
        self.created.device.load(Ordering::Relaxed)
    }

    fn is_live(self) -> bool {
        !self.created.context.load(Ordering::Relaxed).is_null()
    }
}

fn places() -> impl Iterator<Item = UserContext> {
    SLOTS.iter().enumerate().map(|(place, created)| UserContext { place, created })
}

/// Those that live.
pub(crate) fn live() -> impl Iterator<Item = UserContext> {
    places().filter(|_| any()).filter(|user| user.is_live())
}

/// Runs `work` with each of them current for which `is_wanted` says so. The first failure, after which no other is entered.
pub(crate) fn in_each(is_wanted: impl Fn(UserContext) -> bool, work: impl Fn() -> CUresult) -> CUresult {
    if !any() {
        return CUDA_SUCCESS;
    }
    let wanted = places().filter(|&user| is_wanted(user));
    let codes = wanted.map(|UserContext { created, .. }| {
        ENTERING.fetch_add(1, Ordering::SeqCst);
        let context = created.context.load(Ordering::SeqCst);
        // NULL is none.
        let entered = if context.is_null() { None } else { Some(contexts::push(context)) };
        ENTERING.fetch_sub(1, Ordering::SeqCst);
        match entered {
            None => CUDA_SUCCESS,
            Some(CUDA_SUCCESS) => {
                let code = work();
                contexts::pop();
                // Another thread may destroy it meanwhile, and its work with it.
                if code == CUDA_ERROR_CONTEXT_IS_DESTROYED { CUDA_SUCCESS } else { code }
            }
            Some(code) => code,
        }
    });
    codes.into_iter().find(|&code| code != CUDA_SUCCESS).unwrap_or(CUDA_SUCCESS)
}

/// Notes a context that the program has created. `prepare` is called with the number of its place before others see it.
pub(crate) fn note(context: CUcontext, device: CUdevice, prepare: impl FnOnce(usize)) {
    contexts::note_several();
    let free = SLOTS.iter().enumerate().find(|(_, created)| !created.is_taken.swap(true, Ordering::AcqRel));
    if let Some((place, created)) = free {
        prepare(place);
        created.device.store(device, Ordering::Relaxed);
        created.context.store(context, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
    }
}

/// One is about to be destroyed: whoever has its handle in hand makes it current first, which is no crash afterwards.
pub(crate) fn forget(context: CUcontext) {
    let is_this = |created: &&Slot| {
        created
            .context
            .compare_exchange(context, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    };
    if context.is_null() {
        return;
    }
    let Some(created) = SLOTS.iter().find(is_this) else { return };
    created.is_taken.store(false, Ordering::Release);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    // In the child of a fork nobody comes back, nor to a thread whose signal handler this is: so not for ever.
    wait_for(SHORT, || (ENTERING.load(Ordering::SeqCst) == 0).then_some(()));
}
