//! The only list of the driver's functions. Those for memory are in `memory`.

mod memory;

/// The version of the newest headers with which the list was compared. The suite `cuda-headers` compares them, and
/// verifies that this is their version. A function that `cuGetProcAddress` returns for a later version may have another
/// type.
pub const NEWEST_HEADERS: std::ffi::c_int = 13_050;

/// Passes the list of the driver's functions to `$callback!`.
///
/// An entry is
/// `fn SYMBOL as "NAME" since VERSION [twin TWIN] (argument: Type, ...);`, where
/// - SYMBOL is exported by libcuda.so.1, such as `cuMemAlloc_v2`,
/// - NAME is the argument of `cuGetProcAddress`, such as `cuMemAlloc`,
/// - VERSION is the first version of CUDA for which `cuGetProcAddress` returns this function for that name:
///   1000 times the major and 10 times the minor number,
/// - TWIN is the symbol of the same function for the per-thread default stream, if there is one;
///   `cuGetProcAddress` returns it for the same NAME with `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`, since
///   the later of VERSION and 7000.
///
/// Every function returns a [`CUresult`](crate::CUresult). The types are those of this crate. Bring them into scope
/// (`use libbfc_cuda_sys::*`) where you invoke the macro, and `std::ffi::*` for C's own types. Tokens after a comma are
/// passed to the callback before the list, in brackets.
///
/// ```
/// macro_rules! names {
///     ($(fn $symbol:ident as $name:literal since $since:literal $(twin $twin:ident)?
///         ($($argument:ident: $type:ty),*);)*) => {
///         [$((stringify!($symbol), $name, $since),)*]
///     };
/// }
/// let names = libbfc_cuda_sys::driver_functions!(names);
/// assert!(names.contains(&("cuMemAlloc_v2", "cuMemAlloc", 3020)));
/// ```
#[macro_export]
macro_rules! driver_functions {
    ($($callback:ident)::+ $(, $($before:tt)*)?) => {
        $crate::and_memory_functions! {
        $($callback)::+ => $([$($before)*])?

        // Initialisation, versions, errors, entry points.
        fn cuInit as "cuInit" since 2000 (flags: c_uint);
        fn cuDriverGetVersion as "cuDriverGetVersion" since 2020 (driver_version: *mut c_int);
        fn cuGetErrorString as "cuGetErrorString" since 6000 (error: CUresult, p_str: *mut *const c_char);
        fn cuGetErrorName as "cuGetErrorName" since 6000 (error: CUresult, p_str: *mut *const c_char);
        fn cuGetProcAddress as "cuGetProcAddress" since 11030 (
            symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t
        );
        fn cuGetProcAddress_v2 as "cuGetProcAddress" since 12000 (
            symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t,
            symbol_status: *mut CUdriverProcAddressQueryResult
        );
        // Devices.
        fn cuDeviceGet as "cuDeviceGet" since 2000 (device: *mut CUdevice, ordinal: c_int);
        fn cuDeviceGetCount as "cuDeviceGetCount" since 2000 (count: *mut c_int);
        fn cuDeviceGetName as "cuDeviceGetName" since 2000 (name: *mut c_char, len: c_int, dev: CUdevice);
        fn cuDeviceGetUuid as "cuDeviceGetUuid" since 9020 (uuid: *mut CUuuid, dev: CUdevice);
        fn cuDeviceGetUuid_v2 as "cuDeviceGetUuid" since 11040 (uuid: *mut CUuuid, dev: CUdevice);
        fn cuDeviceTotalMem_v2 as "cuDeviceTotalMem" since 3020 (bytes: *mut usize, dev: CUdevice);
        fn cuDeviceGetAttribute as "cuDeviceGetAttribute" since 2000 (
            pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice
        );
        fn cuDeviceGetPCIBusId as "cuDeviceGetPCIBusId" since 4010 (
            pci_bus_id: *mut c_char, len: c_int, dev: CUdevice
        );
        fn cuDeviceGetByPCIBusId as "cuDeviceGetByPCIBusId" since 4010 (
            dev: *mut CUdevice, pci_bus_id: *const c_char
        );
        fn cuDeviceGetDefaultMemPool as "cuDeviceGetDefaultMemPool" since 11020 (
            pool_out: *mut CUmemoryPool, dev: CUdevice
        );
        fn cuDeviceGetMemPool as "cuDeviceGetMemPool" since 11020 (pool: *mut CUmemoryPool, dev: CUdevice);
        fn cuDeviceSetMemPool as "cuDeviceSetMemPool" since 11020 (dev: CUdevice, pool: CUmemoryPool);
        // Primary contexts.
        fn cuDevicePrimaryCtxRetain as "cuDevicePrimaryCtxRetain" since 7000 (
            pctx: *mut CUcontext, dev: CUdevice
        );
        fn cuDevicePrimaryCtxRelease as "cuDevicePrimaryCtxRelease" since 7000 (dev: CUdevice);
        fn cuDevicePrimaryCtxRelease_v2 as "cuDevicePrimaryCtxRelease" since 11000 (dev: CUdevice);
        fn cuDevicePrimaryCtxReset as "cuDevicePrimaryCtxReset" since 7000 (dev: CUdevice);
        fn cuDevicePrimaryCtxReset_v2 as "cuDevicePrimaryCtxReset" since 11000 (dev: CUdevice);
        fn cuDevicePrimaryCtxGetState as "cuDevicePrimaryCtxGetState" since 7000 (
            dev: CUdevice, flags: *mut c_uint, active: *mut c_int
        );
        fn cuDevicePrimaryCtxSetFlags as "cuDevicePrimaryCtxSetFlags" since 7000 (
            dev: CUdevice, flags: c_uint
        );
        fn cuDevicePrimaryCtxSetFlags_v2 as "cuDevicePrimaryCtxSetFlags" since 11000 (
            dev: CUdevice, flags: c_uint
        );
        // Contexts.
        fn cuCtxCreate as "cuCtxCreate" since 2000 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        fn cuCtxCreate_v2 as "cuCtxCreate" since 3020 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        fn cuCtxCreate_v3 as "cuCtxCreate" since 11040 (
            pctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint,
            dev: CUdevice
        );
        fn cuCtxCreate_v4 as "cuCtxCreate" since 12050 (
            pctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice
        );
        fn cuGLCtxCreate as "cuGLCtxCreate" since 2000 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        fn cuGLCtxCreate_v2 as "cuGLCtxCreate" since 3020 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        // The last two are a VdpDevice, which is a uint32_t, and a function of VDPAU.
        fn cuVDPAUCtxCreate as "cuVDPAUCtxCreate" since 3010 (
            pctx: *mut CUcontext, flags: c_uint, dev: CUdevice, vdp_device: c_uint, vdp_get_proc_address: *mut c_void
        );
        fn cuVDPAUCtxCreate_v2 as "cuVDPAUCtxCreate" since 3020 (
            pctx: *mut CUcontext, flags: c_uint, dev: CUdevice, vdp_device: c_uint, vdp_get_proc_address: *mut c_void
        );
        fn cuCtxDestroy as "cuCtxDestroy" since 2000 (ctx: CUcontext);
        fn cuCtxDestroy_v2 as "cuCtxDestroy" since 4000 (ctx: CUcontext);
        fn cuCtxAttach as "cuCtxAttach" since 2000 (pctx: *mut CUcontext, flags: c_uint);
        fn cuCtxDetach as "cuCtxDetach" since 2000 (ctx: CUcontext);
        fn cuCtxPushCurrent as "cuCtxPushCurrent" since 2000 (ctx: CUcontext);
        fn cuCtxPushCurrent_v2 as "cuCtxPushCurrent" since 4000 (ctx: CUcontext);
        fn cuCtxPopCurrent as "cuCtxPopCurrent" since 2000 (pctx: *mut CUcontext);
        fn cuCtxPopCurrent_v2 as "cuCtxPopCurrent" since 4000 (pctx: *mut CUcontext);
        fn cuCtxGetCurrent as "cuCtxGetCurrent" since 4000 (pctx: *mut CUcontext);
        fn cuCtxSetCurrent as "cuCtxSetCurrent" since 4000 (ctx: CUcontext);
        fn cuCtxGetDevice as "cuCtxGetDevice" since 2000 (device: *mut CUdevice);
        fn cuCtxGetDevice_v2 as "cuCtxGetDevice" since 13000 (device: *mut CUdevice, ctx: CUcontext);
        fn cuCtxSynchronize as "cuCtxSynchronize" since 2000 ();
        fn cuCtxSynchronize_v2 as "cuCtxSynchronize" since 13000 (ctx: CUcontext);
        fn cuCtxGetId as "cuCtxGetId" since 12000 (ctx: CUcontext, ctx_id: *mut c_ulonglong);
        fn cuCtxGetFlags as "cuCtxGetFlags" since 7000 (flags: *mut c_uint);
        fn cuCtxGetApiVersion as "cuCtxGetApiVersion" since 3020 (ctx: CUcontext, version: *mut c_uint);
        fn cuCtxGetLimit as "cuCtxGetLimit" since 3010 (pvalue: *mut usize, limit: CUlimit);
        fn cuCtxSetLimit as "cuCtxSetLimit" since 3010 (limit: CUlimit, value: usize);
        fn cuCtxGetStreamPriorityRange as "cuCtxGetStreamPriorityRange" since 5050 (
            least_priority: *mut c_int, greatest_priority: *mut c_int
        );
        // Green contexts.
        fn cuDeviceGetDevResource as "cuDeviceGetDevResource" since 12040 (
            device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType
        );
        fn cuCtxGetDevResource as "cuCtxGetDevResource" since 12040 (
            h_ctx: CUcontext, resource: *mut CUdevResource, kind: CUdevResourceType
        );
        fn cuGreenCtxGetDevResource as "cuGreenCtxGetDevResource" since 12040 (
            h_ctx: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType
        );
        fn cuDevSmResourceSplitByCount as "cuDevSmResourceSplitByCount" since 12040 (
            result: *mut CUdevResource, nb_groups: *mut c_uint, input: *const CUdevResource,
            remainder: *mut CUdevResource, flags: c_uint, min_count: c_uint
        );
        fn cuDevResourceGenerateDesc as "cuDevResourceGenerateDesc" since 12040 (
            ph_desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nb_resources: c_uint
        );
        fn cuGreenCtxCreate as "cuGreenCtxCreate" since 12040 (
            ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint
        );
        fn cuGreenCtxDestroy as "cuGreenCtxDestroy" since 12040 (h_ctx: CUgreenCtx);
        fn cuCtxFromGreenCtx as "cuCtxFromGreenCtx" since 12040 (p_context: *mut CUcontext, h_ctx: CUgreenCtx);
        fn cuGreenCtxGetId as "cuGreenCtxGetId" since 12090 (
            green_ctx: CUgreenCtx, green_ctx_id: *mut c_ulonglong
        );
        fn cuGreenCtxStreamCreate as "cuGreenCtxStreamCreate" since 12050 (
            ph_stream: *mut CUstream, green_ctx: CUgreenCtx, flags: c_uint, priority: c_int
        );
        fn cuStreamGetGreenCtx as "cuStreamGetGreenCtx" since 12040 (
            h_stream: CUstream, ph_ctx: *mut CUgreenCtx
        );
        fn cuGreenCtxRecordEvent as "cuGreenCtxRecordEvent" since 12040 (h_ctx: CUgreenCtx, h_event: CUevent);
        fn cuGreenCtxWaitEvent as "cuGreenCtxWaitEvent" since 12040 (h_ctx: CUgreenCtx, h_event: CUevent);
        fn cuCtxWaitEvent as "cuCtxWaitEvent" since 12050 (h_ctx: CUcontext, h_event: CUevent);
        // Streams and their capture.
        fn cuStreamCreate as "cuStreamCreate" since 2000 (ph_stream: *mut CUstream, flags: c_uint);
        fn cuStreamCreateWithPriority as "cuStreamCreateWithPriority" since 5050 (
            ph_stream: *mut CUstream, flags: c_uint, priority: c_int
        );
        fn cuStreamDestroy as "cuStreamDestroy" since 2000 (h_stream: CUstream);
        fn cuStreamDestroy_v2 as "cuStreamDestroy" since 4000 (h_stream: CUstream);
        fn cuStreamQuery as "cuStreamQuery" since 2000 twin cuStreamQuery_ptsz (h_stream: CUstream);
        fn cuStreamSynchronize as "cuStreamSynchronize" since 2000 twin cuStreamSynchronize_ptsz (
            h_stream: CUstream
        );
        fn cuStreamWaitEvent as "cuStreamWaitEvent" since 3020 twin cuStreamWaitEvent_ptsz (
            h_stream: CUstream, h_event: CUevent, flags: c_uint
        );
        fn cuStreamGetCtx as "cuStreamGetCtx" since 9020 twin cuStreamGetCtx_ptsz (
            h_stream: CUstream, pctx: *mut CUcontext
        );
        fn cuStreamGetCtx_v2 as "cuStreamGetCtx" since 12050 twin cuStreamGetCtx_v2_ptsz (
            h_stream: CUstream, p_ctx: *mut CUcontext, p_green_ctx: *mut CUgreenCtx
        );
        fn cuStreamGetFlags as "cuStreamGetFlags" since 5050 twin cuStreamGetFlags_ptsz (
            h_stream: CUstream, flags: *mut c_uint
        );
        fn cuStreamGetPriority as "cuStreamGetPriority" since 5050 twin cuStreamGetPriority_ptsz (
            h_stream: CUstream, priority: *mut c_int
        );
        fn cuStreamGetId as "cuStreamGetId" since 12000 twin cuStreamGetId_ptsz (
            h_stream: CUstream, stream_id: *mut c_ulonglong
        );
        fn cuStreamGetDevice as "cuStreamGetDevice" since 12080 twin cuStreamGetDevice_ptsz (
            h_stream: CUstream, device: *mut CUdevice
        );
        fn cuStreamIsCapturing as "cuStreamIsCapturing" since 10000 twin cuStreamIsCapturing_ptsz (
            h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus
        );
        fn cuStreamBeginCapture as "cuStreamBeginCapture" since 10000 twin cuStreamBeginCapture_ptsz (
            h_stream: CUstream
        );
        fn cuStreamBeginCapture_v2 as "cuStreamBeginCapture" since 10010 twin cuStreamBeginCapture_v2_ptsz (
            h_stream: CUstream, mode: CUstreamCaptureMode
        );
        fn cuStreamBeginCaptureToGraph as "cuStreamBeginCaptureToGraph" since 12030
            twin cuStreamBeginCaptureToGraph_ptsz (
            h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
            dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode
        );
        fn cuStreamBeginRecaptureToGraph as "cuStreamBeginRecaptureToGraph" since 13030
            twin cuStreamBeginRecaptureToGraph_ptsz (
            h_stream: CUstream, mode: CUstreamCaptureMode, h_graph: CUgraph,
            callback_func: CUgraphRecaptureCallback, user_data: *mut c_void
        );
        fn cuStreamBeginCaptureToCig as "cuStreamBeginCaptureToCig" since 13010
            twin cuStreamBeginCaptureToCig_ptsz (
            h_stream: CUstream, stream_cig_capture_params: *mut CUstreamCigCaptureParams
        );
        fn cuStreamEndCaptureToCig as "cuStreamEndCaptureToCig" since 13010 twin cuStreamEndCaptureToCig_ptsz (
            h_stream: CUstream
        );
        fn cuStreamEndCapture as "cuStreamEndCapture" since 10000 twin cuStreamEndCapture_ptsz (
            h_stream: CUstream, ph_graph: *mut CUgraph
        );
        fn cuStreamGetCaptureInfo as "cuStreamGetCaptureInfo" since 10010 twin cuStreamGetCaptureInfo_ptsz (
            h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t
        );
        fn cuStreamGetCaptureInfo_v2 as "cuStreamGetCaptureInfo" since 11030
            twin cuStreamGetCaptureInfo_v2_ptsz (
            h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t,
            graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode,
            num_dependencies_out: *mut usize
        );
        fn cuStreamGetCaptureInfo_v3 as "cuStreamGetCaptureInfo" since 12030
            twin cuStreamGetCaptureInfo_v3_ptsz (
            h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t,
            graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode,
            edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize
        );
        fn cuThreadExchangeStreamCaptureMode as "cuThreadExchangeStreamCaptureMode" since 10010 (
            mode: *mut CUstreamCaptureMode
        );
        fn cuLaunchHostFunc as "cuLaunchHostFunc" since 10000 twin cuLaunchHostFunc_ptsz (
            h_stream: CUstream, callback: CUhostFn, user_data: *mut c_void
        );
        fn cuStreamAddCallback as "cuStreamAddCallback" since 5000 twin cuStreamAddCallback_ptsz (
            h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint
        );
        fn cuStreamWriteValue32_v2 as "cuStreamWriteValue32" since 11070 twin cuStreamWriteValue32_v2_ptsz (
            stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint
        );
        fn cuStreamWriteValue64_v2 as "cuStreamWriteValue64" since 11070 twin cuStreamWriteValue64_v2_ptsz (
            stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint
        );
        fn cuStreamWaitValue32_v2 as "cuStreamWaitValue32" since 11070 twin cuStreamWaitValue32_v2_ptsz (
            stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint
        );
        fn cuStreamWaitValue64_v2 as "cuStreamWaitValue64" since 11070 twin cuStreamWaitValue64_v2_ptsz (
            stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint
        );
        // Events.
        fn cuEventCreate as "cuEventCreate" since 2000 (ph_event: *mut CUevent, flags: c_uint);
        fn cuCtxRecordEvent as "cuCtxRecordEvent" since 12050 (h_ctx: CUcontext, h_event: CUevent);
        fn cuEventRecord as "cuEventRecord" since 2000 twin cuEventRecord_ptsz (
            h_event: CUevent, h_stream: CUstream
        );
        fn cuEventRecordWithFlags as "cuEventRecordWithFlags" since 11010 twin cuEventRecordWithFlags_ptsz (
            h_event: CUevent, h_stream: CUstream, flags: c_uint
        );
        fn cuEventQuery as "cuEventQuery" since 2000 (h_event: CUevent);
        fn cuEventSynchronize as "cuEventSynchronize" since 2000 (h_event: CUevent);
        fn cuEventDestroy as "cuEventDestroy" since 2000 (h_event: CUevent);
        fn cuEventDestroy_v2 as "cuEventDestroy" since 4000 (h_event: CUevent);
        fn cuEventElapsedTime as "cuEventElapsedTime" since 2000 (
            p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent
        );
        fn cuEventElapsedTime_v2 as "cuEventElapsedTime" since 12080 (
            p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent
        );
        // Graphs.
        fn cuGraphCreate as "cuGraphCreate" since 10000 (ph_graph: *mut CUgraph, flags: c_uint);
        fn cuGraphAddEmptyNode as "cuGraphAddEmptyNode" since 10000 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize
        );
        fn cuGraphAddKernelNode_v2 as "cuGraphAddKernelNode" since 12000 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS
        );
        fn cuGraphAddMemsetNode as "cuGraphAddMemsetNode" since 10000 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, memset_params: *const CUDA_MEMSET_NODE_PARAMS,
            ctx: CUcontext
        );
        fn cuGraphAddHostNode as "cuGraphAddHostNode" since 10000 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, node_params: *const CUDA_HOST_NODE_PARAMS
        );
        fn cuGraphAddMemAllocNode as "cuGraphAddMemAllocNode" since 11040 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS
        );
        fn cuGraphAddMemFreeNode as "cuGraphAddMemFreeNode" since 11040 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, dptr: CUdeviceptr
        );
        fn cuGraphAddEventRecordNode as "cuGraphAddEventRecordNode" since 11010 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, event: CUevent
        );
        fn cuGraphAddEventWaitNode as "cuGraphAddEventWaitNode" since 11010 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, event: CUevent
        );
        fn cuGraphInstantiate as "cuGraphInstantiate" since 10000 (
            ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
            log_buffer: *mut c_char, buffer_size: usize
        );
        fn cuGraphInstantiate_v2 as "cuGraphInstantiate" since 11000 (
            ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
            log_buffer: *mut c_char, buffer_size: usize
        );
        fn cuGraphInstantiateWithFlags as "cuGraphInstantiateWithFlags" since 11040 (
            ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: c_ulonglong
        );
        fn cuGraphInstantiateWithParams as "cuGraphInstantiateWithParams" since 12000
            twin cuGraphInstantiateWithParams_ptsz (
            ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph,
            instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS
        );
        fn cuGraphLaunch as "cuGraphLaunch" since 10000 twin cuGraphLaunch_ptsz (
            h_graph: CUgraphExec, h_stream: CUstream
        );
        fn cuGraphUpload as "cuGraphUpload" since 11010 twin cuGraphUpload_ptsz (
            h_graph: CUgraphExec, h_stream: CUstream
        );
        fn cuGraphDestroy as "cuGraphDestroy" since 10000 (h_graph: CUgraph);
        fn cuGraphExecDestroy as "cuGraphExecDestroy" since 10000 (h_graph_exec: CUgraphExec);
        fn cuGraphGetNodes as "cuGraphGetNodes" since 10000 (
            h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize
        );
        fn cuDeviceGraphMemTrim as "cuDeviceGraphMemTrim" since 11040 (device: CUdevice);
        fn cuDeviceGetGraphMemAttribute as "cuDeviceGetGraphMemAttribute" since 11040 (
            device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void
        );
        // Modules and launches.
        fn cuModuleLoad as "cuModuleLoad" since 2000 (module: *mut CUmodule, fname: *const c_char);
        fn cuModuleLoadFatBinary as "cuModuleLoadFatBinary" since 2000 (
            module: *mut CUmodule, fat_cubin: *const c_void
        );
        fn cuModuleLoadData as "cuModuleLoadData" since 2000 (module: *mut CUmodule, image: *const c_void);
        fn cuModuleLoadDataEx as "cuModuleLoadDataEx" since 2010 (
            module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
            option_values: *mut *mut c_void
        );
        fn cuModuleUnload as "cuModuleUnload" since 2000 (hmod: CUmodule);
        fn cuModuleGetFunction as "cuModuleGetFunction" since 2000 (
            hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char
        );
        fn cuModuleGetGlobal_v2 as "cuModuleGetGlobal" since 3020 (
            dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char
        );
        fn cuLaunchKernel as "cuLaunchKernel" since 4000 twin cuLaunchKernel_ptsz (
            f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
            block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream,
            kernel_params: *mut *mut c_void, extra: *mut *mut c_void
        );
        fn cuLaunchKernelEx as "cuLaunchKernelEx" since 11060 twin cuLaunchKernelEx_ptsz (
            config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        fn cuLaunchCooperativeKernel as "cuLaunchCooperativeKernel" since 9000
            twin cuLaunchCooperativeKernel_ptsz (
            f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
            block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream,
            kernel_params: *mut *mut c_void
        );
        fn cuFuncLoad as "cuFuncLoad" since 12040 (function: CUfunction);
        fn cuLibraryLoadData as "cuLibraryLoadData" since 12000 (
            library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
            jit_options_values: *mut *mut c_void, num_jit_options: c_uint,
            library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
            num_library_options: c_uint
        );
        fn cuLibraryLoadFromFile as "cuLibraryLoadFromFile" since 12000 (
            library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
            jit_options_values: *mut *mut c_void, num_jit_options: c_uint,
            library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
            num_library_options: c_uint
        );
        fn cuLibraryGetModule as "cuLibraryGetModule" since 12000 (p_mod: *mut CUmodule, library: CUlibrary);
        fn cuLibraryGetGlobal as "cuLibraryGetGlobal" since 12000 (
            dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char
        );
        fn cuKernelGetFunction as "cuKernelGetFunction" since 12000 (p_func: *mut CUfunction, kernel: CUkernel);
        fn cuKernelSetAttribute as "cuKernelSetAttribute" since 12000 (
            attrib: CUfunction_attribute, val: c_int, kernel: CUkernel, dev: CUdevice
        );
        fn cuFuncGetAttribute as "cuFuncGetAttribute" since 2020 (
            pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction
        );
        fn cuFuncSetAttribute as "cuFuncSetAttribute" since 9000 (
            hfunc: CUfunction, attrib: CUfunction_attribute, value: c_int
        );
        }
    };
}
