//! `dlsym`, through which programs and the CUDA runtimes find the driver's functions.

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_sys::DLSYM_VERSIONS;

use super::proc_address::hook_of;
use crate::diagnostics::check_log::{self, LookupMethod};
use crate::driver;
use crate::state::relations;

type Dlsym = unsafe extern "C" fn(handle: *mut c_void, name: *const c_char) -> *mut c_void;

/// The C library's `dlsym`. Another interposer's behind us has none of its versions, and is found only if that library has
/// no versions at all, not even of what it needs.
fn next() -> Option<Dlsym> {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        // Neither opens anything nor allocates: whoever calls dlsym may be an allocator that is not ready yet.
        next = DLSYM_VERSIONS.iter().find_map(|version| {
            // SAFETY: the names are NUL-terminated.
            let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            (!found.is_null()).then_some(found)
        })?;
        NEXT.store(next, Ordering::Relaxed);
    }
    // SAFETY: it is a function of that name, which has that type.
    Some(unsafe { mem::transmute::<*mut c_void, Dlsym>(next) })
}

/// What `dlsym` is where there is none.
unsafe extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// The program's `dlsym`. The real one looks at who called it, where the handle is none: so it is jumped to with
/// everything as the caller left it.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        decide = sym decide,
    )
}

/// As above.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "bti c",
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {decide}",
        "mov x16, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x16",
        decide = sym decide,
    )
}

/// Which function a call of `dlsym` goes to.
///
/// Without a handle that is always the real one: it searches in the order of the libraries, in which we stand in front of
/// the driver and behind whoever was preloaded before us.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Dlsym {
    let Some(next) = next() else { return nothing };
    // First, and without a function of another library: a malloc may call this before this library is relocated.
    // SAFETY: by the contract of dlsym the name is NUL-terminated.
    if !unsafe { is_of_cuda(name) } {
        return next;
    }
    // SAFETY: as above.
    unsafe { note_unseen(name) };
    // SAFETY: as above.
    if !unsafe { is_hooked(name) } || handle == libc::RTLD_NEXT {
        return next;
    }
    if handle == libc::RTLD_DEFAULT {
        return if is_driver_loaded() { next } else { absent };
    }
    substitute
}

/// Whether a name may be that of a function of CUDA's.
///
/// # Safety
/// The name is NULL or NUL-terminated.
unsafe fn is_of_cuda(name: *const c_char) -> bool {
    let is = |at: usize, byte: u8| {
        // SAFETY: by this function's contract; a byte is read only where the one before is not the last.
        unsafe { name.cast::<u8>().wrapping_add(at).read() == byte }
    };
    !name.is_null() && is(0, b'c') && is(1, b'u')
}

/// Whether there is a hook for a name that `dlsym` was asked for.
///
/// # Safety
/// The name is NUL-terminated.
unsafe fn is_hooked(name: *const c_char) -> bool {
    // SAFETY: by this function's contract.
    driver::is_hooked(unsafe { CStr::from_ptr(name) })
}

/// A function that nothing is known of may let work touch any memory once it is called, which would not be seen.
///
/// # Safety
/// The name is NUL-terminated.
unsafe fn note_unseen(name: *const c_char) {
    // SAFETY: by this function's contract.
    if driver::may_touch_unseen(unsafe { CStr::from_ptr(name) }) {
        relations::relate_all();
    }
}

fn is_driver_loaded() -> bool {
    // SAFETY: the name is NUL-terminated; nothing is loaded by it.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if !handle.is_null() {
        // SAFETY: the handle was given above, and the driver stays: somebody else holds it.
        unsafe { libc::dlclose(handle) };
    }
    !handle.is_null()
}

/// Programs ask for a name of the driver's to learn whether there is one: that we have the name is no reason to say so.
unsafe extern "C" fn absent(handle: *mut c_void, _: *const c_char) -> *mut c_void {
    let Some(next) = next() else { return ptr::null_mut() };
    // SAFETY: the name is NUL-terminated. It is in no library, and in the words that dlerror then has.
    unsafe { next(handle, c"cu (libcuda.so.1 is not loaded)".as_ptr()) }
}

/// Looks a hook's name up in a library: if it is the driver, ours is found.
unsafe extern "C" fn substitute(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let Some(next) = next() else { return ptr::null_mut() };
    // SAFETY: as the caller vouches.
    let found = unsafe { next(handle, name) };
    if found.is_null() {
        return found;
    }
    // Of another library it may be another function.
    // SAFETY: as above, NUL-terminated.
    let function = driver::at(found, unsafe { CStr::from_ptr(name) });
    match function.and_then(|function| Some((function, hook_of(function)?))) {
        Some((function, hook)) => {
            check_log::looked_up(LookupMethod::Dlsym, function.seen(), function.symbol());
            hook
        }
        None => found,
    }
}
