//! A program's own use of the (simulated) driver: contexts, streams, events, capture. A failure here
//! is a mistake of the test, so it panics, unless the test has injected failures, which may affect these calls too.

use super::simcuda::Simulation;
use cuda_sys::*;
use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

/// The legacy default stream.
pub const LEGACY: u64 = 1;
/// The calling thread's default stream.
pub const PER_THREAD: u64 = 2;

/// Both backends, with a unit for the sizes of a test: with granules, 32 of them are a granule.
pub const BACKENDS: [(u32, u64); 2] =
    [(super::BFC_BACKEND_CUDA, super::KIB), (super::BFC_BACKEND_CUDA_VMM, 64 * super::KIB)];

/// The driver, and its simulation.
#[derive(Clone, Copy)]
pub struct Gpu {
    /// To control it.
    pub sim: Simulation,
    driver: Driver,
    /// Set if failures were injected: a failed call is repeated, and a second failure is ignored.
    lenient: bool,
}

/// A green context, and the context that represents it.
#[derive(Clone, Copy)]
pub struct GreenContext {
    pub handle: u64,
    pub context: u64,
}

/// Calls the driver, which must succeed.
macro_rules! cu {
    ($gpu:expr, $function:ident($($argument:expr),*)) => {{
        let call = $gpu.driver.$function().expect("the simulation has it");
        let struck = $gpu.sim.struck();
        // SAFETY: the arguments are as the driver's manual requires.
        let mut code = unsafe { call($($argument),*) };
        if $gpu.lenient && $gpu.sim.struck() != struck {
            // SAFETY: as above. The first call had no effect.
            code = unsafe { call($($argument),*) };
        }
        assert!(code == CUDA_SUCCESS || $gpu.lenient, "{}: {code}", stringify!($function));
    }};
}

impl Gpu {
    /// Returns the driver, initialized.
    pub fn new(sim: Simulation) -> Gpu {
        let gpu = Gpu { sim, driver: sim.driver(), lenient: false };
        cu!(gpu, cuInit(0));
        gpu
    }

    /// Returns the driver for use while failures are injected.
    pub fn lenient(self) -> Gpu {
        Gpu { lenient: true, ..self }
    }

    /// Makes the primary context of a device current to this thread, as the CUDA runtime does, until [`Gpu::leave`].
    pub fn enter(self, device: i32) -> u64 {
        let mut context = ptr::null_mut();
        cu!(self, cuDevicePrimaryCtxRetain(&mut context, device));
        cu!(self, cuCtxSetCurrent(context));
        context as u64
    }

    /// Undoes [`Gpu::enter`].
    pub fn leave(self, device: i32) {
        self.set_current(0);
        self.release(device);
    }

    /// Releases a reference to a device's primary context.
    pub fn release(self, device: i32) {
        cu!(self, cuDevicePrimaryCtxRelease_v2(device));
    }

    /// Ends everything in it, as `cudaDeviceReset` does.
    pub fn reset(self, device: i32) {
        cu!(self, cuDevicePrimaryCtxReset_v2(device));
    }

    /// Waits until another thread has called a function of the driver.
    #[track_caller]
    pub fn await_call(self, function: &str) {
        let start = Instant::now();
        while self.sim.calls(function) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "no thread calls {function}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Allocates the program's own memory in the current context.
    pub fn alloc(self, bytes: u64) -> u64 {
        let mut address = 0;
        cu!(self, cuMemAlloc_v2(&mut address, bytes as usize));
        address
    }

    /// Frees it.
    pub fn free(self, address: u64) {
        cu!(self, cuMemFree_v2(address));
    }

    /// Makes a context that was retained on another thread current in this one.
    pub fn set_current(self, context: u64) {
        cu!(self, cuCtxSetCurrent(context as CUcontext));
    }

    /// Returns the thread's current context. 0 is none.
    pub fn current(self) -> u64 {
        let mut context = ptr::null_mut();
        cu!(self, cuCtxGetCurrent(&mut context));
        context as u64
    }

    /// Reserves a range of the program's own at an address, if possible, with a granule of physical memory at its
    /// beginning. Returns its address.
    pub fn map_granule(self, device: i32, at: u64, bytes: u64) -> u64 {
        const GRANULE: usize = 2 << 20;
        let mut base = 0;
        cu!(self, cuMemAddressReserve(&mut base, bytes as usize, 0, at, 0));
        let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let wanted = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            ..CUmemAllocationProp::default()
        };
        let mut handle = 0;
        cu!(self, cuMemCreate(&mut handle, GRANULE, &wanted, 0));
        cu!(self, cuMemMap(base, GRANULE, 0, handle, 0));
        base
    }

    /// Releases physical memory.
    pub fn release_physical(self, handle: u64) {
        cu!(self, cuMemRelease(handle));
    }

