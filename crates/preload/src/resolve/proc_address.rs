//! The addresses of the hooks, and `cuGetProcAddress`, which returns them. Both are in one file, because
//! `cuGetProcAddress` is a hook itself.

use std::ffi::{CStr, c_char, c_int, c_void};

use cuda_sys::*;

use crate::diagnostics::check_log::{self, LookupMethod};
use crate::driver::{self, Function, real};
use crate::hooks::async_alloc::*;
use crate::hooks::capture::*;
use crate::hooks::context::*;
use crate::hooks::cross_device::*;
use crate::hooks::device::*;
use crate::hooks::memory_pools::*;
use crate::hooks::pinned::*;
use crate::hooks::pointers::*;
use crate::hooks::retried::*;
use crate::hooks::unanalyzed::*;
use crate::state::relations;

/// The address of a hook.
struct Address(*const c_void);

// SAFETY: it is the address of a function, which any thread may call.
unsafe impl Sync for Address {}

macro_rules! table {
    ($($symbol:ident: $of:ident, $kind:ident, $why:literal;)*) => {
        /// The addresses of the hooks in `hook_list`, in its order.
        static ANALYZED: [Address; [$(stringify!($symbol)),*].len()] = [$(Address($symbol as *const c_void),)*];
    };
}
hook_list::hooks!(table);

macro_rules! unanalyzed_table {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        /// The addresses of the hooks in `unanalyzed_list`, in its order.
        static UNANALYZED: [Address; [$($since),*].len()] = [$(Address($symbol as *const c_void),)*];
    };
}
crate::unanalyzed_list::unanalyzed!(unanalyzed_table);

/// Returns the hook of a function.
pub(super) fn hook_of(function: &Function) -> Option<*mut c_void> {
    ANALYZED.iter().chain(&UNANALYZED).nth(function.place()).map(|hook| hook.0.cast_mut())
}

/// Replaces a function of the driver that `cuGetProcAddress` has returned by its hook.
fn replace(place: *mut *mut c_void, name: *const c_char, version: c_int, flags: cuuint64_t) {
    if place.is_null() || name.is_null() {
        return;
    }
    // SAFETY: not NULL, so the caller's for writing, and the driver has just written it.
    let found = unsafe { *place };
    if found.is_null() {
        return;
    }
    // SAFETY: not NULL, so NUL-terminated by the contract of cuGetProcAddress.
    let name = unsafe { CStr::from_ptr(name) };
    let per_thread = flags & cuuint64_t::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    // A driver may return another address than the one it exports, so its documentation is consulted too.
    let function = driver::at(found, c"").or_else(|| driver::by_version(name, version, per_thread));
    match function.and_then(|function| Some((function, hook_of(function)?))) {
        Some((function, hook)) => {
            function.note_address(found);
            check_log::looked_up(LookupMethod::ProcAddress, function.seen(), function.symbol());
            // SAFETY: as above.
            unsafe { *place = hook };
        }
        None => {
            if version > NEWEST_HEADERS && driver::has_name(name) {
                check_log::too_new(name, version);
            }
            // It is not one of the functions known by that name.
            if driver::is_touching(name) {
                relations::relate_all();
            }
        }
    }
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    let Some(get) = real::cuGetProcAddress() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { get(symbol, place, version, flags) };
    if code == CUDA_SUCCESS {
        replace(place, symbol, version, flags);
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let Some(get) = real::cuGetProcAddress_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { get(symbol, place, version, flags, status) };
    if code == CUDA_SUCCESS {
        replace(place, symbol, version, flags);
    }
    code
}
