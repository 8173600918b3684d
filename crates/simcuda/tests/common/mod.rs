//! The simulated driver for one test at a time, and the driver's functions as methods that return what they write.
#![allow(dead_code)]

pub use steer;

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use cuda_sys::*;
pub use steer::Steer;

/// What a function answers if it is not CUDA_SUCCESS.
pub type Answer<T = ()> = Result<T, CUresult>;

/// The simulation, fresh, for one test; other tests of the process wait.
pub struct Machine {
    pub steer: Steer,
    pub driver: Driver,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

pub const MIB: u64 = 1 << 20;

/// A machine with devices of 256 MiB; initialised, and nothing else.
pub fn machine(devices: i32) -> Machine {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let steer = Steer::load().expect("the simulated driver");
    assert_eq!(steer.configure(devices, 256 * MIB), 0);
    let driver = Driver::load().expect("a driver");
    let machine = Machine { steer, driver, _alone: alone };
    machine.init().expect("cuInit");
    machine
}

/// The same with the first device's primary context current.
pub fn ready() -> Machine {
    let machine = machine(1);
    machine.enter(0);
    machine
}

/// The driver's functions, by the names of `cuda.h` without their versions. The answer is as if the function had
/// the signature that is written here.
macro_rules! calls {
    ($($method:ident = $symbol:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Machine {
            $(calls!(@one $method = $symbol($($argument: $type),*) $(-> $result)?);)*
        }
    };
    (@one $method:ident = $symbol:ident($($argument:ident: $type:ty),*)) => {
        pub fn $method(&self, $($argument: $type),*) -> Answer {
            let function = self.driver.$symbol().expect("it is in the list");
            // SAFETY: the arguments are numbers, handles that the simulation checks, or pointers that live.
            answer(unsafe { function($($argument),*) })
        }
    };
    (@one $method:ident = $symbol:ident($($argument:ident: $type:ty),*) -> $result:ty) => {
        pub fn $method(&self, $($argument: $type),*) -> Answer<$result> {
            let function = self.driver.$symbol().expect("it is in the list");
            // SAFETY: all results are numbers, handles or plain structures of them.
            let mut result: $result = unsafe { std::mem::zeroed() };
            // SAFETY: as above, and the result lives.
            answer(unsafe { function(&raw mut result, $($argument),*) })?;
            Ok(result)
        }
    };
}

pub fn answer(code: CUresult) -> Answer {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

calls! {
    primary = cuDevicePrimaryCtxRetain(device: CUdevice) -> CUcontext;
    primary_release = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    primary_reset = cuDevicePrimaryCtxReset_v2(device: CUdevice);
    context = cuCtxCreate_v2(flags: u32, device: CUdevice) -> CUcontext;
    context_destroy = cuCtxDestroy_v2(context: CUcontext);
    context_attach = cuCtxAttach(flags: u32) -> CUcontext;
    context_detach = cuCtxDetach(context: CUcontext);
    context_record = cuCtxRecordEvent(context: CUcontext, event: CUevent);
    context_wait = cuCtxWaitEvent(context: CUcontext, event: CUevent);
    descriptor = cuDevResourceGenerateDesc(resources: *mut CUdevResource, count: u32) -> CUdevResourceDesc;
    green = cuGreenCtxCreate(descriptor: CUdevResourceDesc, device: CUdevice, flags: u32) -> CUgreenCtx;
    green_destroy = cuGreenCtxDestroy(green: CUgreenCtx);
    context_of_green = cuCtxFromGreenCtx(green: CUgreenCtx) -> CUcontext;
    green_stream = cuGreenCtxStreamCreate(green: CUgreenCtx, flags: u32, priority: i32) -> CUstream;
    green_record = cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent);
    green_wait = cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent);
    push = cuCtxPushCurrent_v2(context: CUcontext);
    pop = cuCtxPopCurrent_v2() -> CUcontext;
    set_current = cuCtxSetCurrent(context: CUcontext);
    current = cuCtxGetCurrent() -> CUcontext;
    current_device = cuCtxGetDevice() -> CUdevice;
    synchronize = cuCtxSynchronize();
    alloc = cuMemAlloc_v2(bytes: usize) -> CUdeviceptr;
    free = cuMemFree_v2(address: CUdeviceptr);
    managed = cuMemAllocManaged(bytes: usize, flags: u32) -> CUdeviceptr;
    pinned = cuMemHostAlloc(bytes: usize, flags: u32) -> *mut c_void;
    pinned_free = cuMemFreeHost(memory: *mut c_void);
    copy = cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    copy_async = cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    set8 = cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize);
    set8_async = cuMemsetD8Async(at: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    set32_async = cuMemsetD32Async(at: CUdeviceptr, value: u32, count: usize, stream: CUstream);
    stream = cuStreamCreate(flags: u32) -> CUstream;
    stream_destroy = cuStreamDestroy_v2(stream: CUstream);
    stream_query = cuStreamQuery(stream: CUstream);
    stream_synchronize = cuStreamSynchronize(stream: CUstream);
    stream_wait = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32);
    host_function = cuLaunchHostFunc(stream: CUstream, function: CUhostFn, argument: *mut c_void);
    event = cuEventCreate(flags: u32) -> CUevent;
    event_destroy = cuEventDestroy_v2(event: CUevent);
    record = cuEventRecord(event: CUevent, stream: CUstream);
    event_query = cuEventQuery(event: CUevent);
    event_synchronize = cuEventSynchronize(event: CUevent);
    elapsed = cuEventElapsedTime(start: CUevent, end: CUevent) -> f32;
    begin_capture = cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    begin_recapture = cuStreamBeginRecaptureToGraph(
        stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void
    );
    instantiate = cuGraphInstantiateWithFlags(graph: CUgraph, flags: u64) -> CUgraphExec;
    graph_launch = cuGraphLaunch(graph: CUgraphExec, stream: CUstream);
    graph_destroy = cuGraphDestroy(graph: CUgraph);
    executable_destroy = cuGraphExecDestroy(graph: CUgraphExec);
    address_reserve = cuMemAddressReserve(size: usize, alignment: usize, at: CUdeviceptr, flags: u64) -> CUdeviceptr;
    address_free = cuMemAddressFree(at: CUdeviceptr, size: usize);
    create = cuMemCreate(size: usize, properties: *const CUmemAllocationProp, flags: u64)
        -> CUmemGenericAllocationHandle;
    handle_release = cuMemRelease(handle: CUmemGenericAllocationHandle);
    map = cuMemMap(at: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
    unmap = cuMemUnmap(at: CUdeviceptr, size: usize);
    set_access = cuMemSetAccess(at: CUdeviceptr, size: usize, how: *const CUmemAccessDesc, count: usize);
    alloc_async = cuMemAllocAsync(bytes: usize, stream: CUstream) -> CUdeviceptr;
    free_async = cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    default_pool = cuDeviceGetDefaultMemPool(device: CUdevice) -> CUmemoryPool;
    module_unload = cuModuleUnload(module: CUmodule);
    pool_trim = cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    pool_destroy = cuMemPoolDestroy(pool: CUmemoryPool);
    pool_create = cuMemPoolCreate(properties: *const CUmemPoolProps) -> CUmemoryPool;
    alloc_from = cuMemAllocFromPoolAsync(bytes: usize, pool: CUmemoryPool, stream: CUstream) -> CUdeviceptr;
    graph_trim = cuDeviceGraphMemTrim(device: CUdevice);
    enable_peer = cuCtxEnablePeerAccess(peer: CUcontext, flags: u32);
    ipc_handle = cuIpcGetMemHandle(address: CUdeviceptr) -> CUipcMemHandle;
    ipc_open = cuIpcOpenMemHandle_v2(handle: CUipcMemHandle, flags: u32) -> CUdeviceptr;
    ipc_close = cuIpcCloseMemHandle(address: CUdeviceptr);
    array = cuArrayCreate_v2(description: *const CUDA_ARRAY_DESCRIPTOR) -> CUarray;
    array_3d = cuArray3DCreate_v2(description: *const CUDA_ARRAY3D_DESCRIPTOR) -> CUarray;
    array_destroy = cuArrayDestroy(array: CUarray);
    mipmapped = cuMipmappedArrayCreate(description: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> CUmipmappedArray;
    mipmapped_destroy = cuMipmappedArrayDestroy(array: CUmipmappedArray);
    copy_2d = cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    write_value = cuStreamWriteValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32);
    write_value_64 = cuStreamWriteValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32);
    wait_value = cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: u32);
    wait_value_64 = cuStreamWaitValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: u32);
    module = cuModuleLoadData(image: *const c_void) -> CUmodule;
    function = cuModuleGetFunction(module: CUmodule, name: *const std::ffi::c_char) -> CUfunction;
    graph = cuGraphCreate(flags: u32) -> CUgraph;
    empty_node = cuGraphAddEmptyNode(graph: CUgraph, after: *const CUgraphNode, count: usize) -> CUgraphNode;
    kernel_node = cuGraphAddKernelNode_v2(
        graph: CUgraph, after: *const CUgraphNode, count: usize, launch: *const CUDA_KERNEL_NODE_PARAMS
    ) -> CUgraphNode;
    set_node = cuGraphAddMemsetNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, set: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext
    ) -> CUgraphNode;
    copy_node = cuGraphAddMemcpyNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, copy: *const CUDA_MEMCPY3D, context: CUcontext
    ) -> CUgraphNode;
    alloc_node = cuGraphAddMemAllocNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, wanted: *mut CUDA_MEM_ALLOC_NODE_PARAMS
    ) -> CUgraphNode;
    free_node = cuGraphAddMemFreeNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, at: CUdeviceptr
    ) -> CUgraphNode;
    record_node = cuGraphAddEventRecordNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent
    ) -> CUgraphNode;
    wait_node = cuGraphAddEventWaitNode(
        graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent
    ) -> CUgraphNode;
    device_count = cuDeviceGetCount() -> i32;
}