    pub fn destroy_array(self, array: u64) {
        cu!(self, cuArrayDestroy(array as CUarray));
    }

    /// Creates a context of the program's own and makes it current.
    pub fn own_context(self, device: i32) -> u64 {
        let mut context = ptr::null_mut();
        cu!(self, cuCtxCreate_v2(&mut context, 0, device));
        context as u64
    }

    /// Creates a green context with the whole device and makes it current.
    pub fn green_context(self, device: i32) -> GreenContext {
        let mut green = ptr::null_mut();
        cu!(self, cuGreenCtxCreate(&mut green, self.whole(device), device, CU_GREEN_CTX_DEFAULT_STREAM));
        self.entered(green)
    }

    /// Returns the resources of a green context with the whole device.
    pub fn whole(self, device: i32) -> CUdevResourceDesc {
        let (mut all, mut descriptor) = (CUdevResource::default(), ptr::null_mut());
        cu!(self, cuDeviceGetDevResource(device, &mut all, CU_DEV_RESOURCE_TYPE_SM));
        cu!(self, cuDevResourceGenerateDesc(&mut descriptor, &mut all, 1));
        descriptor
    }

    /// Creates a new green context and makes it current.
    pub fn entered(self, green: CUgreenCtx) -> GreenContext {
        let mut context = ptr::null_mut();
        cu!(self, cuCtxFromGreenCtx(&mut context, green));
        self.set_current(context as u64);
        GreenContext { handle: green as u64, context: context as u64 }
    }

    /// Creates a non-blocking stream of a green context.
    pub fn green_stream(self, green: GreenContext) -> u64 {
        let mut stream = ptr::null_mut();
        let flags = CU_STREAM_NON_BLOCKING;
        cu!(self, cuGreenCtxStreamCreate(&mut stream, green.handle as CUgreenCtx, flags, 0));
        stream as u64
    }

    /// Destroys it. Work queued on its streams still runs.
    pub fn destroy_green_context(self, green: GreenContext) {
        cu!(self, cuGreenCtxDestroy(green.handle as CUgreenCtx));
    }

    /// Lets the current context's work access the memory of another context.
    pub fn enable_peer(self, other: u64) {
        cu!(self, cuCtxEnablePeerAccess(other as CUcontext, 0));
    }

    /// Ends it.
    pub fn destroy_context(self, context: u64) {
        cu!(self, cuCtxDestroy_v2(context as CUcontext));
    }

    /// Creates a stream of the current context, non-blocking unless it must block for the legacy default stream.
    pub fn stream(self, blocking: bool) -> u64 {
        let mut stream = ptr::null_mut();
        let flags = if blocking { CU_STREAM_DEFAULT } else { CU_STREAM_NON_BLOCKING };
        cu!(self, cuStreamCreate(&mut stream, flags));
        stream as u64
    }

    /// Destroys a stream. Work queued there still runs.
    pub fn destroy_stream(self, stream: u64) {
        cu!(self, cuStreamDestroy_v2(stream as CUstream));
    }

    /// Waits for a stream's work.
    pub fn synchronize(self, stream: u64) {
        cu!(self, cuStreamSynchronize(stream as CUstream));
    }

