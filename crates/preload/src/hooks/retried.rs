//! The hooks of functions that the driver serves, and that need memory that a pool may hold. If the driver is out of
//! memory, the pool is trimmed and the driver is called again.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cuda_sys::*;

use super::fallback::{Source, with_room};
use crate::driver::real;
use crate::state::{contexts, relations};

/// An entry is `SYMBOL(ARGUMENTS) needs BYTES, of SOURCE`, with 0 for an unknown size, and `, first STATEMENT` for a
/// statement that runs before the call.
macro_rules! retries {
    ($($symbol:ident($($argument:ident: $type:ty),* $(,)?)
        needs $bytes:expr, of $source:expr $(, first $before:expr)?;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
                let Some(call) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                $($before;)?
                // SAFETY: the caller's arguments.
                with_room(|| ($source, $bytes), || unsafe { call($($argument),*) })
            }
        )*
    };
}

/// Returns the device of the physical memory to create.
fn of_location(properties: *const CUmemAllocationProp) -> Source {
    // SAFETY: NULL, or the caller's, and the driver has read it.
    match unsafe { properties.as_ref() } {
        Some(wanted) if wanted.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE => {
            Source::Device(wanted.location.id)
        }
        // Host memory.
        Some(_) => Source::Pinned,
        None => Source::Current,
    }
}

/// Returns the stream on which a kernel is launched.
fn of_config(config: *const CUlaunchConfig) -> Source {
    // SAFETY: NULL, or the caller's, and the driver has read it.
    unsafe { config.as_ref() }.map_or(Source::Current, |config| Source::Stream(config.hStream))
}

/// From now on, work of one context may use another device's memory.
fn relate_all() {
    if contexts::are_several() {
        relations::relate_all();
    }
}

// Memory for the program.
retries! {
    cuMemAllocPitch_v2(
        place: *mut CUdeviceptr,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: c_uint,
    ) needs width.saturating_mul(height), of Source::Current;
    cuMemAllocManaged(place: *mut CUdeviceptr, bytes: usize, flags: c_uint) needs bytes, of Source::Current;
    cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const CUmemAllocationProp,
        flags: u64,
    ) needs bytes, of of_location(properties);
    cuArrayCreate_v2(array: *mut CUarray, wanted: *const CUDA_ARRAY_DESCRIPTOR) needs 0, of Source::Current;
    cuArray3DCreate_v2(array: *mut CUarray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR)
        needs 0, of Source::Current;
    cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray,
        wanted: *const CUDA_ARRAY3D_DESCRIPTOR,
        levels: c_uint,
    ) needs 0, of Source::Current;
    // A pool may belong to a device other than the stream's, and its device cannot be queried.
    cuMemAllocFromPoolAsync(place: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream)
        needs bytes, of Source::AnyNear(stream);
    cuMemAllocFromPoolAsync_ptsz(place: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream)
        needs bytes, of Source::AnyNear(stream);
    cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) needs 0, of Source::Any;
    cuMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool,
        handle: *mut c_void,
        kind: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) needs 0, of Source::Any;
    cuMemPoolImportPointer(place: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData)
        needs 0, of Source::Any;
    cuMemMap(
        address: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) needs 0, of Source::Any;
    cuIpcOpenMemHandle(place: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint)
        needs 0, of Source::Current;
    cuIpcOpenMemHandle_v2(place: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint)
        needs 0, of Source::Current;
}

