//! The hooks of functions whose arguments are not analyzed (`unanalyzed_list`). They declare no arguments. Each relates
//! all contexts and jumps to the driver's function, with registers and stack as the caller left them.

use std::ffi::c_void;

use cuda_sys::{CUDA_ERROR_NOT_INITIALIZED, CUresult};

use crate::driver;
use crate::state::{contexts, relations};

/// Returns the function to jump to, by its position in the list.
extern "C" fn enter(place: usize) -> *const c_void {
    // With one context there is nothing to relate.
    if contexts::are_several() {
        relations::relate_all();
    }
    match driver::real_unanalyzed(place) {
        Some(real) => real.as_ptr(),
        None => missing as *const c_void,
    }
}

/// Called if there is no driver, or it lacks the function.
extern "C" fn missing() -> CUresult {
    CUDA_ERROR_NOT_INITIALIZED
}

macro_rules! goes_on {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        #[derive(Clone, Copy)]
        enum Place {
            $($symbol,)*
        }

        $(
            /// Relates all contexts, and jumps to the driver's function.
            ///
            /// # Safety
            /// The contract is that of the driver's function.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol() {
                std::arch::naked_asm!(
                    "endbr64",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "mov edi, {place}",
                    "call {enter}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    place = const Place::$symbol as usize,
                    enter = sym enter,
                )
            }

            /// Relates all contexts, and jumps to the driver's function.
            ///
            /// # Safety
            /// The contract is that of the driver's function.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol() {
                std::arch::naked_asm!(
                    "bti c",
                    "stp x0, x1, [sp, #-80]!",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "str x30, [sp, #64]",
                    "mov x0, #{place}",
                    "bl {enter}",
                    "mov x16, x0",
                    "ldr x30, [sp, #64]",
                    "ldp x6, x7, [sp, #48]",
                    "ldp x4, x5, [sp, #32]",
                    "ldp x2, x3, [sp, #16]",
                    "ldp x0, x1, [sp], #80",
                    "br x16",
                    place = const Place::$symbol as usize,
                    enter = sym enter,
                )
            }
        )*
    };
}
crate::unanalyzed_list::unanalyzed!(goes_on);
