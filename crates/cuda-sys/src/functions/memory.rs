//! The driver's functions for memory.

/// Appends them to a list, and passes the whole list to `$callback!`.
#[doc(hidden)]
#[macro_export]
macro_rules! and_memory_functions {
    ($($callback:ident)::+ => $($list:tt)*) => {
        $($callback)::+! {
        $($list)*

        // Memory.
        fn cuMemGetInfo_v2 as "cuMemGetInfo" since 3020 (free: *mut usize, total: *mut usize);
        fn cuMemAlloc_v2 as "cuMemAlloc" since 3020 (dptr: *mut CUdeviceptr, bytesize: usize);
        fn cuMemAllocPitch_v2 as "cuMemAllocPitch" since 3020 (
            dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize,
            element_size_bytes: c_uint
        );
        fn cuMemFree_v2 as "cuMemFree" since 3020 (dptr: CUdeviceptr);
        fn cuMemGetAddressRange_v2 as "cuMemGetAddressRange" since 3020 (
            pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr
        );
        fn cuMemAllocHost_v2 as "cuMemAllocHost" since 3020 (pp: *mut *mut c_void, bytesize: usize);
        fn cuMemFreeHost as "cuMemFreeHost" since 2000 (p: *mut c_void);
        fn cuMemHostAlloc as "cuMemHostAlloc" since 2020 (
            pp: *mut *mut c_void, bytesize: usize, flags: c_uint
        );
        fn cuMemHostGetDevicePointer_v2 as "cuMemHostGetDevicePointer" since 3020 (
            pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint
        );
        fn cuMemHostGetFlags as "cuMemHostGetFlags" since 2030 (p_flags: *mut c_uint, p: *mut c_void);
        fn cuMemHostRegister_v2 as "cuMemHostRegister" since 6050 (
            p: *mut c_void, bytesize: usize, flags: c_uint
        );
        fn cuMemHostUnregister as "cuMemHostUnregister" since 4000 (p: *mut c_void);
        fn cuMemAllocManaged as "cuMemAllocManaged" since 6000 (
            dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint
        );
        // Arrays.
        fn cuArrayCreate_v2 as "cuArrayCreate" since 3020 (
            p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR
        );
        fn cuArray3DCreate_v2 as "cuArray3DCreate" since 3020 (
            p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR
        );
        fn cuArrayDestroy as "cuArrayDestroy" since 2000 (h_array: CUarray);
        fn cuMipmappedArrayCreate as "cuMipmappedArrayCreate" since 5000 (
            p_handle: *mut CUmipmappedArray, p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
            num_mipmap_levels: c_uint
        );
        fn cuMipmappedArrayDestroy as "cuMipmappedArrayDestroy" since 5000 (
            h_mipmapped_array: CUmipmappedArray
        );
        // Copies.
        fn cuMemcpy as "cuMemcpy" since 4000 twin cuMemcpy_ptds (
            dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize
        );
        fn cuMemcpyAsync as "cuMemcpyAsync" since 4000 twin cuMemcpyAsync_ptsz (
            dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream
        );
        fn cuMemcpyPeer as "cuMemcpyPeer" since 4000 twin cuMemcpyPeer_ptds (
            dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
            byte_count: usize
        );
        fn cuMemcpyPeerAsync as "cuMemcpyPeerAsync" since 4000 twin cuMemcpyPeerAsync_ptsz (
            dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
            byte_count: usize, h_stream: CUstream
        );
        fn cuMemcpyHtoD_v2 as "cuMemcpyHtoD" since 3020 twin cuMemcpyHtoD_v2_ptds (
            dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize
        );
        fn cuMemcpyDtoH_v2 as "cuMemcpyDtoH" since 3020 twin cuMemcpyDtoH_v2_ptds (
            dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize
        );
        fn cuMemcpyDtoD_v2 as "cuMemcpyDtoD" since 3020 twin cuMemcpyDtoD_v2_ptds (
            dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize
        );
        fn cuMemcpyHtoDAsync_v2 as "cuMemcpyHtoDAsync" since 3020 twin cuMemcpyHtoDAsync_v2_ptsz (
            dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream
        );
        fn cuMemcpyDtoHAsync_v2 as "cuMemcpyDtoHAsync" since 3020 twin cuMemcpyDtoHAsync_v2_ptsz (
            dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
        );
        fn cuMemcpyDtoDAsync_v2 as "cuMemcpyDtoDAsync" since 3020 twin cuMemcpyDtoDAsync_v2_ptsz (
            dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
        );
        // Copies of rectangles and boxes.
        fn cuMemcpy2D_v2 as "cuMemcpy2D" since 3020 twin cuMemcpy2D_v2_ptds (p_copy: *const CUDA_MEMCPY2D);
        fn cuMemcpy2DUnaligned_v2 as "cuMemcpy2DUnaligned" since 3020 twin cuMemcpy2DUnaligned_v2_ptds (
            p_copy: *const CUDA_MEMCPY2D
        );
        fn cuMemcpy2DAsync_v2 as "cuMemcpy2DAsync" since 3020 twin cuMemcpy2DAsync_v2_ptsz (
            p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream
        );
        fn cuMemcpy3D_v2 as "cuMemcpy3D" since 3020 twin cuMemcpy3D_v2_ptds (p_copy: *const CUDA_MEMCPY3D);
        fn cuMemcpy3DAsync_v2 as "cuMemcpy3DAsync" since 3020 twin cuMemcpy3DAsync_v2_ptsz (
            p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream
        );
        fn cuMemcpy3DPeer as "cuMemcpy3DPeer" since 4000 twin cuMemcpy3DPeer_ptds (
            p_copy: *const CUDA_MEMCPY3D_PEER
        );
        fn cuMemcpy3DPeerAsync as "cuMemcpy3DPeerAsync" since 4000 twin cuMemcpy3DPeerAsync_ptsz (
            p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream
        );
        fn cuGraphAddMemcpyNode as "cuGraphAddMemcpyNode" since 10000 (
            ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode,
            num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext
        );
        fn cuGraphExecMemcpyNodeSetParams as "cuGraphExecMemcpyNodeSetParams" since 10020 (
            h_graph_exec: CUgraphExec, h_node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext
        );
        // Fills.
        fn cuMemsetD8_v2 as "cuMemsetD8" since 3020 twin cuMemsetD8_v2_ptds (
            dst_device: CUdeviceptr, uc: c_uchar, n: usize
        );
        fn cuMemsetD16_v2 as "cuMemsetD16" since 3020 twin cuMemsetD16_v2_ptds (
            dst_device: CUdeviceptr, us: c_ushort, n: usize
        );
        fn cuMemsetD32_v2 as "cuMemsetD32" since 3020 twin cuMemsetD32_v2_ptds (
            dst_device: CUdeviceptr, ui: c_uint, n: usize
        );
        fn cuMemsetD8Async as "cuMemsetD8Async" since 3020 twin cuMemsetD8Async_ptsz (
            dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream
        );
        fn cuMemsetD16Async as "cuMemsetD16Async" since 3020 twin cuMemsetD16Async_ptsz (
            dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream
        );
        fn cuMemsetD32Async as "cuMemsetD32Async" since 3020 twin cuMemsetD32Async_ptsz (
            dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream
        );
        // Queries of pointers.
        fn cuPointerGetAttribute as "cuPointerGetAttribute" since 4000 (
            data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr
        );
        fn cuPointerGetAttributes as "cuPointerGetAttributes" since 7000 (
            num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
            ptr: CUdeviceptr
        );
        fn cuPointerSetAttribute as "cuPointerSetAttribute" since 6000 (
            value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr
        );
        // IPC.
        fn cuIpcGetEventHandle as "cuIpcGetEventHandle" since 4010 (
            p_handle: *mut CUipcEventHandle, event: CUevent
        );
        fn cuIpcOpenEventHandle as "cuIpcOpenEventHandle" since 4010 (
            ph_event: *mut CUevent, handle: CUipcEventHandle
        );
        fn cuIpcGetMemHandle as "cuIpcGetMemHandle" since 4010 (
            p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr
        );
        fn cuIpcOpenMemHandle as "cuIpcOpenMemHandle" since 4010 (
            pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint
        );
        fn cuIpcOpenMemHandle_v2 as "cuIpcOpenMemHandle" since 11000 (
            pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint
        );
        fn cuIpcCloseMemHandle as "cuIpcCloseMemHandle" since 4010 (dptr: CUdeviceptr);
        // Peers.
        fn cuDeviceCanAccessPeer as "cuDeviceCanAccessPeer" since 4000 (
            can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice
        );
        fn cuCtxEnablePeerAccess as "cuCtxEnablePeerAccess" since 4000 (
            peer_context: CUcontext, flags: c_uint
        );
        fn cuCtxDisablePeerAccess as "cuCtxDisablePeerAccess" since 4000 (peer_context: CUcontext);
        fn cuDeviceGetP2PAttribute as "cuDeviceGetP2PAttribute" since 8000 (
            value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice
        );
        // Virtual memory.
        fn cuMemAddressReserve as "cuMemAddressReserve" since 10020 (
            ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong
        );
        fn cuMemAddressFree as "cuMemAddressFree" since 10020 (ptr: CUdeviceptr, size: usize);
        fn cuMemCreate as "cuMemCreate" since 10020 (
            handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp,
            flags: c_ulonglong
        );
        fn cuMemRelease as "cuMemRelease" since 10020 (handle: CUmemGenericAllocationHandle);
        fn cuMemMap as "cuMemMap" since 10020 (
            ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
            flags: c_ulonglong
        );
        fn cuMemUnmap as "cuMemUnmap" since 10020 (ptr: CUdeviceptr, size: usize);
        fn cuMemSetAccess as "cuMemSetAccess" since 10020 (
            ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize
        );
        fn cuMemGetAccess as "cuMemGetAccess" since 10020 (
            flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr
        );
        fn cuMemGetAllocationGranularity as "cuMemGetAllocationGranularity" since 10020 (
            granularity: *mut usize, prop: *const CUmemAllocationProp,
            option: CUmemAllocationGranularity_flags
        );
        fn cuMemGetAllocationPropertiesFromHandle as "cuMemGetAllocationPropertiesFromHandle" since 10020 (
            prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle
        );
        fn cuMemRetainAllocationHandle as "cuMemRetainAllocationHandle" since 11000 (
            handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void
        );
        fn cuMemExportToShareableHandle as "cuMemExportToShareableHandle" since 10020 (
            shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle,
            handle_type: CUmemAllocationHandleType, flags: c_ulonglong
        );
        fn cuMemImportFromShareableHandle as "cuMemImportFromShareableHandle" since 10020 (
            handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void,
            sh_handle_type: CUmemAllocationHandleType
        );
        fn cuMemGetHandleForAddressRange as "cuMemGetHandleForAddressRange" since 11070 (
            handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType,
            flags: c_ulonglong
        );
        // Memory pools and stream-ordered allocation.
        fn cuMemAllocAsync as "cuMemAllocAsync" since 11020 twin cuMemAllocAsync_ptsz (
            dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream
        );
        fn cuMemAllocFromPoolAsync as "cuMemAllocFromPoolAsync" since 11020
            twin cuMemAllocFromPoolAsync_ptsz (
            dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream
        );
        fn cuMemFreeAsync as "cuMemFreeAsync" since 11020 twin cuMemFreeAsync_ptsz (
            dptr: CUdeviceptr, h_stream: CUstream
        );
        fn cuMemPoolCreate as "cuMemPoolCreate" since 11020 (
            pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps
        );
        fn cuMemPoolDestroy as "cuMemPoolDestroy" since 11020 (pool: CUmemoryPool);
        fn cuMemPoolTrimTo as "cuMemPoolTrimTo" since 11020 (pool: CUmemoryPool, min_bytes_to_keep: usize);
        fn cuMemPoolSetAttribute as "cuMemPoolSetAttribute" since 11020 (
            pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void
        );
        fn cuMemPoolGetAttribute as "cuMemPoolGetAttribute" since 11020 (
            pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void
        );
        fn cuMemPoolSetAccess as "cuMemPoolSetAccess" since 11020 (
            pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize
        );
        fn cuMemPoolGetAccess as "cuMemPoolGetAccess" since 11020 (
            flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation
        );
        fn cuMemPoolExportToShareableHandle as "cuMemPoolExportToShareableHandle" since 11020 (
            handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType,
            flags: c_ulonglong
        );
        fn cuMemPoolImportFromShareableHandle as "cuMemPoolImportFromShareableHandle" since 11020 (
            pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType,
            flags: c_ulonglong
        );
        fn cuMemPoolExportPointer as "cuMemPoolExportPointer" since 11020 (
            share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr
        );
        fn cuMemPoolImportPointer as "cuMemPoolImportPointer" since 11020 (
            ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData
        );
        fn cuMemGetDefaultMemPool as "cuMemGetDefaultMemPool" since 13000 (
            pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType
        );
        fn cuMemGetMemPool as "cuMemGetMemPool" since 13000 (
            pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType
        );
        fn cuMemSetMemPool as "cuMemSetMemPool" since 13000 (
            location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool
        );
        // Multicast objects.
        fn cuMulticastCreate as "cuMulticastCreate" since 12010 (
            mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp
        );
        fn cuMulticastAddDevice as "cuMulticastAddDevice" since 12010 (
            mc_handle: CUmemGenericAllocationHandle, dev: CUdevice
        );
        fn cuMulticastBindMem as "cuMulticastBindMem" since 12010 (
            mc_handle: CUmemGenericAllocationHandle, mc_offset: usize,
            mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong
        );
        fn cuMulticastBindMem_v2 as "cuMulticastBindMem" since 13010 (
            mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
            mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong
        );
        fn cuMulticastBindAddr as "cuMulticastBindAddr" since 12010 (
            mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr, size: usize,
            flags: c_ulonglong
        );
        fn cuMulticastBindAddr_v2 as "cuMulticastBindAddr" since 13010 (
            mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, memptr: CUdeviceptr,
            size: usize, flags: c_ulonglong
        );
        fn cuMulticastUnbind as "cuMulticastUnbind" since 12010 (
            mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, size: usize
        );
        }
    };
}
