//! The driver as a preloaded program sees it: found by `dlsym`, through the interposer. Functions without a hook are
//! called directly, through [`Gpu`].

use super::gpu::{Gpu, GreenContext};
use cuda_sys::*;
use std::ffi::{CString, c_void};
use std::ops::Deref;
use std::ptr;
use std::sync::OnceLock;

macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// The hooks.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: fns::$name,)*
        }

        impl Functions {
            fn find(library: *mut c_void) -> Functions {
                Functions {
                    $($name: {
                        let found = symbol(library, stringify!($name));
                        // SAFETY: it was found as the function of that name, which has that type.
                        unsafe { std::mem::transmute::<*mut c_void, fns::$name>(found) }
                    },)*
                }
            }
        }
    };
}

functions! {
    cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2, cuCtxCreate_v2, cuCtxDestroy_v2,
    cuMemAlloc_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync, cuDeviceSetMemPool, cuMemSetMemPool, cuMemHostAlloc,
    cuMemFreeHost, cuCtxSynchronize, cuStreamBeginCapture_v2, cuStreamEndCapture, cuStreamCreate, cuStreamDestroy_v2,
    cuCtxEnablePeerAccess, cuMemcpyPeerAsync, cuMemsetD8Async, cuGreenCtxCreate, cuGreenCtxDestroy, cuMemCreate,
    cuArrayCreate_v2, cuMemGetInfo_v2,
}

/// Returns a function of a library, which the interposer must have replaced.
fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let symbol = CString::new(name).expect("no NUL");
    // SAFETY: an open library, and a C string.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    let own = Driver::load().expect("the simulation is a driver").symbol(&symbol);
    assert!(!own.is_null() && !found.is_null(), "{name} is not found");
    assert_ne!(found, own, "{name} is the driver's own: nothing is interposed");
    found
}

/// The driver through the interposer. If a code is returned, the caller must check it.
#[derive(Clone, Copy)]
pub struct Hooked {
    /// The driver without the interposer.
    gpu: Gpu,
    functions: &'static Functions,
}

impl Deref for Hooked {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// Calls a hook. SAFETY of all of them: the arguments are as the driver's manual requires.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        // SAFETY: as stated above.
        unsafe { ($self.functions.$name)($($argument),*) }
    };
}

/// Calls a hook that must succeed.
macro_rules! must {
    ($self:ident.$name:ident($($argument:expr),*)) => {{
        let code = call!($self.$name($($argument),*));
        assert_eq!(code, CUDA_SUCCESS, "{}: {:#?}", stringify!($name), $self.sim.misuse_texts());
    }};
}

fn result<T>(code: CUresult, value: T) -> Result<T, CUresult> {
    if code == CUDA_SUCCESS { Ok(value) } else { Err(code) }
}

impl Hooked {
    pub fn new(gpu: Gpu) -> Hooked {
        static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
        let functions = FUNCTIONS.get_or_init(|| {
            // SAFETY: a C string. The library is already loaded.
            let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
            assert!(!library.is_null());
            Functions::find(library)
        });
        Hooked { gpu, functions }
    }

    /// Like [`Gpu::enter`].
    pub fn enter(self, device: i32) -> u64 {
        let mut context = ptr::null_mut();
        must!(self.cuDevicePrimaryCtxRetain(&mut context, device));
        self.set_current(context as u64);
        context as u64
    }

    /// Creates a context of the program's own and makes it current.
    pub fn own_context(self, device: i32) -> u64 {
        let mut context = ptr::null_mut();
        must!(self.cuCtxCreate_v2(&mut context, 0, device));
        context as u64
    }

    /// Like [`Gpu::enable_peer`].
    pub fn enable_peer(self, other: u64) {
        must!(self.cuCtxEnablePeerAccess(other as CUcontext, 0));
    }

    /// Like [`Gpu::copy`].
    pub fn copy(self, to: u64, to_context: u64, from: u64, from_context: u64, bytes: u64, stream: u64) {
        let (to_context, from_context) = (to_context as CUcontext, from_context as CUcontext);
        let stream = stream as CUstream;
        must!(self.cuMemcpyPeerAsync(to, to_context, from, from_context, bytes as usize, stream));
    }

    /// Destroys it.
    pub fn destroy_context(self, context: u64) {
        must!(self.cuCtxDestroy_v2(context as CUcontext));
    }

    /// Like [`Gpu::green_context`].
    pub fn green_context(self, device: i32) -> GreenContext {
        let (mut green, whole) = (ptr::null_mut(), self.gpu.whole(device));
        must!(self.cuGreenCtxCreate(&mut green, whole, device, CU_GREEN_CTX_DEFAULT_STREAM));
        self.gpu.entered(green)
    }

    /// Like [`Gpu::destroy_green_context`].
    pub fn destroy_green_context(self, green: GreenContext) {
        must!(self.cuGreenCtxDestroy(green.handle as CUgreenCtx));
    }

