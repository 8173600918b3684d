//! Contexts that the program creates beside the primary ones. Their memory is not pooled, but their work may touch what is:
//! as a peer's, or by copies. So whoever waits for the device waits for them too.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use cuda_sys::*;

use crate::contexts;
use crate::hooks::real;

/// Those that live. The work of further ones is not waited for.
static CREATED: [AtomicPtr<CUctx_st>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

/// How many there are, so that none costs one look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many threads may have a handle in hand that they have not made current yet.
static ENTERING: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Runs `work` with each of them current. The first failure.
pub(crate) fn in_each(work: impl Fn() -> CUresult) -> CUresult {
    if !any() {
        return CUDA_SUCCESS;
    }
    let codes = CREATED.iter().map(|place| {
        ENTERING.fetch_add(1, Ordering::SeqCst);
        let context = place.load(Ordering::SeqCst);
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
    codes.fold(CUDA_SUCCESS, |first, code| if first == CUDA_SUCCESS { code } else { first })
}

fn note(context: CUcontext) {
    let free = |place: &&AtomicPtr<CUctx_st>| {
        place.compare_exchange(ptr::null_mut(), context, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if CREATED.iter().any(|place| free(&place)) {
        COUNT.fetch_add(1, Ordering::AcqRel);
    }
}

/// One is about to be destroyed: whoever has its handle in hand makes it current first, which is no crash afterwards.
pub(crate) fn forget(context: CUcontext) {
    let this = |place: &&AtomicPtr<CUctx_st>| {
        place.compare_exchange(context, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    if context.is_null() || !CREATED.iter().any(|place| this(&place)) {
        return;
    }
    COUNT.fetch_sub(1, Ordering::AcqRel);
    // In the child of a fork nobody comes back, so not for ever.
    for _ in 0..100_000 {
        if ENTERING.load(Ordering::SeqCst) == 0 {
            break;
        }
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
}

macro_rules! creates {
    ($($symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// As the driver's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(place: *mut CUcontext, $($argument: $type),*) -> CUresult {
                let Some(create) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's arguments.
                let code = unsafe { create(place, $($argument),*) };
                if code == CUDA_SUCCESS && !place.is_null() {
                    // SAFETY: not NULL, so the caller's, and the driver has written it.
                    note(unsafe { *place });
                }
                code
            }
        )*
    };
}

creates! {
    cuCtxCreate_v2(flags: c_uint, device: CUdevice);
    cuCtxCreate_v3(affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice);
    cuCtxCreate_v4(parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice);
}
