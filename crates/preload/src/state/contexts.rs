//! The current context, and the primary contexts of devices.
//!
//! Pools are for primary contexts, which the CUDA runtime and the frameworks use. The memory of any other context ends
//! with it, and is left to the driver.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use cuda_sys::*;
use os::counting::take_one;

use crate::driver;
use crate::sys::lock::{Guard, OwnerLock};

/// Larger than the number of devices of a process. Requests on further ones are passed to the driver.
pub(crate) const DEVICES: usize = 64;

/// The data about a device's primary context.
struct Primary {
    /// Its handle, once memory was requested in it; NULL when it was reset or released.
    context: AtomicPtr<CUctx_st>,
    /// The number of the program's references to it, as far as the interposer has seen the calls.
    holds: AtomicUsize,
    /// Held while a call of the program changes this number.
    lock: OwnerLock<()>,
}

static PRIMARIES: [Primary; DEVICES] = [const {
    Primary { context: AtomicPtr::new(ptr::null_mut()), holds: AtomicUsize::new(0), lock: OwnerLock::new(()) }
}; DEVICES];

/// The devices whose contexts are held only by their pools, because these could not end during a capture: a bit for
/// each.
static PUT_OFF: AtomicU64 = AtomicU64::new(0);

static ARE_SEVERAL: AtomicBool = AtomicBool::new(false);

/// Contexts known not to be primary ones. Those for which there is no place are queried each time.
static NON_PRIMARY: [AtomicPtr<CUctx_st>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

/// The calling thread's context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Current {
    /// None, or the driver does not report it.
    None,
    /// The primary context of a device.
    Primary(usize),
    Other,
}

#[inline]
pub(crate) fn current() -> Current {
    let Some(context) = current_handle() else { return Current::None };
    match known_as(context) {
        Current::Other => unknown(context),
        known => known,
    }
}

/// Returns the known data about a context by its handle, without calling the driver.
pub(crate) fn known_as(context: CUcontext) -> Current {
    match PRIMARIES.iter().position(|primary| primary.context.load(Ordering::Relaxed) == context) {
        Some(device) if !context.is_null() => Current::Primary(device),
        _ => Current::Other,
    }
}

#[inline]
pub(crate) fn current_handle() -> Option<CUcontext> {
    let mut context = ptr::null_mut();
    let get = driver::load()?.cuCtxGetCurrent().ok()?;
    // SAFETY: the pointer is valid for writing.
    let code = unsafe { get(&mut context) };
    (code == CUDA_SUCCESS && !context.is_null()).then_some(context)
}

/// Returns whether a stream is a default stream: the current context's, or this thread's in it.
pub(crate) fn is_default(stream: CUstream) -> bool {
    stream.addr() <= 2
}

/// Returns the device of the current context, of whichever kind.
pub(crate) fn current_device() -> Option<usize> {
    if let Current::Primary(device) = current() {
        return Some(device);
    }
    let ask = driver::load()?.cuCtxGetDevice().ok()?;
    let mut device = 0;
    // SAFETY: the pointer is valid for writing.
    let code = unsafe { ask(&mut device) };
    usize::try_from(device).ok().filter(|_| code == CUDA_SUCCESS)
}

#[cold]
fn unknown(context: CUcontext) -> Current {
    if NON_PRIMARY.iter().any(|other| other.load(Ordering::Relaxed) == context) {
        return Current::Other;
    }
    match primary_of(context) {
        Ok(Some(device)) => match PRIMARIES.get(device) {
            Some(primary) => {
                note_known(primary, context);
                Current::Primary(device)
            }
            None => Current::Other,
        },
        Ok(None) => {
            let free = |place: &&AtomicPtr<CUctx_st>| place.load(Ordering::Relaxed).is_null();
            note_several();
            if let Some(place) = NON_PRIMARY.iter().find(free) {
                place.store(context, Ordering::Relaxed);
            }
            Current::Other
        }
        Err(_) => Current::None,
    }
}

/// Returns the device whose primary context the current context is.
fn primary_of(context: CUcontext) -> Result<Option<usize>, CUresult> {
    let driver = driver::load().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    let missing = |_| CUDA_ERROR_NOT_SUPPORTED;
    let get_device = driver.cuCtxGetDevice().map_err(missing)?;
    let get_state = driver.cuDevicePrimaryCtxGetState().map_err(missing)?;
    let (mut device, mut flags, mut active) = (0, 0, 0);
    // SAFETY: the pointer is valid for writing.
    succeeded(unsafe { get_device(&mut device) })?;
    // SAFETY: the pointers are valid for writing.
    succeeded(unsafe { get_state(device, &mut flags, &mut active) })?;
    if active == 0 {
        return Ok(None);
    }
    let primary = held_primary(device)?;
    Ok(usize::try_from(device).ok().filter(|_| primary == context))
}

/// Returns the primary context of a device. It must be held already, so that the call neither creates nor ends it.
fn held_primary(device: c_int) -> Result<CUcontext, CUresult> {
    let driver = driver::load().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    let missing = |_| CUDA_ERROR_NOT_SUPPORTED;
    let retain = driver.cuDevicePrimaryCtxRetain().map_err(missing)?;
    let release = driver
        .cuDevicePrimaryCtxRelease_v2()
        .or_else(|_| driver.cuDevicePrimaryCtxRelease())
        .map_err(missing)?;
    let mut primary = ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    succeeded(unsafe { retain(&mut primary, device) })?;
    // SAFETY: it was retained here.
    unsafe { release(device) };
    Ok(primary)
}

