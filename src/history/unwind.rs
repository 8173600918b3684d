//! The native frames of the calling thread, from the unwinder of C++ exceptions. It needs no frame pointers, only the
//! unwind tables that each object has. It allocates nothing, and may take the lock of the dynamic loader: no lock of the
//! library is held meanwhile.

use bfc_formats::history::layout::MOST_FRAMES;
use std::ffi::{c_int, c_void};

/// The addresses of calls, the innermost first.
pub(super) struct Addresses {
    pub(super) list: [u64; MOST_FRAMES],
    pub(super) count: usize,
    /// Whether there were more.
    pub(super) is_cut: bool,
}

/// The unwinder's state, which only the unwinder reads.
#[repr(C)]
struct Context([u8; 0]);

type Step = extern "C" fn(context: *mut Context, addresses: *mut c_void) -> c_int;

/// The results of a step: continue, or end.
const GO_ON: c_int = 0;
const END: c_int = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(step: Step, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, is_before_instruction: *mut c_int) -> usize;
}

/// Walks the stack of the calling thread.
#[inline(never)]
pub(super) fn walk(addresses: &mut Addresses) {
    // SAFETY: the step gets this argument, and nothing else uses it during the call.
    unsafe { _Unwind_Backtrace(note, (&raw mut *addresses).cast()) };
}

extern "C" fn note(context: *mut Context, addresses: *mut c_void) -> c_int {
    // SAFETY: this is the argument of `walk`.
    let addresses = unsafe { &mut *addresses.cast::<Addresses>() };
    let mut is_before = 0;
    // SAFETY: the context is the unwinder's.
    let address = unsafe { _Unwind_GetIPInfo(context, &raw mut is_before) } as u64;
    if address == 0 {
        return END;
    }
    let Some(place) = addresses.list.get_mut(addresses.count) else {
        addresses.is_cut = true;
        return END;
    };
    // A return address may be the next line's, or the next function's. A signal interrupts at the instruction itself.
    *place = address - u64::from(is_before == 0);
    addresses.count += 1;
    GO_ON
}
