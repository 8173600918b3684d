//! The adapters as called by a framework, on the simulated driver, and a filter like PyTorch's.

use super::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// A pair of functions for memory of device 0, with the stream that they are passed, if any.
#[derive(Clone, Copy)]
pub struct Adapter {
    pub name: &'static str,
    pub alloc: fn(u64, u64) -> u64,
    pub free: fn(u64, u64),
}

/// PyTorch's.
pub const TORCH: Adapter = Adapter {
    name: "torch",
    alloc: |bytes, stream| bfc_torch_alloc(bytes as usize, 0, pointer(stream)) as u64,
    free: |address, stream| bfc_torch_free(pointer(address), 0, 0, pointer(stream)),
};

/// CuPy's.
pub const CUPY: Adapter = Adapter {
    name: "cupy",
    alloc: |bytes, _| bfc_cupy_malloc(null_mut(), bytes as usize, 0) as u64,
    free: |address, _| bfc_cupy_free(null_mut(), pointer(address), 0),
};

/// ONNX Runtime's.
pub const ORT: Adapter = Adapter {
    name: "ort",
    alloc: |bytes, _| bfc_ort_alloc(bytes as usize) as u64,
    free: |address, _| bfc_ort_free(pointer(address)),
};

/// The functions of an `OrtAllocator`, which names the stream of a request.
pub const ORT_ON_STREAM: Adapter = Adapter {
    name: "ort on a stream",
    alloc: |bytes, stream| bfc_ort_alloc_on_stream(0, bytes as usize, pointer(stream)) as u64,
    free: |address, _| bfc_ort_free(pointer(address)),
};

/// cuTensorNet's.
pub const HANDLER: Adapter = Adapter {
    name: "handler",
    alloc: |bytes, stream| handler_alloc(bytes, stream).unwrap_or(0),
    free: |address, stream| {
        bfc_handler_free(null_mut(), pointer(address), 0, pointer(stream));
    },
};

/// All of them.
pub const ALL: [Adapter; 4] = [TORCH, CUPY, ORT, HANDLER];

/// Calls `bfc_handler_alloc` and checks that the out-pointer is written on every path.
pub fn handler_alloc(bytes: u64, stream: u64) -> Result<u64, Status> {
    let mut out = pointer(0xdead_beef);
    // SAFETY: `out` is valid for writing.
    match unsafe { bfc_handler_alloc(null_mut(), &mut out, bytes as usize, pointer(stream)) } {
        BFC_OK => Ok(out as u64),
        status => {
            assert!(out.is_null(), "it is written");
            Err(status)
        }
    }
}

/// `bfc_torch_base_alloc`.
pub fn base_alloc(address: u64) -> (u64, u64) {
    let mut bytes = 7;
    // SAFETY: `bytes` is valid for writing.
    let base = unsafe { bfc_torch_base_alloc(pointer(address), &mut bytes) };
    (base as u64, bytes as u64)
}

/// The statistics of device 0.
#[track_caller]
pub fn stats_of(device: i32) -> bfc_stats_t {
    let mut result = stats();
    // SAFETY: the struct is whole.
    assert_eq!(unsafe { bfc_stats(device, &mut result) }, BFC_OK, "{}", last_error());
    result
}

/// Destroys the allocator of a device, which must have no live allocations.
#[track_caller]
pub fn end(device: i32) {
    // SAFETY: none is needed.
    assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
    assert_eq!(bfc_destroy(device), BFC_OK, "{}", last_error());
}

/// A `std::function<bool(cudaStream_t)>` in the layout of libstdc++, which accepts one stream. A C++ program of
/// ffi-tests passes real ones.
#[repr(C)]
pub struct Function {
    functor: [u64; 2],
    manager: extern "C" fn(*mut [u64; 2], *const [u64; 2], c_int) -> bool,
    invoker: extern "C" fn(*const [u64; 2], *const u64) -> bool,
}

/// The number of live copies of functions.
pub static COPIES: AtomicI64 = AtomicI64::new(0);
/// The number of calls of a filter.
pub static ASKED: AtomicU64 = AtomicU64::new(0);

extern "C" fn manage(to: *mut [u64; 2], from: *const [u64; 2], operation: c_int) -> bool {
    // An ended function accepts no stream if it is called.
    let (value, copies) = match operation {
        // SAFETY: it is valid by the contract of libstdc++.
        2 => (unsafe { from.read() }, 1),
        3 => ([u64::MAX; 2], -1),
        other => panic!("operation {other}"),
    };
    COPIES.fetch_add(copies, SeqCst);
    // SAFETY: as above.
    unsafe { to.write(value) };
    false
}

extern "C" fn invoke(functor: *const [u64; 2], stream: *const u64) -> bool {
    ASKED.fetch_add(1, SeqCst);
    // SAFETY: it is valid.
    let wanted = unsafe { functor.read() }[0];
    // SAFETY: as above.
    wanted == unsafe { stream.read() }
}

/// `bfc_torch_begin_allocate_to_pool` on device 0 for one stream.
pub fn begin_to_pool(id: (u64, u64), stream: u64) {
    let mut function = Function { functor: [stream, 0], manager: manage, invoker: invoke };
    let filter: *mut c_void = (&raw mut function).cast();
    // SAFETY: it has the layout of libstdc++. Like PyTorch's it ends when the call returns.
    unsafe { bfc_torch_begin_allocate_to_pool(0, id.0, id.1, filter) };
}