    /// Creates a memory pool of the program's own, for `cuMemAllocAsync`.
    pub fn memory_pool(self, device: i32) -> u64 {
        let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let wanted = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            ..CUmemPoolProps::default()
        };
        let mut pool = ptr::null_mut();
        cu!(self, cuMemPoolCreate(&mut pool, &wanted));
        pool as u64
    }

    /// Returns the default memory pool of a device.
    pub fn default_memory_pool(self, device: i32) -> u64 {
        let mut pool = ptr::null_mut();
        cu!(self, cuDeviceGetDefaultMemPool(&mut pool, device));
        pool as u64
    }

    /// Returns the bytes of a memory pool that are in use.
    pub fn used_of_memory_pool(self, pool: u64) -> u64 {
        let mut bytes = 0u64;
        let attribute = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        cu!(self, cuMemPoolGetAttribute(pool as CUmemoryPool, attribute, (&raw mut bytes).cast()));
        bytes
    }

    /// Destroys a memory pool. The device's default one becomes current again.
    pub fn destroy_memory_pool(self, pool: u64) {
        cu!(self, cuMemPoolDestroy(pool as CUmemoryPool));
    }

    /// Waits for all work of the current context.
    pub fn synchronize_context(self) {
        cu!(self, cuCtxSynchronize());
    }

    /// Creates an event of the program, and records it on a stream.
    pub fn recorded(self, on: u64) -> u64 {
        let mut event = ptr::null_mut();
        cu!(self, cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING));
        cu!(self, cuEventRecord(event, on as CUstream));
        event as u64
    }

    /// Makes a stream's later work wait for an event.
    pub fn wait(self, stream: u64, event: u64) {
        cu!(self, cuStreamWaitEvent(stream as CUstream, event as CUevent, CU_EVENT_WAIT_DEFAULT));
    }

    /// Destroys an event. Work that waits for it still does.
    pub fn destroy_event(self, event: u64) {
        cu!(self, cuEventDestroy_v2(event as CUevent));
    }

    /// Orders a stream's later work after another stream's work so far.
    pub fn order(self, before: u64, after: u64) {
        let event = self.recorded(before);
        self.wait(after, event);
        self.destroy_event(event);
    }

    /// Sets the calling thread's capture mode. Returns the previous one.
    pub fn exchange_capture_mode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
        let mut mode = mode;
        cu!(self, cuThreadExchangeStreamCaptureMode(&mut mode));
        mode
    }

    /// Returns the device that an address belongs to.
    pub fn device_of(self, address: u64) -> i32 {
        let mut ordinal = -1i32;
        let out = (&raw mut ordinal).cast::<c_void>();
        cu!(self, cuPointerGetAttribute(out, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
        ordinal
    }

    /// Begins a capture in the strictest mode.
    pub fn begin_capture(self, stream: u64) {
        self.begin_capture_in(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }

    /// Begins a capture in a mode.
    pub fn begin_capture_in(self, stream: u64, mode: CUstreamCaptureMode) {
        cu!(self, cuStreamBeginCapture_v2(stream as CUstream, mode));
    }

    /// Ends a capture. Returns the code, and an executable graph if it was not broken.
    pub fn try_end_capture(self, stream: u64) -> Result<u64, CUresult> {
        let mut graph = ptr::null_mut();
        let end = self.driver.cuStreamEndCapture().expect("the simulation has it");
        let struck = self.sim.struck();
        // SAFETY: the stream lives, and the pointer is valid.
        let mut code = unsafe { end(stream as CUstream, &mut graph) };
        if self.lenient && self.sim.struck() != struck {
            // SAFETY: as above.
            code = unsafe { end(stream as CUstream, &mut graph) };
        }
        if code == CUDA_SUCCESS { Ok(self.instantiated(graph as u64)) } else { Err(code) }
    }

    /// Instantiates a captured graph, and destroys that.
    pub fn instantiated(self, graph: u64) -> u64 {
        let (mut executable, graph) = (ptr::null_mut(), graph as CUgraph);
        cu!(self, cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        cu!(self, cuGraphDestroy(graph));
        executable as u64
    }

    /// Copies between memory of any devices, in the order of a stream.
    pub fn copy(self, to: u64, to_context: u64, from: u64, from_context: u64, bytes: u64, stream: u64) {
        let (to_context, from_context) = (to_context as CUcontext, from_context as CUcontext);
        cu!(self, cuMemcpyPeerAsync(to, to_context, from, from_context, bytes as usize, stream as CUstream));
    }

    /// Like [`Gpu::try_end_capture`], for a capture that must not be broken.
    #[track_caller]
    pub fn end_capture(self, stream: u64) -> u64 {
        match self.try_end_capture(stream) {
            Ok(executable) => executable,
            Err(code) => panic!("the capture was broken: {code}, {}", self.sim.log_text()),
        }
    }

    /// Queues a graph's work.
    pub fn launch(self, executable: u64, stream: u64) {
        cu!(self, cuGraphLaunch(executable as CUgraphExec, stream as CUstream));
    }

    /// Destroys an executable graph. Queued launches still run.
    pub fn destroy_graph(self, executable: u64) {
        cu!(self, cuGraphExecDestroy(executable as CUgraphExec));
    }

    /// Queues a simulated kernel that fills a range.
    pub fn fill(self, stream: u64, address: u64, bytes: u64, pattern: u64) {
        let code = self.sim.fill(super::pointer(stream), address, bytes, pattern);
        assert!(code == CUDA_SUCCESS || self.lenient, "{code}");
    }

    /// Queues a simulated kernel that expects a pattern there.
    pub fn expect(self, stream: u64, address: u64, bytes: u64, pattern: u64) {
        let code = self.sim.expect(super::pointer(stream), address, bytes, pattern);
        assert!(code == CUDA_SUCCESS || self.lenient, "{code}");
    }

    /// Holds the work of a stream until it is stepped.
    pub fn hold(self, stream: u64) {
        let code = self.sim.hold(super::pointer(stream));
        assert!(code == CUDA_SUCCESS || self.lenient, "{code}");
    }

    /// Runs up to this many items of a held stream. Returns how many were run.
    pub fn step(self, stream: u64, items: u64) -> u64 {
        self.sim.step(super::pointer(stream), items)
    }

    /// Returns the number of items that wait on a stream.
    pub fn pending(self, stream: u64) -> u64 {
        self.sim.pending(super::pointer(stream))
    }
}