    /// Allocates physical memory without mapping it.
    pub fn create_physical(self, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let type_ = CU_MEM_ALLOCATION_TYPE_PINNED;
        let wanted = CUmemAllocationProp { type_, location, ..CUmemAllocationProp::default() };
        let mut handle = 0;
        result(call!(self.cuMemCreate(&mut handle, bytes as usize, &wanted, 0)), handle)
    }

    /// Creates an array of bytes.
    pub fn create_array(self, bytes: u64) -> Result<u64, CUresult> {
        const WIDTH: usize = 1 << 10;
        let mut array = ptr::null_mut();
        let wanted = CUDA_ARRAY_DESCRIPTOR {
            Width: WIDTH,
            Height: bytes as usize / WIDTH,
            Format: CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 1,
        };
        let code = call!(self.cuArrayCreate_v2(&mut array, &wanted));
        result(code, array as u64)
    }

    /// Returns the bytes that count as free on the current device.
    pub fn free_memory(self) -> u64 {
        let (mut free, mut total) = (0, 0);
        must!(self.cuMemGetInfo_v2(&mut free, &mut total));
        free as u64
    }

    /// Like [`Gpu::leave`].
    pub fn leave(self, device: i32) {
        self.set_current(0);
        must!(self.cuDevicePrimaryCtxRelease_v2(device));
    }

    pub fn reset(self, device: i32) {
        must!(self.cuDevicePrimaryCtxReset_v2(device));
    }

    pub fn alloc(self, bytes: u64) -> Result<u64, CUresult> {
        let mut address = 0;
        result(call!(self.cuMemAlloc_v2(&mut address, bytes as usize)), address)
    }

    pub fn free(self, address: u64) -> Result<(), CUresult> {
        result(call!(self.cuMemFree_v2(address)), ())
    }

    pub fn alloc_host(self, bytes: u64) -> Result<u64, CUresult> {
        let mut memory = ptr::null_mut();
        let code = call!(self.cuMemHostAlloc(&mut memory, bytes as usize, 0));
        result(code, memory as u64)
    }

    pub fn free_host(self, address: u64) -> Result<(), CUresult> {
        result(call!(self.cuMemFreeHost(address as *mut c_void)), ())
    }

    pub fn alloc_async(self, bytes: u64, stream: u64) -> Result<u64, CUresult> {
        let mut address = 0;
        let code = call!(self.cuMemAllocAsync(&mut address, bytes as usize, stream as CUstream));
        result(code, address)
    }

    pub fn free_async(self, address: u64, stream: u64) -> Result<(), CUresult> {
        result(call!(self.cuMemFreeAsync(address, stream as CUstream)), ())
    }

    /// Makes a memory pool the one that serves `alloc_async` on a device, with the function of CUDA 11 or of CUDA 13.
    pub fn set_memory_pool(self, device: i32, pool: u64, is_new: bool) {
        let pool = pool as CUmemoryPool;
        if is_new {
            let mut location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
            must!(self.cuMemSetMemPool(&mut location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
        } else {
            must!(self.cuDeviceSetMemPool(device, pool));
        }
    }

    /// Waits for the work of the current context.
    pub fn synchronize_context(self) {
        must!(self.cuCtxSynchronize());
    }

    /// Like [`Gpu::stream`].
    pub fn stream(self, blocking: bool) -> u64 {
        let (mut stream, flags) = (ptr::null_mut(), if blocking { 0 } else { CU_STREAM_NON_BLOCKING });
        must!(self.cuStreamCreate(&mut stream, flags));
        stream as u64
    }

    /// Fills memory with the driver's function.
    pub fn set_bytes(self, stream: u64, address: u64, bytes: u64) {
        must!(self.cuMemsetD8Async(address, 0, bytes as usize, stream as CUstream));
    }

    pub fn destroy_stream(self, stream: u64) {
        must!(self.cuStreamDestroy_v2(stream as CUstream));
    }

    pub fn begin_capture_in(self, stream: u64, mode: CUstreamCaptureMode) {
        must!(self.cuStreamBeginCapture_v2(stream as CUstream, mode));
    }

    /// Tries to begin a capture.
    pub fn try_begin_capture(self, stream: u64, mode: CUstreamCaptureMode) -> Result<(), CUresult> {
        result(call!(self.cuStreamBeginCapture_v2(stream as CUstream, mode)), ())
    }

    /// Ends a capture. Returns an executable graph if it was not broken.
    pub fn try_end_capture(self, stream: u64) -> Result<u64, CUresult> {
        let mut graph = ptr::null_mut();
        let code = call!(self.cuStreamEndCapture(stream as CUstream, &mut graph));
        result(code, graph as u64).map(|graph| self.gpu.instantiated(graph))
    }
}
