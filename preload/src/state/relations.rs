//! Which contexts' work may touch memory of which device's pool: who has to be waited for before a chunk is handed out
//! again.
//!
//! A program whose threads drive a device each may queue work on one device that goes on only when another device's work
//! has begun (a collective), and cudaMalloc on either must not wait for that. So a pool waits for the contexts of its own
//! device, and for others only once their work can touch its memory:
//! - "on success all allocations from peerContext will immediately be accessible by the current context" (cuda.h,
//!   cuCtxEnablePeerAccess), and "access granted by this call is unidirectional";
//! - a copy reaches the memory of any device without that (CUDA C++ Programming Guide, Peer-to-Peer Memory Copy);
//! - libbfc maps granules for all devices that can reach their device, and cuMemSetAccess does "set the access flags for the
//!   target locations", whatever cuCtxEnablePeerAccess was told.
//!
//! From the first call of a function that is not analysed (`unanalysed`) every pool waits for every context.
//!
//! What was once seen holds for good: disabling the access says nothing of the work that is queued.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_sys::*;

use crate::driver::{self, real};
use crate::pool::Pool;
use crate::state::contexts::{self, Current, DEVICES};
use crate::state::user_contexts;
use crate::{bfc, settings};

/// For each device's memory, whose work may touch it: a bit for each device's primary context, and one for each context
/// that the program has created.
struct Users {
    primaries: AtomicU64,
    created: AtomicU64,
}

static USERS: [Users; DEVICES] =
    [const { Users { primaries: AtomicU64::new(0), created: AtomicU64::new(0) } }; DEVICES];

/// Work of a context that is not known by its handle may touch anything: then every pool waits for every context.
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Whether work of a device's primary context may touch memory of a device's pool.
pub(crate) fn primary_may_touch(user: usize, owner: usize) -> bool {
    user == owner
        || IS_UNKNOWN.load(Ordering::Acquire)
        || reaches(user, owner)
        || USERS.get(owner).is_none_or(|users| users.primaries.load(Ordering::Acquire) >> user & 1 != 0)
}

/// The same of a context that the program has created, by its place and its device.
pub(crate) fn created_may_touch(place: usize, device: c_int, owner: usize) -> bool {
    usize::try_from(device).is_ok_and(|device| device == owner || reaches(device, owner))
        || IS_UNKNOWN.load(Ordering::Acquire)
        || USERS.get(owner).is_none_or(|users| users.created.load(Ordering::Acquire) >> place & 1 != 0)
}

/// From now on every pool waits for every context.
#[inline]
pub(crate) fn relate_all() {
    if !IS_UNKNOWN.load(Ordering::Relaxed) {
        IS_UNKNOWN.store(true, Ordering::Release);
    }
}

/// Whether work of a device may touch memory of another device's pool because that is mapped for it. Granules are, for all
/// devices whose contexts "are capable of directly accessing memory from contexts on" theirs (cuda.h, cuDeviceCanAccessPeer).
/// A pool of the program's own may have them.
fn reaches(user: usize, owner: usize) -> bool {
    let may_have_granules = settings::wants_granules()
        || Pool::of_device(owner).is_some_and(|pool| pool.is_known() && !pool.is_ours());
    if !may_have_granules {
        return false;
    }
    let Some(Ok(ask)) = driver::load().map(|driver| driver.cuDeviceCanAccessPeer()) else { return true };
    let (Ok(user), Ok(owner)) = (c_int::try_from(user), c_int::try_from(owner)) else { return true };
    let mut can = 0;
    // SAFETY: the pointer is valid for writing.
    let code = unsafe { ask(&mut can, user, owner) };
    code != CUDA_SUCCESS || can != 0
}

/// A place is about to be another context's.
pub(crate) fn forget_created(place: usize) {
    for users in &USERS {
        users.created.fetch_and(!(1 << place), Ordering::AcqRel);
    }
}

