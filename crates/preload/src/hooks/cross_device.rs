//! The hooks of functions through which work may use memory of another device: peer access, mappings, copies, fills and
//! graph nodes.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use cuda_sys::*;

use crate::driver::real;
use crate::state::{contexts, relations};

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> CUresult {
    let Some(enable) = real::cuCtxEnablePeerAccess() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { enable(peer, flags) };
    if code == CUDA_SUCCESS || code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        relations::note_peer(peer);
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    let Some(set) = real::cuMemSetAccess() else { return CUDA_ERROR_NOT_INITIALIZED };
    relations::note_mapped(address);
    // SAFETY: the caller's arguments.
    unsafe { set(address, bytes, access, count) }
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    let Some(retain) = real::cuMemRetainAllocationHandle() else { return CUDA_ERROR_NOT_INITIALIZED };
    relations::note_mapped(address.addr() as CUdeviceptr);
    // SAFETY: the caller's arguments.
    unsafe { retain(handle, address) }
}

/// Functions that queue work on a stream that uses the given addresses. Without a stream the default stream is used.
macro_rules! touches {
    ($($symbol:ident($($argument:ident: $type:ty),*) at $addresses:expr; on $stream:expr;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
                let Some(call) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // With one context there is nothing to relate.
                if contexts::are_several() {
                    relations::note_addresses($stream, &$addresses);
                }
                // SAFETY: the caller's arguments.
                unsafe { call($($argument),*) }
            }
        )*
    };
}

/// Returns the addresses of both sides of a copy. 0 is none. Arrays are not pooled, so they have none.
macro_rules! sides {
    ($($name:ident: $type:ty;)*) => {
        $(
            fn $name(copy: *const $type) -> [CUdeviceptr; 2] {
                // SAFETY: the caller's argument, which the driver reads too. The driver refuses NULL.
                let Some(copy) = (unsafe { copy.as_ref() }) else { return [0; 2] };
                let side = |kind, device| match kind {
                    CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => device,
                    _ => 0,
                };
                [side(copy.dstMemoryType, copy.dstDevice), side(copy.srcMemoryType, copy.srcDevice)]
            }
        )*
    };
}

sides! {
    rectangle: CUDA_MEMCPY2D;
    cuboid: CUDA_MEMCPY3D;
    peers: CUDA_MEMCPY3D_PEER;
}

/// Functions that add graph nodes, which may run on any stream and context.
macro_rules! adds {
    ($($symbol:ident($($argument:ident: $type:ty),*) copies $copy:ident;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
                let Some(call) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                if contexts::are_several() {
                    relations::note_node(&cuboid($copy));
                }
                // SAFETY: the caller's arguments.
                unsafe { call($($argument),*) }
            }
        )*
    };
}

adds! {
    cuGraphAddMemcpyNode(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, copy: *const CUDA_MEMCPY3D,
        context: CUcontext
    ) copies copy;
    cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, copy: *const CUDA_MEMCPY3D, context: CUcontext
    ) copies copy;
}

/// Represents either default stream: both belong to the current context.
const DEFAULT: CUstream = std::ptr::null_mut();

touches! {
    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) at [to, from]; on DEFAULT;
    cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) at [to, from]; on DEFAULT;
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) at [to, from]; on stream;
    cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) at [to, from]; on stream;
    cuMemcpyPeer(to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, bytes: usize)
        at [to, from]; on DEFAULT;
    cuMemcpyPeer_ptds(to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, bytes: usize)
        at [to, from]; on DEFAULT;
    cuMemcpyPeerAsync(to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, bytes: usize, stream: CUstream)
        at [to, from]; on stream;
    cuMemcpyPeerAsync_ptsz(
        to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, bytes: usize, stream: CUstream
    ) at [to, from]; on stream;
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) at [to]; on DEFAULT;
    cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, bytes: usize) at [to]; on DEFAULT;
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) at [from]; on DEFAULT;
    cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, bytes: usize) at [from]; on DEFAULT;
    cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) at [to, from]; on DEFAULT;
    cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) at [to, from]; on DEFAULT;
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) at [to]; on stream;
    cuMemcpyHtoDAsync_v2_ptsz(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) at [to]; on stream;
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) at [from]; on stream;
    cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) at [from]; on stream;
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) at [to, from]; on stream;
    cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        at [to, from]; on stream;
    cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) at [at]; on DEFAULT;
    cuMemsetD8_v2_ptds(at: CUdeviceptr, value: c_uchar, count: usize) at [at]; on DEFAULT;
    cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) at [at]; on DEFAULT;
    cuMemsetD16_v2_ptds(at: CUdeviceptr, value: c_ushort, count: usize) at [at]; on DEFAULT;
    cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) at [at]; on DEFAULT;
    cuMemsetD32_v2_ptds(at: CUdeviceptr, value: c_uint, count: usize) at [at]; on DEFAULT;
    cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) at [at]; on stream;
    cuMemsetD8Async_ptsz(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) at [at]; on stream;
    cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) at [at]; on stream;
    cuMemsetD16Async_ptsz(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) at [at]; on stream;
    cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) at [at]; on stream;
    cuMemsetD32Async_ptsz(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) at [at]; on stream;
    cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) at rectangle(copy); on DEFAULT;
    cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D) at rectangle(copy); on DEFAULT;
    cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) at rectangle(copy); on DEFAULT;
    cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D) at rectangle(copy); on DEFAULT;
    cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) at cuboid(copy); on DEFAULT;
    cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D) at cuboid(copy); on DEFAULT;
    cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER) at peers(copy); on DEFAULT;
    cuMemcpy3DPeer_ptds(copy: *const CUDA_MEMCPY3D_PEER) at peers(copy); on DEFAULT;
    cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) at rectangle(copy); on stream;
    cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream) at rectangle(copy); on stream;
    cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) at cuboid(copy); on stream;
    cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D, stream: CUstream) at cuboid(copy); on stream;
    cuMemcpy3DPeerAsync(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) at peers(copy); on stream;
    cuMemcpy3DPeerAsync_ptsz(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) at peers(copy); on stream;
}
