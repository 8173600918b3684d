//! The list of hooks, and the memory functions that have none.
//!
//! The interposer follows it, and `cargo xtask hooks` generates docs/hooks.md from it.

#![no_std]

/// Passes the list of hooks to `$callback!`. An entry is `SYMBOL: TYPE, KIND, "why";`. SYMBOL is what libcuda.so.1
/// exports, TYPE the function of cuda-sys's list that has its type (another one for the twins of the per-thread default
/// stream), and KIND a [`HookKind`].
#[macro_export]
macro_rules! hooks {
    ($callback:ident) => {
        $callback! {
        // Lookups of functions return the hooks.
        cuGetProcAddress: cuGetProcAddress, Watched, "returns the hooks to programs that look functions up by it, above all to the runtime";
        cuGetProcAddress_v2: cuGetProcAddress_v2, Watched, "the same, since CUDA 12";
        // Device memory.
        cuMemAlloc_v2: cuMemAlloc_v2, Pooled, "served from the pool";
        cuMemFree_v2: cuMemFree_v2, Pooled, "the chunk waits until the contexts that may use it have been synchronized; other pointers go to the driver";
        cuMemGetInfo_v2: cuMemGetInfo_v2, Corrected, "memory that the pool holds and does not use counts as free, up to what the limit leaves";
        cuMemGetAddressRange_v2: cuMemGetAddressRange_v2, Corrected, "the range of the pooled allocation, not of its region; with BFC_PRELOAD_IPC=1 that of the region";
        cuPointerGetAttribute: cuPointerGetAttribute, Corrected, "range, mapping, identity and IPC of the pooled allocation; with BFC_PRELOAD_IPC=1 those of its region";
        cuPointerGetAttributes: cuPointerGetAttributes, Corrected, "the same";
        cuIpcGetMemHandle: cuIpcGetMemHandle, Refused, "for a pooled pointer that does not begin its region: the driver's handle would name the region and lose the offset";
        // Memory that the pool may leave no room for.
        cuMemAllocPitch_v2: cuMemAllocPitch_v2, Passed, "the driver chooses the pitch; if it has no memory, the pool is trimmed and the driver asked again";
        cuMemAllocManaged: cuMemAllocManaged, Passed, "managed memory; trimmed and asked again, as above";
        cuMemCreate: cuMemCreate, Passed, "physical memory; trimmed and asked again, as above";
        cuMemAllocFromPoolAsync: cuMemAllocFromPoolAsync, Passed, "from a memory pool that the program names; trimmed and asked again, as above";
        cuMemAllocFromPoolAsync_ptsz: cuMemAllocFromPoolAsync, Passed, "the same";
        cuArrayCreate_v2: cuArrayCreate_v2, Retried, "arrays";
        cuArray3DCreate_v2: cuArray3DCreate_v2, Retried, "the same";
        cuMipmappedArrayCreate: cuMipmappedArrayCreate, Retried, "the same";
        cuMemPoolCreate: cuMemPoolCreate, Retried, "memory pools of the program";
        cuMemPoolImportFromShareableHandle: cuMemPoolImportFromShareableHandle, Retried, "the same";
        cuMemPoolImportPointer: cuMemPoolImportPointer, Retried, "the same";
        cuMemMap: cuMemMap, Retried, "page tables";
        cuMemHostRegister_v2: cuMemHostRegister_v2, Retried, "page tables, and memory of the host that idle pinned memory takes";
        cuIpcOpenMemHandle: cuIpcOpenMemHandle, Retried, "page tables for memory of another process";
        cuIpcOpenMemHandle_v2: cuIpcOpenMemHandle_v2, Retried, "the same";
        cuMulticastCreate: cuMulticastCreate, Retried, "memory of multicast objects";
        cuMulticastAddDevice: cuMulticastAddDevice, Retried, "the same";
        cuMulticastBindMem: cuMulticastBindMem, Retried, "the same";
        cuMulticastBindMem_v2: cuMulticastBindMem_v2, Retried, "the same";
        cuMulticastBindAddr: cuMulticastBindAddr, Retried, "memory of multicast objects; all devices of the object may use the bound memory, so from then on every pool waits for every context";
        cuMulticastBindAddr_v2: cuMulticastBindAddr_v2, Retried, "the same";
        cuGraphInstantiate: cuGraphInstantiate, Retried, "memory that a graph owns";
        cuGraphInstantiate_v2: cuGraphInstantiate_v2, Retried, "the same";
        cuGraphInstantiateWithFlags: cuGraphInstantiateWithFlags, Retried, "the same";
        cuGraphInstantiateWithParams: cuGraphInstantiateWithParams, Retried, "the same";
        cuGraphInstantiateWithParams_ptsz: cuGraphInstantiateWithParams, Retried, "the same";
        cuGraphUpload: cuGraphUpload, Retried, "the same";
        cuGraphUpload_ptsz: cuGraphUpload, Retried, "the same";
        cuGraphLaunch: cuGraphLaunch, Retried, "memory that a graph owns; the stream of one context may order work of another, so from then on every pool waits for every context";
        cuGraphLaunch_ptsz: cuGraphLaunch, Retried, "the same";
        cuModuleLoad: cuModuleLoad, Retried, "code and variables";
        cuModuleLoadData: cuModuleLoadData, Retried, "the same";
        cuModuleLoadDataEx: cuModuleLoadDataEx, Retried, "the same";
        cuModuleLoadFatBinary: cuModuleLoadFatBinary, Retried, "the same";
        cuLibraryLoadData: cuLibraryLoadData, Retried, "the same";
        cuLibraryLoadFromFile: cuLibraryLoadFromFile, Retried, "the same";
        cuModuleGetFunction: cuModuleGetFunction, Retried, "code that is loaded at its first use";
        cuModuleGetGlobal_v2: cuModuleGetGlobal_v2, Retried, "the same";
        cuLibraryGetModule: cuLibraryGetModule, Retried, "the same";
        cuLibraryGetGlobal: cuLibraryGetGlobal, Retried, "the same";
        cuKernelGetFunction: cuKernelGetFunction, Retried, "the same";
        cuKernelSetAttribute: cuKernelSetAttribute, Retried, "the same";
        cuFuncLoad: cuFuncLoad, Retried, "the same";
        cuLaunchKernel: cuLaunchKernel, Retried, "the same";
        cuLaunchKernel_ptsz: cuLaunchKernel, Retried, "the same";
        cuLaunchKernelEx: cuLaunchKernelEx, Retried, "the same";
        cuLaunchKernelEx_ptsz: cuLaunchKernelEx, Retried, "the same";
        cuLaunchCooperativeKernel: cuLaunchCooperativeKernel, Retried, "the same";
        cuLaunchCooperativeKernel_ptsz: cuLaunchCooperativeKernel, Retried, "the same";
        cuCtxSetLimit: cuCtxSetLimit, Retried, "stacks, and heaps of kernels";
        cuEventCreate: cuEventCreate, Retried, "resources of the device";
        // Stream-ordered memory.
        cuMemAllocAsync: cuMemAllocAsync, Optional, "passed to the driver; with BFC_PRELOAD_ASYNC=1 served in the order of the stream, except during a capture";
        cuMemAllocAsync_ptsz: cuMemAllocAsync, Optional, "the same";
        cuDeviceSetMemPool: cuDeviceSetMemPool, Watched, "requests of cuMemAllocAsync for a memory pool of the program's own are passed to the driver";
        cuMemSetMemPool: cuMemSetMemPool, Watched, "the same, since CUDA 13";
        cuMemFreeAsync: cuMemFreeAsync, Pooled, "a pooled pointer is freed in the pool; others go to the driver";
        cuMemFreeAsync_ptsz: cuMemFreeAsync, Pooled, "the same";
        // Pinned host memory.
        cuMemHostAlloc: cuMemHostAlloc, Optional, "passed to the driver; with BFC_PRELOAD_PINNED=1 pooled, unless it has flags; trimmed and asked again, as above";
        cuMemAllocHost_v2: cuMemAllocHost_v2, Optional, "the same";
        cuMemFreeHost: cuMemFreeHost, Optional, "like cuMemFree_v2 for pooled pinned memory; other pointers go to the driver";
        // Synchronization, and captures, which forbid it.
        cuCtxSynchronize: cuCtxSynchronize, Watched, "makes waiting chunks reusable";
        cuCtxSynchronize_v2: cuCtxSynchronize_v2, Watched, "the same, since CUDA 13";
        cuStreamBeginCapture: cuStreamBeginCapture, Watched, "nothing is synchronized during a capture";
        cuStreamBeginCapture_ptsz: cuStreamBeginCapture, Watched, "the same";
        cuStreamBeginCapture_v2: cuStreamBeginCapture_v2, Watched, "the same";
        cuStreamBeginCapture_v2_ptsz: cuStreamBeginCapture_v2, Watched, "the same";
        cuStreamBeginCaptureToGraph: cuStreamBeginCaptureToGraph, Watched, "the same";
        cuStreamBeginCaptureToGraph_ptsz: cuStreamBeginCaptureToGraph, Watched, "the same";
        cuStreamBeginRecaptureToGraph: cuStreamBeginRecaptureToGraph, Watched, "the same, since CUDA 13.3";
        cuStreamBeginRecaptureToGraph_ptsz: cuStreamBeginRecaptureToGraph, Watched, "the same";
        cuStreamBeginCaptureToCig: cuStreamBeginCaptureToCig, Watched, "the same, into a command list of a graphics API, since CUDA 13.1";
        cuStreamBeginCaptureToCig_ptsz: cuStreamBeginCaptureToCig, Watched, "the same";
        cuStreamEndCapture: cuStreamEndCapture, Watched, "ends the capture, if its beginning was seen";
        cuStreamEndCapture_ptsz: cuStreamEndCapture, Watched, "the same";
        cuStreamEndCaptureToCig: cuStreamEndCaptureToCig, Watched, "the same";
        cuStreamEndCaptureToCig_ptsz: cuStreamEndCaptureToCig, Watched, "the same";
        cuStreamCreate: cuStreamCreate, Watched, "the stream's context is remembered: it cannot be asked for during a capture; trimmed and asked again, as above";
        cuStreamCreateWithPriority: cuStreamCreateWithPriority, Watched, "the same";
        cuGreenCtxStreamCreate: cuGreenCtxStreamCreate, Watched, "the same";
        cuStreamDestroy: cuStreamDestroy, Watched, "ends a capture too; with BFC_PRELOAD_ASYNC=1 the pool forgets the stream";
        cuStreamDestroy_v2: cuStreamDestroy_v2, Watched, "the same";
        // Work that may use other devices' memory.
        cuCtxEnablePeerAccess: cuCtxEnablePeerAccess, Watched, "from then on the peer's pool waits for this context too";
        cuMemcpy: cuMemcpy, Watched, "may use memory of another device, whose pool then waits for this context too";
        cuMemcpy_ptds: cuMemcpy, Watched, "the same";
        cuMemcpyAsync: cuMemcpyAsync, Watched, "the same";
        cuMemcpyAsync_ptsz: cuMemcpyAsync, Watched, "the same";
        cuMemcpyPeer: cuMemcpyPeer, Watched, "the same";
        cuMemcpyPeer_ptds: cuMemcpyPeer, Watched, "the same";
        cuMemcpyPeerAsync: cuMemcpyPeerAsync, Watched, "the same";
        cuMemcpyPeerAsync_ptsz: cuMemcpyPeerAsync, Watched, "the same";
        cuMemcpyHtoD_v2: cuMemcpyHtoD_v2, Watched, "the same";
        cuMemcpyHtoD_v2_ptds: cuMemcpyHtoD_v2, Watched, "the same";
        cuMemcpyDtoH_v2: cuMemcpyDtoH_v2, Watched, "the same";
        cuMemcpyDtoH_v2_ptds: cuMemcpyDtoH_v2, Watched, "the same";
        cuMemcpyDtoD_v2: cuMemcpyDtoD_v2, Watched, "the same";
        cuMemcpyDtoD_v2_ptds: cuMemcpyDtoD_v2, Watched, "the same";
        cuMemcpyHtoDAsync_v2: cuMemcpyHtoDAsync_v2, Watched, "the same";
        cuMemcpyHtoDAsync_v2_ptsz: cuMemcpyHtoDAsync_v2, Watched, "the same";
        cuMemcpyDtoHAsync_v2: cuMemcpyDtoHAsync_v2, Watched, "the same";
        cuMemcpyDtoHAsync_v2_ptsz: cuMemcpyDtoHAsync_v2, Watched, "the same";
        cuMemcpyDtoDAsync_v2: cuMemcpyDtoDAsync_v2, Watched, "the same";
        cuMemcpyDtoDAsync_v2_ptsz: cuMemcpyDtoDAsync_v2, Watched, "the same";
        cuMemsetD8_v2: cuMemsetD8_v2, Watched, "the same";
        cuMemsetD8_v2_ptds: cuMemsetD8_v2, Watched, "the same";
        cuMemsetD16_v2: cuMemsetD16_v2, Watched, "the same";
        cuMemsetD16_v2_ptds: cuMemsetD16_v2, Watched, "the same";
        cuMemsetD32_v2: cuMemsetD32_v2, Watched, "the same";
        cuMemsetD32_v2_ptds: cuMemsetD32_v2, Watched, "the same";
        cuMemsetD8Async: cuMemsetD8Async, Watched, "the same";
        cuMemsetD8Async_ptsz: cuMemsetD8Async, Watched, "the same";
        cuMemsetD16Async: cuMemsetD16Async, Watched, "the same";
        cuMemsetD16Async_ptsz: cuMemsetD16Async, Watched, "the same";
        cuMemsetD32Async: cuMemsetD32Async, Watched, "the same";
        cuMemsetD32Async_ptsz: cuMemsetD32Async, Watched, "the same";
        cuMemcpy2D_v2: cuMemcpy2D_v2, Watched, "the same";
        cuMemcpy2D_v2_ptds: cuMemcpy2D_v2, Watched, "the same";
        cuMemcpy2DUnaligned_v2: cuMemcpy2DUnaligned_v2, Watched, "the same";
        cuMemcpy2DUnaligned_v2_ptds: cuMemcpy2DUnaligned_v2, Watched, "the same";
        cuMemcpy2DAsync_v2: cuMemcpy2DAsync_v2, Watched, "the same";
        cuMemcpy2DAsync_v2_ptsz: cuMemcpy2DAsync_v2, Watched, "the same";
        cuMemcpy3D_v2: cuMemcpy3D_v2, Watched, "the same";
        cuMemcpy3D_v2_ptds: cuMemcpy3D_v2, Watched, "the same";
        cuMemcpy3DAsync_v2: cuMemcpy3DAsync_v2, Watched, "the same";
        cuMemcpy3DAsync_v2_ptsz: cuMemcpy3DAsync_v2, Watched, "the same";
        cuMemcpy3DPeer: cuMemcpy3DPeer, Watched, "the same";
        cuMemcpy3DPeer_ptds: cuMemcpy3DPeer, Watched, "the same";
        cuMemcpy3DPeerAsync: cuMemcpy3DPeerAsync, Watched, "the same";
        cuMemcpy3DPeerAsync_ptsz: cuMemcpy3DPeerAsync, Watched, "the same";
        cuGraphAddMemcpyNode: cuGraphAddMemcpyNode, Watched, "with pooled memory: the graph may run in any context, so from then on every pool waits for every context";
        cuGraphExecMemcpyNodeSetParams: cuGraphExecMemcpyNodeSetParams, Watched, "the same";
        cuMemSetAccess: cuMemSetAccess, Watched, "for pooled memory: other devices may use it, so from then on every pool waits for every context";
        cuMemRetainAllocationHandle: cuMemRetainAllocationHandle, Watched, "the same";
        // The beginning and end of contexts.
        cuDevicePrimaryCtxRetain: cuDevicePrimaryCtxRetain, Watched, "counts the program's references to the context";
        cuDevicePrimaryCtxRelease: cuDevicePrimaryCtxRelease, Watched, "the last release ends the pool and the context's captures";
        cuDevicePrimaryCtxRelease_v2: cuDevicePrimaryCtxRelease_v2, Watched, "the same";
        cuDevicePrimaryCtxReset: cuDevicePrimaryCtxReset, Watched, "ends the pool's memory and the context's captures";
        cuDevicePrimaryCtxReset_v2: cuDevicePrimaryCtxReset_v2, Watched, "the same";
        cuCtxCreate: cuCtxCreate, Watched, "pools wait for this context too if its work may use their memory";
        cuCtxCreate_v2: cuCtxCreate_v2, Watched, "the same";
        cuCtxCreate_v3: cuCtxCreate_v3, Watched, "the same";
        cuCtxCreate_v4: cuCtxCreate_v4, Watched, "the same";
        cuGLCtxCreate: cuGLCtxCreate, Watched, "the same";
        cuGLCtxCreate_v2: cuGLCtxCreate_v2, Watched, "the same";
        cuVDPAUCtxCreate: cuVDPAUCtxCreate, Watched, "the same";
        cuVDPAUCtxCreate_v2: cuVDPAUCtxCreate_v2, Watched, "the same";
        cuCtxDestroy: cuCtxDestroy, Watched, "the context and its captures are forgotten; none of its memory was pooled";
        cuCtxDestroy_v2: cuCtxDestroy_v2, Watched, "the same";
        cuCtxAttach: cuCtxAttach, Watched, "counts the uses of a context";
        cuCtxDetach: cuCtxDetach, Watched, "the last one ends the context, as cuCtxDestroy does";
        cuGreenCtxCreate: cuGreenCtxCreate, Watched, "counts the reference of the green context to the primary context";
        cuGreenCtxDestroy: cuGreenCtxDestroy, Watched, "the last reference ends the pool and the context's captures";
        }
    };
}

