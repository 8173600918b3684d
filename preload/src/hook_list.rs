//! The list of hooks, and the memory functions that have none.
//!
//! `cargo xtask hooks` generates docs/hooks.md from it and includes this file, which therefore must not use anything
//! else of this crate.

/// Passes the list of hooks to `$callback!`. An entry is `SYMBOL: TYPE, KIND, "why";`. SYMBOL is what libcuda.so.1
/// exports, TYPE the function of cuda-sys's list that has its type (another one for the twins of the per-thread default
/// stream), and KIND a [`HookKind`].
macro_rules! hooks {
    ($callback:ident) => {
        $callback! {
        // Lookups of functions return the hooks.
        cuGetProcAddress: cuGetProcAddress, Watched, "gives these hooks to programs that look functions up by it, the runtime above all";
        cuGetProcAddress_v2: cuGetProcAddress_v2, Watched, "the same, since CUDA 12";
        // Device memory.
        cuMemAlloc_v2: cuMemAlloc_v2, Pooled, "the pool's main job";
        cuMemFree_v2: cuMemFree_v2, Pooled, "a chunk waits until the contexts that may use it were synchronized after its free; other pointers go to the driver";
        cuMemGetInfo_v2: cuMemGetInfo_v2, Corrected, "what the pool holds and is not in use counts as free, and no more than a limit leaves";
        cuMemGetAddressRange_v2: cuMemGetAddressRange_v2, Corrected, "a pooled allocation is the range, not the region that it is cut from; with BFC_PRELOAD_IPC=1 the region is";
        cuPointerGetAttribute: cuPointerGetAttribute, Corrected, "range, mapping, identity and IPC of a pooled allocation are its own; with BFC_PRELOAD_IPC=1 its region's";
        cuPointerGetAttributes: cuPointerGetAttributes, Corrected, "the same";
        cuIpcGetMemHandle: cuIpcGetMemHandle, Refused, "of a pooled pointer that is not its region's base: the driver's handle would name the region and lose the offset";
        // Memory that the pool may leave no room for.
        cuMemAllocPitch_v2: cuMemAllocPitch_v2, Passed, "the driver chooses the pitch; where it has no memory the pool is trimmed, and it is asked again";
        cuMemAllocManaged: cuMemAllocManaged, Passed, "managed memory has rules of its own; trimmed and asked again, as above";
        cuMemCreate: cuMemCreate, Passed, "physical memory; trimmed and asked again, as above";
        cuMemAllocFromPoolAsync: cuMemAllocFromPoolAsync, Passed, "from a memory pool that the program names; trimmed and asked again, as above";
        cuMemAllocFromPoolAsync_ptsz: cuMemAllocFromPoolAsync, Passed, "the same";
        // Stream-ordered memory.
        cuMemAllocAsync: cuMemAllocAsync, Optional, "passed to the driver; with BFC_PRELOAD_ASYNC=1 served by libbfc in the order of the stream, but while a graph is captured";
        cuMemAllocAsync_ptsz: cuMemAllocAsync, Optional, "the same, for the per-thread default stream";
        cuMemFreeAsync: cuMemFreeAsync, Pooled, "a pooled pointer goes back to the pool; others go to the driver";
        cuMemFreeAsync_ptsz: cuMemFreeAsync, Pooled, "the same, for the per-thread default stream";
        // Pinned host memory.
        cuMemHostAlloc: cuMemHostAlloc, Optional, "passed to the driver; with BFC_PRELOAD_PINNED=1 pooled, unless it has flags; where the driver has none the pool is trimmed, and it is asked again";
        cuMemAllocHost_v2: cuMemAllocHost_v2, Optional, "the same";
        cuMemFreeHost: cuMemFreeHost, Optional, "as cuMemFree_v2 for pinned memory that is pooled; other pointers go to the driver";
        // Synchronization, and captures, which forbid it.
        cuCtxSynchronize: cuCtxSynchronize, Watched, "what was freed before it may be handed out again";
        cuCtxSynchronize_v2: cuCtxSynchronize_v2, Watched, "the same, since CUDA 13";
        cuStreamBeginCapture: cuStreamBeginCapture, Watched, "while a graph is captured nothing is synchronised";
        cuStreamBeginCapture_ptsz: cuStreamBeginCapture, Watched, "the same";
        cuStreamBeginCapture_v2: cuStreamBeginCapture_v2, Watched, "the same";
        cuStreamBeginCapture_v2_ptsz: cuStreamBeginCapture_v2, Watched, "the same";
        cuStreamBeginCaptureToGraph: cuStreamBeginCaptureToGraph, Watched, "the same";
        cuStreamBeginCaptureToGraph_ptsz: cuStreamBeginCaptureToGraph, Watched, "the same";
        cuStreamBeginRecaptureToGraph: cuStreamBeginRecaptureToGraph, Watched, "the same, since CUDA 13.3";
        cuStreamBeginRecaptureToGraph_ptsz: cuStreamBeginRecaptureToGraph, Watched, "the same";
        cuStreamBeginCaptureToCig: cuStreamBeginCaptureToCig, Watched, "the same, into a command list of a graphics API; since CUDA 13.1";
        cuStreamBeginCaptureToCig_ptsz: cuStreamBeginCaptureToCig, Watched, "the same";
        cuStreamEndCapture: cuStreamEndCapture, Watched, "the capture's end, if its beginning was seen";
        cuStreamEndCapture_ptsz: cuStreamEndCapture, Watched, "the same";
        cuStreamEndCaptureToCig: cuStreamEndCaptureToCig, Watched, "the same";
        cuStreamEndCaptureToCig_ptsz: cuStreamEndCaptureToCig, Watched, "the same";
        cuStreamDestroy: cuStreamDestroy, Watched, "ends a capture too, and with BFC_PRELOAD_ASYNC=1 what the pool knows of the stream";
        cuStreamDestroy_v2: cuStreamDestroy_v2, Watched, "the same";
        // Work that may use other devices' memory.
        cuCtxEnablePeerAccess: cuCtxEnablePeerAccess, Watched, "from then on the pool of the peer waits for this context too";
        cuMemcpy: cuMemcpy, Watched, "a copy may touch memory of another device, whose pool then waits for this context too";
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
        cuGraphAddMemcpyNode: cuGraphAddMemcpyNode, Watched, "a graph may run anywhere: with several contexts every pool waits for all of them from then on";
        cuGraphExecMemcpyNodeSetParams: cuGraphExecMemcpyNodeSetParams, Watched, "the same";
        cuMemSetAccess: cuMemSetAccess, Watched, "of pooled memory: with several contexts every pool waits for all of them from then on";
        cuMemRetainAllocationHandle: cuMemRetainAllocationHandle, Watched, "the same";
        // The beginning and end of contexts.
        cuDevicePrimaryCtxRetain: cuDevicePrimaryCtxRetain, Watched, "how often the program holds the context";
        cuDevicePrimaryCtxRelease: cuDevicePrimaryCtxRelease, Watched, "the pool goes with the program's last hold on the context, and captures end with it";
        cuDevicePrimaryCtxRelease_v2: cuDevicePrimaryCtxRelease_v2, Watched, "the same";
        cuDevicePrimaryCtxReset: cuDevicePrimaryCtxReset, Watched, "the memory is gone: so is the pool's record of it, and captures have ended";
        cuDevicePrimaryCtxReset_v2: cuDevicePrimaryCtxReset_v2, Watched, "the same";
        cuCtxCreate_v2: cuCtxCreate_v2, Watched, "its work may touch pooled memory, as a peer's or by copies: it is waited for too";
        cuCtxCreate_v3: cuCtxCreate_v3, Watched, "the same";
        cuCtxCreate_v4: cuCtxCreate_v4, Watched, "the same";
        cuCtxDestroy: cuCtxDestroy, Watched, "what was known of that context is forgotten, captures too; nothing of it was pooled";
        cuCtxDestroy_v2: cuCtxDestroy_v2, Watched, "the same";
        }
    };
}
pub(crate) use hooks;