pub(crate) fn succeeded(code: CUresult) -> Result<(), CUresult> {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

/// Returns a device's primary context, or NULL if it is not known.
pub(crate) fn primary_of_device(device: usize) -> CUcontext {
    PRIMARIES.get(device).map_or(ptr::null_mut(), |primary| primary.context.load(Ordering::Relaxed))
}

/// Returns whether more than one context has ever been known.
#[inline]
pub(crate) fn are_several() -> bool {
    ARE_SEVERAL.load(Ordering::Relaxed)
}

/// Records the handle of a primary context.
fn note_known(primary: &Primary, context: CUcontext) {
    let is_another =
        |other: &Primary| !ptr::eq(other, primary) && !other.context.load(Ordering::Relaxed).is_null();
    primary.context.store(context, Ordering::SeqCst);
    if PRIMARIES.iter().any(is_another) {
        note_several();
    }
}

/// Records that there are or were several contexts.
pub(crate) fn note_several() {
    ARE_SEVERAL.store(true, Ordering::Relaxed);
}

/// Calls `work` with a context, known to exist, made current.
pub(crate) fn run_in(context: CUcontext, work: impl FnOnce() -> CUresult) -> CUresult {
    if current_handle() == Some(context) {
        return work();
    }
    let code = push(context);
    if code == CUDA_SUCCESS {
        let code = work();
        pop();
        return code;
    }
    code
}

/// Makes a context current, until [`pop`].
pub(crate) fn push(context: CUcontext) -> CUresult {
    let Some(driver) = driver::load() else { return CUDA_ERROR_NOT_INITIALIZED };
    // Neither is useful without the other.
    match (driver.cuCtxPushCurrent_v2(), driver.cuCtxPopCurrent_v2()) {
        // SAFETY: the context is known to exist. Otherwise the driver returns an error.
        (Ok(push), Ok(_)) => unsafe { push(context) },
        _ => CUDA_ERROR_NOT_SUPPORTED,
    }
}

/// Undoes a [`push`] that succeeded.
pub(crate) fn pop() {
    let mut popped = ptr::null_mut();
    if let Some(Ok(pop)) = driver::load().map(|driver| driver.cuCtxPopCurrent_v2()) {
        // SAFETY: the pointer is valid for writing, and what is popped was pushed here.
        unsafe { pop(&mut popped) };
    }
}

fn primary(device: c_int) -> Option<&'static Primary> {
    PRIMARIES.get(usize::try_from(device).ok()?)
}

/// Returns a device's primary context, or NULL, by the driver's number of the device.
pub(crate) fn primary_handle(device: c_int) -> CUcontext {
    primary(device).map_or(ptr::null_mut(), |primary| primary.context.load(Ordering::Relaxed))
}

/// Returns whether a device's primary context is held at all.
pub(crate) fn is_active(device: c_int) -> bool {
    let Some(Ok(ask)) = driver::load().map(|driver| driver.cuDevicePrimaryCtxGetState()) else {
        return true;
    };
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the pointers are valid for writing.
    let code = unsafe { ask(device, &mut flags, &mut active) };
    code != CUDA_SUCCESS || active != 0
}

/// Counts one more reference of the program to a primary context.
pub(crate) fn note_retained(device: c_int, context: CUcontext) {
    note_held(device);
    if let Some(primary) = primary(device) {
        note_known(primary, context);
    }
}

/// Counts one more reference to a primary context whose handle the call did not return.
pub(crate) fn note_held_by_driver(device: c_int) {
    note_held(device);
    if let (Some(primary), Ok(context)) = (primary(device), held_primary(device)) {
        note_known(primary, context);
    }
}

fn note_held(device: c_int) {
    if let Some(primary) = primary(device) {
        primary.holds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Prevents other calls of the program from retaining or releasing the primary context until the guard is dropped,
/// because such a call is counted only once it has returned. Returns `None` in a signal handler that has interrupted
/// one, and in the child of a fork if the thread that makes one does not exist there.
pub(crate) fn lock_holds(device: c_int) -> Option<Guard<'static, ()>> {
    primary(device)?.lock.lock_patiently()
}

/// Returns the number of the program's references to the primary context, as far as the interposer has seen the calls.
pub(crate) fn holds(device: c_int) -> usize {
    primary(device).map_or(0, |primary| primary.holds.load(Ordering::Relaxed))
}

/// Defers the end of the primary context, which only the pool holds.
pub(crate) fn put_off_end(device: c_int) {
    let bit = u32::try_from(device).ok().and_then(|device| 1_u64.checked_shl(device));
    PUT_OFF.fetch_or(bit.unwrap_or(0), Ordering::AcqRel);
}

/// Returns the devices whose contexts' end was deferred, once.
pub(crate) fn take_put_off() -> impl Iterator<Item = c_int> {
    let devices = match PUT_OFF.load(Ordering::Acquire) {
        0 => 0,
        _ => PUT_OFF.swap(0, Ordering::AcqRel),
    };
    (0..).take(DEVICES).filter(move |device| devices >> device & 1 != 0)
}

/// Counts one reference of the program less.
pub(crate) fn note_released(device: c_int) {
    if let Some(primary) = primary(device) {
        // References from before the first hook call were not counted.
        take_one(&primary.holds, Ordering::Relaxed);
    }
}

/// Forgets a device's primary context, which has ended, because another context may get its handle.
pub(crate) fn forget_primary(device: c_int) {
    if let Some(primary) = primary(device) {
        primary.context.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Forgets a context, which has ended, because another one may get its handle.
pub(crate) fn forget(context: CUcontext) {
    for place in PRIMARIES.iter().map(|primary| &primary.context).chain(&NON_PRIMARY) {
        let _ = place.compare_exchange(context, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
}
