//! Green contexts. "This API will retain the primary context on device dev, which [...] is released when the green
//! context is destroyed" (cuda.h, cuGreenCtxCreate), so each is a reference to it. Their work needs no separate wait:
//! "If the current context is the primary context, green contexts that have been created will also be synchronized"
//! (cuCtxSynchronize), and cuCtxRecordEvent of the primary context captures it.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use cuda_sys::*;

use super::contexts;
use crate::driver;
use crate::sys::slots;

struct Slot {
    is_taken: AtomicBool,
    /// NULL while the slot is being taken or released.
    green: AtomicPtr<CUgreenCtx_st>,
    context: AtomicPtr<CUctx_st>,
    device: AtomicI32,
}

// SAFETY: zero bytes are false, 0 and NULL.
unsafe impl slots::Slot for Slot {
    const EMPTY: Self = Slot {
        is_taken: AtomicBool::new(false),
        green: AtomicPtr::new(ptr::null_mut()),
        context: AtomicPtr::new(ptr::null_mut()),
        device: AtomicI32::new(0),
    };

    fn take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::AcqRel)
    }
}

static SLOTS: slots::Slots<Slot> = slots::Slots::new();

/// The data about a green context.
#[derive(Clone, Copy)]
pub(crate) struct GreenContext {
    green: CUgreenCtx,
    /// The result of cuCtxFromGreenCtx.
    pub(crate) context: CUcontext,
    pub(crate) device: c_int,
}

/// Registers a green context that the program has created, and its reference. Without memory for it the reference
/// counts forever: the pool then stays, and is not destroyed under live memory.
pub(crate) fn note(green: CUgreenCtx, device: CUdevice) {
    contexts::note_held_by_driver(device);
    let mut context = ptr::null_mut();
    if let Some(Ok(convert)) = driver::load().map(|driver| driver.cuCtxFromGreenCtx()) {
        // SAFETY: the pointer is valid for writing, and the green context exists.
        unsafe { convert(&mut context, green) };
    }
    register(GreenContext { green, context, device });
}

fn register(known: GreenContext) {
    let Some(slot) = SLOTS.take() else { return };
    slot.context.store(known.context, Ordering::Relaxed);
    slot.device.store(known.device, Ordering::Relaxed);
    slot.green.store(known.green, Ordering::Release);
}

/// Forgets a green context that is about to be destroyed, because another one may get its handle.
pub(crate) fn forget(green: CUgreenCtx) -> Option<GreenContext> {
    let is_this = |slot: &&Slot| {
        slot.green.compare_exchange(green, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let slot = SLOTS.iter().find(|slot| !green.is_null() && is_this(slot))?;
    let context = slot.context.swap(ptr::null_mut(), Ordering::Relaxed);
    let known = GreenContext { green, context, device: slot.device.load(Ordering::Relaxed) };
    slot.is_taken.store(false, Ordering::Release);
    Some(known)
}

impl GreenContext {
    /// Undoes [`forget`], because it was not destroyed.
    pub(crate) fn restore(self) {
        register(self);
    }
}

/// Returns the result of cuCtxFromGreenCtx for a green context.
pub(crate) fn context_of(green: CUgreenCtx) -> Option<CUcontext> {
    let is_this = |slot: &&Slot| slot.green.load(Ordering::Acquire) == green;
    let slot = SLOTS.iter().find(|slot| !green.is_null() && is_this(slot))?;
    Some(slot.context.load(Ordering::Relaxed)).filter(|context| !context.is_null())
}

/// Returns the device of the green context that a context represents.
pub(crate) fn device_of(context: CUcontext) -> Option<usize> {
    let is_this = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == context;
    let slot = SLOTS.iter().find(|slot| !context.is_null() && is_this(slot))?;
    usize::try_from(slot.device.load(Ordering::Relaxed)).ok()
}

fn of_device(device: c_int) -> impl Iterator<Item = &'static Slot> {
    SLOTS.iter().filter(move |slot| slot.device.load(Ordering::Relaxed) == device)
}

/// Returns the results of cuCtxFromGreenCtx for the green contexts of a device.
pub(crate) fn contexts_of(device: c_int) -> impl Iterator<Item = CUcontext> {
    of_device(device).map(|slot| slot.context.load(Ordering::Relaxed)).filter(|context| !context.is_null())
}

/// Forgets these contexts, which have ended with the primary one, because others may get their handles. The green contexts are
/// still to be destroyed by the program.
pub(crate) fn forget_contexts(device: c_int) {
    contexts_of(device).for_each(contexts::forget);
    of_device(device).for_each(|slot| slot.context.store(ptr::null_mut(), Ordering::Relaxed));
}