/// How the calls of a hooked function are handled.
#[allow(dead_code)] // Which of them are used depends on the including crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HookKind {
    /// Served from the pool.
    Pooled,
    /// Served from the pool on request, otherwise passed to the driver.
    Optional,
    /// Passed to the driver. Its answer about pooled memory is corrected.
    Corrected,
    /// Passed to the driver and recorded.
    Watched,
    /// Passed to the driver.
    Passed,
    /// Refused for pooled memory, otherwise passed to the driver.
    Refused,
}

/// Functions of the driver that allocate, free or map memory and have no hook, with the reasons. Several names are
/// separated by spaces.
#[allow(dead_code)] // for the documentation
pub(crate) const NOT_HOOKED: &[(&str, &str)] = &[
    (
        "cuMemAlloc cuMemFree cuMemGetInfo cuMemAllocPitch cuMemAllocHost cuMemGetAddressRange",
        "the 32-bit functions of CUDA before 3.2",
    ),
    ("cuMemHostRegister_v2 cuMemHostUnregister", "the program's own memory"),
    (
        "cuMemHostGetFlags cuMemHostGetDevicePointer_v2",
        "of pooled pinned memory the driver's answer is right: its regions have the flags of what is pooled",
    ),
    (
        "cuArrayCreate cuArrayCreate_v2 cuArray3DCreate cuArray3DCreate_v2 cuArrayDestroy cuMipmappedArrayCreate \
         cuMipmappedArrayDestroy",
        "arrays are opaque: they have no address",
    ),
    (
        "cuMemMap cuMemMapArrayAsync cuMemUnmap cuMemRelease cuMemAddressReserve cuMemAddressFree",
        "virtual memory that the program manages itself",
    ),
    (
        "cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastUnbind cuLogicalEndpointBindMem cuLogicalEndpointUnbind",
        "they bind virtual memory that the program manages itself",
    ),
    (
        "cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute cuMemPoolImportFromShareableHandle \
         cuMemPoolImportPointer",
        "the driver's own pools",
    ),
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
        "the driver's handle is of the range that is named, also inside of a region; the range must be whole pages of the \
         host, and pooled allocations of 1 MiB and more begin at one",
    ),
    ("cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle", "memory of another process"),
    ("cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuDeviceGraphMemTrim", "memory that a graph owns"),
    (
        "cuPointerSetAttribute",
        "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a pooled pointer is set for the whole region that it lies in",
    ),
];

/// Functions of the runtime, and the function of the driver that each of them calls.
#[allow(dead_code)] // for the documentation
pub(crate) const RUNTIME: &[(&str, &str)] = &[
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