/// How the calls of a hooked function are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookKind {
    /// Served from the pool.
    Pooled,
    /// Served from the pool on request, otherwise passed to the driver.
    Optional,
    /// Passed to the driver. Its answer about pooled memory is corrected.
    Corrected,
    /// Passed to the driver and recorded.
    Watched,
    /// Passed to the driver, and called again after a trim if memory ran out.
    Passed,
    /// The same, of a function that does not allocate memory for the program.
    Retried,
    /// Refused for pooled memory, otherwise passed to the driver.
    Refused,
}

/// Functions of the driver that allocate, free or map memory and have no hook, with the reasons. Several names are
/// separated by spaces.
pub const NOT_HOOKED: &[(&str, &str)] = &[
    (
        "cuMemAlloc cuMemFree cuMemGetInfo cuMemAllocPitch cuMemAllocHost cuMemGetAddressRange",
        "the 32-bit functions of CUDA before 3.2",
    ),
    ("cuMemHostUnregister", "the program's own memory"),
    (
        "cuMemHostGetFlags cuMemHostGetDevicePointer_v2",
        "the driver's answer is right for pooled memory too: its region has the same flags",
    ),
    (
        "cuArrayCreate cuArray3DCreate cuArrayDestroy cuMipmappedArrayDestroy",
        "arrays are opaque: they have no address; the first two are the functions of CUDA before 3.2",
    ),
    (
        "cuMemMapArrayAsync cuMemUnmap cuMemRelease cuMemAddressReserve cuMemAddressFree",
        "virtual memory that the program manages itself",
    ),
    (
        "cuMulticastUnbind cuLogicalEndpointBindMem cuLogicalEndpointUnbind",
        "bind virtual memory that the program manages itself",
    ),
    ("cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute", "the driver's own pools"),
    (
        "cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray \
         cuDestroyExternalMemory",
        "memory of another API",
    ),
    (
        "cuGraphicsMapResources cuGraphicsResourceGetMappedPointer_v2 cuGraphicsUnmapResources",
        "memory of a graphics API",
    ),
    (
        "cuMemGetHandleForAddressRange",
        "the driver's handle names the given range, also inside of a region; the range must consist of whole pages of \
         the host, and pooled allocations of 1 MiB and more begin at one",
    ),
    ("cuIpcCloseMemHandle", "memory of another process"),
    ("cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuDeviceGraphMemTrim", "memory that a graph owns"),
    (
        "cuPointerSetAttribute",
        "sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for the whole region of a pooled pointer",
    ),
];

