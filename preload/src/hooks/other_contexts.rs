//! The hooks of further functions that create contexts: by the name that old programs are linked to, and that ctypes finds
//! where no version is named, and for OpenGL and VDPAU.

use std::ffi::{c_uint, c_void};

use cuda_sys::*;

use super::fallback::{Source, with_room};
use crate::driver::real;
use crate::state::user_contexts;

macro_rules! creates {
    ($($symbol:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(
                place: *mut CUcontext,
                flags: c_uint,
                device: CUdevice,
                $($argument: $type),*
            ) -> CUresult {
                let Some(create) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's arguments.
                let call = || unsafe { create(place, flags, device, $($argument),*) };
                let code = with_room(|| (Source::Device(device), 0), call);
                if code == CUDA_SUCCESS && !place.is_null() {
                    // SAFETY: not NULL, so the caller's, and the driver has written it.
                    user_contexts::note(unsafe { *place }, device);
                }
                code
            }
        )*
    };
}

creates! {
    cuCtxCreate();
    cuGLCtxCreate();
    cuGLCtxCreate_v2();
    cuVDPAUCtxCreate(vdpau: u32, find: *mut c_void);
    cuVDPAUCtxCreate_v2(vdpau: u32, find: *mut c_void);
}