fn note(user: CUcontext, owner: usize) {
    let Some(users) = USERS.get(owner) else { return };
    let bit = |place: &AtomicU64, number: usize| {
        if place.load(Ordering::Relaxed) >> number & 1 == 0 {
            place.fetch_or(1 << number, Ordering::AcqRel);
        }
    };
    match (contexts::known_as(user), user_contexts::place_of(user)) {
        (Current::Primary(device), _) => bit(&users.primaries, device),
        (_, Some(place)) => bit(&users.created, place),
        _ => relate_all(),
    }
}

/// The current context may touch memory of another one from now on.
fn note_peer(owner: CUcontext) {
    let device = match contexts::known_as(owner) {
        Current::Primary(device) => Some(device),
        _ => user_contexts::device_of(owner),
    };
    match (contexts::current_handle(), device) {
        (Some(user), Some(device)) => note(user, device),
        _ => relate_all(),
    }
}

/// Work on a stream is about to touch some addresses.
#[cold]
pub(crate) fn note_addresses(stream: CUstream, addresses: &[CUdeviceptr]) {
    for &address in addresses.iter().filter(|&&address| address != 0) {
        // Pinned memory is every context's anyway.
        let Some(owner) = bfc::owner(address).and_then(|owner| usize::try_from(owner).ok()) else { continue };
        if owner >= DEVICES {
            continue;
        }
        match contexts::of_stream(stream) {
            Some(user) if contexts::known_as(user) == Current::Primary(owner) => {}
            Some(user) => note(user, owner),
            // The call fails, for there is no context; or nobody can say.
            None => relate_all(),
        }
    }
}

/// A graph's copy that touches pooled memory runs wherever the graph is launched.
#[cold]
fn note_node(addresses: &[CUdeviceptr]) {
    if addresses.iter().any(|&address| address != 0 && bfc::owner(address).is_some()) {
        relate_all();
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> CUresult {
    let Some(enable) = real::cuCtxEnablePeerAccess() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { enable(peer, flags) };
    if code == CUDA_SUCCESS || code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        note_peer(peer);
    }
    code
}

/// The program maps memory itself. If it is pooled, work may touch it from then on by other addresses, or of other devices.
fn note_mapped(address: CUdeviceptr) {
    if address != 0 && bfc::owner(address).is_some() {
        relate_all();
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    let Some(set) = real::cuMemSetAccess() else { return CUDA_ERROR_NOT_INITIALIZED };
    note_mapped(address);
    // SAFETY: the caller's arguments.
    unsafe { set(address, bytes, access, count) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    let Some(retain) = real::cuMemRetainAllocationHandle() else { return CUDA_ERROR_NOT_INITIALIZED };
    note_mapped(address.addr() as CUdeviceptr);
    // SAFETY: the caller's arguments.
    unsafe { retain(handle, address) }
}

/// Functions that queue work which touches the named addresses on a stream; the legacy default stream, or the thread's own,
/// where they have none.
macro_rules! touches {
    ($($symbol:ident($($argument:ident: $type:ty),*) at $addresses:expr; on $stream:expr;)*) => {
        $(
            /// # Safety
            /// As the driver's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
                let Some(call) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // With one context there is nothing to tell apart.
                if contexts::are_several() {
                    note_addresses($stream, &$addresses);
                }
                // SAFETY: the caller's arguments.
                unsafe { call($($argument),*) }
            }
        )*
    };
}

/// The addresses of a copy's two sides; 0 is none. The side of an array has none either: arrays are not pooled.
macro_rules! sides {
    ($($name:ident: $type:ty;)*) => {
        $(
            fn $name(copy: *const $type) -> [CUdeviceptr; 2] {
                // SAFETY: the caller's argument, which the driver reads too; it refuses NULL.
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

/// Nodes of graphs, which are launched in any stream and context.
macro_rules! adds {
    ($($symbol:ident($($argument:ident: $type:ty),*) copies $copy:ident;)*) => {
        $(
            /// # Safety
            /// As the driver's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
                let Some(call) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                if contexts::are_several() {
                    note_node(&cuboid($copy));
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

/// A default stream is the current context's, whichever of them it is.
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