/// Functions of the runtime, and the function of the driver that each of them calls.
pub const RUNTIME: &[(&str, &str)] = &[
    ("cudaMalloc", "cuMemAlloc_v2"),
    ("cudaFree", "cuMemFree_v2"),
    ("cudaMemGetInfo", "cuMemGetInfo_v2"),
    ("cudaMallocPitch", "cuMemAllocPitch_v2"),
    ("cudaMalloc3D", "cuMemAllocPitch_v2"),
    ("cudaMallocManaged", "cuMemAllocManaged"),
    ("cudaMallocArray", "cuArrayCreate_v2"),
    ("cudaMalloc3DArray", "cuArray3DCreate_v2"),
    ("cudaMallocMipmappedArray", "cuMipmappedArrayCreate"),
    ("cudaFreeArray", "cuArrayDestroy"),
    ("cudaFreeMipmappedArray", "cuMipmappedArrayDestroy"),
    ("cudaMallocAsync", "cuMemAllocAsync"),
    ("cudaMallocFromPoolAsync", "cuMemAllocFromPoolAsync"),
    ("cudaFreeAsync", "cuMemFreeAsync"),
    ("cudaDeviceSetMemPool", "cuDeviceSetMemPool"),
    ("cudaMemSetMemPool", "cuMemSetMemPool"),
    ("cudaGraphAddMemAllocNode", "cuGraphAddMemAllocNode"),
    ("cudaGraphAddMemFreeNode", "cuGraphAddMemFreeNode"),
    ("cudaMallocHost", "cuMemHostAlloc"),
    ("cudaHostAlloc", "cuMemHostAlloc"),
    ("cudaFreeHost", "cuMemFreeHost"),
    ("cudaHostRegister", "cuMemHostRegister_v2"),
    ("cudaPointerGetAttributes", "cuPointerGetAttributes"),
    ("cudaIpcGetMemHandle", "cuIpcGetMemHandle"),
    ("cudaIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"),
    ("cudaIpcCloseMemHandle", "cuIpcCloseMemHandle"),
    ("cudaHostUnregister", "cuMemHostUnregister"),
    ("cudaMemPoolCreate", "cuMemPoolCreate"),
    ("cudaMemPoolDestroy", "cuMemPoolDestroy"),
    ("cudaMemPoolTrimTo", "cuMemPoolTrimTo"),
    ("cudaMemPoolImportFromShareableHandle", "cuMemPoolImportFromShareableHandle"),
    ("cudaMemPoolImportPointer", "cuMemPoolImportPointer"),
    ("cudaDeviceGraphMemTrim", "cuDeviceGraphMemTrim"),
    ("cudaImportExternalMemory", "cuImportExternalMemory"),
    ("cudaExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedBuffer"),
    ("cudaExternalMemoryGetMappedMipmappedArray", "cuExternalMemoryGetMappedMipmappedArray"),
    ("cudaDestroyExternalMemory", "cuDestroyExternalMemory"),
    ("cudaGraphicsMapResources", "cuGraphicsMapResources"),
    ("cudaGraphicsResourceGetMappedPointer", "cuGraphicsResourceGetMappedPointer_v2"),
    ("cudaGraphicsUnmapResources", "cuGraphicsUnmapResources"),
    ("cudaStreamBeginCapture", "cuStreamBeginCapture_v2"),
    ("cudaStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph"),
    ("cudaStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph"),
    ("cudaStreamEndCapture", "cuStreamEndCapture"),
    ("cudaDeviceReset", "cuDevicePrimaryCtxReset_v2"),
    ("cudaDeviceSynchronize", "cuCtxSynchronize"),
    ("cudaGetDriverEntryPoint", "cuGetProcAddress_v2"),
    ("cudaGetDriverEntryPointByVersion", "cuGetProcAddress_v2"),
];
