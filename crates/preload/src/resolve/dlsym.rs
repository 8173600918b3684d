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

/// Returns the C library's `dlsym`. Another interposer's `dlsym` has none of its versions, and is found only in a
/// library without any versions, required ones included.
fn next() -> Option<Dlsym> {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        // Neither opens nor allocates anything, because the caller of dlsym may be an allocator that is not ready yet.
        next = DLSYM_VERSIONS.iter().find_map(|version| {
            // SAFETY: the names are NUL-terminated.
            let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            (!found.is_null()).then_some(found)
        })?;
        NEXT.store(next, Ordering::Relaxed);
    }
    // SAFETY: a function of that name has that type.
    Some(unsafe { mem::transmute::<*mut c_void, Dlsym>(next) })
}

/// Called if there is no `dlsym`.
unsafe extern "C" fn no_dlsym(_: *mut c_void, _: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// The program's `dlsym`. Without a handle the real one examines its caller, so control jumps to it with registers and
/// stack as the caller left them.
///
/// # Safety
/// The contract is that of the C library's function.
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

/// The program's `dlsym`, on this architecture.
///
/// # Safety
/// The contract is that of the C library's function.
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

/// Returns the function that a call of `dlsym` goes to.
///
/// Without a handle that is always the real one. It searches the libraries in their order, in which the interposer is
/// before the driver and after libraries preloaded before it.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Dlsym {
    let Some(next) = next() else { return no_dlsym };
    // Checked first, and without a function of another library, because a malloc may call this before this library is
    // relocated.
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

/// Returns whether a name may be that of a CUDA function.
///
/// # Safety
/// The name is NULL or NUL-terminated.
unsafe fn is_of_cuda(name: *const c_char) -> bool {
    let is = |at: usize, byte: u8| {
        // SAFETY: by this function's contract. A byte is read only if the one before is not the last.
        unsafe { name.cast::<u8>().wrapping_add(at).read() == byte }
    };
    !name.is_null() && is(0, b'c') && is(1, b'u')
}

/// Returns whether a function of this name is hooked.
///
/// # Safety
/// The name is NUL-terminated.
unsafe fn is_hooked(name: *const c_char) -> bool {
    // SAFETY: by this function's contract.
    driver::is_hooked(unsafe { CStr::from_ptr(name) })
}

/// Relates all contexts if the program looks up an unknown function that may let work use any memory, because its calls
/// would not be seen.
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
    // SAFETY: the name is NUL-terminated, and the call loads nothing.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if !handle.is_null() {
        // SAFETY: the handle was returned above, and the driver stays loaded by its other user.
        unsafe { libc::dlclose(handle) };
    }
    !handle.is_null()
}

/// Called for a name of the driver if there is no driver. Programs look a name up to learn this, so the interposer's
/// own function must not be found.
unsafe extern "C" fn absent(handle: *mut c_void, _: *const c_char) -> *mut c_void {
    let Some(next) = next() else { return ptr::null_mut() };
    // SAFETY: the name is NUL-terminated. It is in no library, and appears in the message of dlerror.
    unsafe { next(handle, c"cu (libcuda.so.1 is not loaded)".as_ptr()) }
}

/// Looks a hooked name up in a library. Returns the hook if the library is the driver.
unsafe extern "C" fn substitute(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let Some(next) = next() else { return ptr::null_mut() };
    // SAFETY: guaranteed by the caller.
    let found = unsafe { next(handle, name) };
    if found.is_null() {
        return found;
    }
    // In another library it may be a different function.
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
