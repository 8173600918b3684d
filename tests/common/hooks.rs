//! The driver's functions by name, as a preloaded program finds them.

use cuda_sys::*;
use std::ptr::null_mut;

/// Returns a function as the program finds it: the interposer's hook, if there is one.
macro_rules! found {
    ($name:ident) => {{
        // SAFETY: the simulation is in this process, under its own name.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let name = concat!(stringify!($name), "\0");
        // SAFETY: an open library, and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
        assert!(!found.is_null(), "{name}");
        // SAFETY: it was found as the function of that name.
        unsafe { std::mem::transmute::<*mut libc::c_void, cuda_sys::fns::$name>(found) }
    }};
}

/// Calls it. SAFETY: the arguments are as the driver's manual requires.
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {{
        let function = $crate::common::hooks::found!($name);
        // SAFETY: as stated above.
        unsafe { function($($argument),*) }
    }};
}

macro_rules! must {
    ($name:ident($($argument:expr),*)) => {
        assert_eq!($crate::common::hooks::call!($name($($argument),*)), cuda_sys::CUDA_SUCCESS, stringify!($name))
    };
}

pub(crate) use {call, found, must};

/// Creates a green context with the whole device. Returns it and its `CUcontext`.
pub fn green(device: CUdevice) -> (CUgreenCtx, u64) {
    let (mut all, mut descriptor) = (CUdevResource::default(), null_mut());
    let (mut green, mut context) = (null_mut(), null_mut());
    must!(cuDeviceGetDevResource(device, &mut all, CU_DEV_RESOURCE_TYPE_SM));
    must!(cuDevResourceGenerateDesc(&mut descriptor, &mut all, 1));
    must!(cuGreenCtxCreate(&mut green, descriptor, device, CU_GREEN_CTX_DEFAULT_STREAM));
    must!(cuCtxFromGreenCtx(&mut context, green));
    (green, context as u64)
}