retries! {
    cuMulticastCreate(object: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp)
        needs 0, of Source::Any;
    cuMulticastAddDevice(object: CUmemGenericAllocationHandle, device: CUdevice)
        needs 0, of Source::Device(device);
    cuMulticastBindMem(
        object: CUmemGenericAllocationHandle,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        memory_offset: usize,
        bytes: usize,
        flags: c_ulonglong,
    ) needs 0, of Source::Any;
    cuMulticastBindMem_v2(
        object: CUmemGenericAllocationHandle,
        device: CUdevice,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        memory_offset: usize,
        bytes: usize,
        flags: c_ulonglong,
    ) needs 0, of Source::Device(device);
    cuMulticastBindAddr(
        object: CUmemGenericAllocationHandle,
        offset: usize,
        address: CUdeviceptr,
        bytes: usize,
        flags: c_ulonglong,
    ) needs 0, of Source::Any, first relate_all();
    cuMulticastBindAddr_v2(
        object: CUmemGenericAllocationHandle,
        device: CUdevice,
        offset: usize,
        address: CUdeviceptr,
        bytes: usize,
        flags: c_ulonglong,
    ) needs 0, of Source::Device(device), first relate_all();
}

// Nodes of a graph may allocate on any device.
retries! {
    cuGraphInstantiate(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        log: *mut c_char,
        bytes: usize,
    ) needs 0, of Source::Any;
    cuGraphInstantiate_v2(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        log: *mut c_char,
        bytes: usize,
    ) needs 0, of Source::Any;
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong)
        needs 0, of Source::Any;
    cuGraphInstantiateWithParams(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) needs 0, of Source::Any;
    cuGraphInstantiateWithParams_ptsz(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) needs 0, of Source::Any;
    cuGraphUpload(graph: CUgraphExec, stream: CUstream) needs 0, of Source::AnyNear(stream);
    cuGraphUpload_ptsz(graph: CUgraphExec, stream: CUstream) needs 0, of Source::AnyNear(stream);
    cuGraphLaunch(graph: CUgraphExec, stream: CUstream) needs 0, of Source::AnyNear(stream), first relate_all();
    cuGraphLaunch_ptsz(graph: CUgraphExec, stream: CUstream) needs 0, of Source::AnyNear(stream), first relate_all();
}

// Modules. Code and variables may be loaded at their first use.
retries! {
    cuModuleLoad(module: *mut CUmodule, file: *const c_char) needs 0, of Source::Current;
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) needs 0, of Source::Current;
    cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) needs 0, of Source::Current;
    cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void) needs 0, of Source::Current;
    // A library belongs to all contexts.
    cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
        count: c_uint,
        library_options: *mut CUlibraryOption,
        library_values: *mut *mut c_void,
        library_count: c_uint,
    ) needs 0, of Source::Any;
    cuLibraryLoadFromFile(
        library: *mut CUlibrary,
        file: *const c_char,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
        count: c_uint,
        library_options: *mut CUlibraryOption,
        library_values: *mut *mut c_void,
        library_count: c_uint,
    ) needs 0, of Source::Any;
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char)
        needs 0, of Source::Current;
    cuModuleGetGlobal_v2(place: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char)
        needs 0, of Source::Current;
    cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) needs 0, of Source::Current;
    cuLibraryGetGlobal(place: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char)
        needs 0, of Source::Current;
    cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) needs 0, of Source::Current;
    cuKernelSetAttribute(attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice)
        needs 0, of Source::Device(device);
    cuFuncLoad(function: CUfunction) needs 0, of Source::Current;
}

macro_rules! launches {
    ($($symbol:ident($($more:ident: $type:ty),*);)*) => {
        retries! {
            $($symbol(
                function: CUfunction,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared: c_uint,
                stream: CUstream,
                $($more: $type),*
            ) needs 0, of Source::Stream(stream);)*
        }
    };
}

launches! {
    cuLaunchKernel(parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchKernel_ptsz(parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchCooperativeKernel(parameters: *mut *mut c_void);
    cuLaunchCooperativeKernel_ptsz(parameters: *mut *mut c_void);
}

retries! {
    cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) needs 0, of of_config(config);
    cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) needs 0, of of_config(config);
}

// Resources of a context.
retries! {
    cuCtxSetLimit(limit: CUlimit, value: usize) needs 0, of Source::Current;
    cuEventCreate(event: *mut CUevent, flags: c_uint) needs 0, of Source::Current;
}