/// A stream that does not wait for the legacy default stream.
pub fn stream(machine: &Machine) -> CUstream {
    machine.stream(CU_STREAM_NON_BLOCKING).unwrap()
}

impl Machine {
    pub fn init(&self) -> Answer {
        let function = self.driver.cuInit().expect("it is in the list");
        // SAFETY: it takes a number.
        answer(unsafe { function(0) })
    }

    /// Makes a device's primary context current to this thread.
    pub fn enter(&self, device: CUdevice) -> CUcontext {
        let context = self.primary(device).expect("a primary context");
        self.set_current(context).expect("it lives");
        context
    }

    pub fn mem_info(&self) -> Answer<(usize, usize)> {
        let function = self.driver.cuMemGetInfo_v2().expect("it is in the list");
        let (mut free, mut total) = (0, 0);
        // SAFETY: both results live.
        answer(unsafe { function(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    pub fn end_capture(&self, stream: CUstream) -> Answer<CUgraph> {
        let function = self.driver.cuStreamEndCapture().expect("it is in the list");
        let mut graph = std::ptr::null_mut();
        // SAFETY: the result lives.
        answer(unsafe { function(stream, &raw mut graph) })?;
        Ok(graph)
    }

    pub fn capture_status(&self, stream: CUstream) -> Answer<CUstreamCaptureStatus> {
        let function = self.driver.cuStreamIsCapturing().expect("it is in the list");
        let mut status = 0;
        // SAFETY: the result lives.
        answer(unsafe { function(stream, &raw mut status) })?;
        Ok(status)
    }

    /// Sets the thread's capture mode and gives the one before.
    pub fn exchange_mode(&self, mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
        let function = self.driver.cuThreadExchangeStreamCaptureMode().expect("it is in the list");
        // SAFETY: the mode lives.
        answer(unsafe { function(&raw mut mode) }).expect("a known mode");
        mode
    }

    /// Properties of physical memory of a device.
    pub fn properties(&self, device: CUdevice, handle_types: u32) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: handle_types,
            location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            ..CUmemAllocationProp::default()
        }
    }

    pub fn physical(&self, bytes: u64) -> Answer<CUmemGenericAllocationHandle> {
        self.create(bytes as usize, &self.properties(0, 0), 0)
    }

    /// Lets a device read and write a range.
    pub fn allow(&self, at: CUdeviceptr, bytes: u64, device: CUdevice) -> Answer {
        let description = CUmemAccessDesc {
            location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        self.set_access(at, bytes as usize, &raw const description, 1)
    }

    // Work, by simcuda.h.

    pub fn hold(&self, stream: CUstream) {
        assert_eq!(self.steer.hold(stream.cast()), 0);
    }

    pub fn step(&self, stream: CUstream, n: u64) -> u64 {
        self.steer.step(stream.cast(), n)
    }

    pub fn release(&self, stream: CUstream) {
        assert_eq!(self.steer.release(stream.cast()), 0);
    }

    pub fn fill(&self, stream: CUstream, at: CUdeviceptr, bytes: u64, pattern: u64) -> Answer {
        answer(self.steer.fill(stream.cast(), at, bytes, pattern))
    }

    pub fn expect(&self, stream: CUstream, at: CUdeviceptr, bytes: u64, pattern: u64) -> Answer {
        answer(self.steer.expect(stream.cast(), at, bytes, pattern))
    }

    /// A byte of device memory, as the host sees it at once; the simulated device's memory is the host's.
    pub fn byte(&self, at: CUdeviceptr) -> u8 {
        // SAFETY: the test has allocated it.
        unsafe { (at as *const u8).read_volatile() }
    }

    /// Nothing was done that a real driver leaves undefined.
    pub fn was_well_used(&self) {
        assert_eq!(
            (self.steer.misuses(), self.steer.mismatches()),
            (0, 0),
            "{:?}",
            self.steer.misuse_texts()
        );
    }
}

/// The null stream.
pub const LEGACY: CUstream = std::ptr::null_mut();
