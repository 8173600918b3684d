//! PyTorch's filter for the streams of a pool: a `std::function<bool(cudaStream_t)>`.
//!
//! The filter is passed by reference and must be called at each request until the capture is over, so it is copied as
//! C++ would copy it. This relies on its layout in libstdc++ (`bits/std_function.h`), the C++ library of all of
//! PyTorch's Linux builds. The layout is part of that library's ABI and has not changed since GCC 4.

use crate::capi::types::bfc_stream_t;
use std::ffi::{c_int, c_void};

/// The function's state is in the first part, or a pointer there refers to it.
#[repr(C)]
struct Function {
    functor: [usize; 2],
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

type Manager =
    unsafe extern "C-unwind" fn(to: *mut [usize; 2], from: *const [usize; 2], operation: c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(functor: *const [usize; 2], stream: *const bfc_stream_t) -> bool;

const CLONE_FUNCTOR: c_int = 2;
const DESTROY_FUNCTOR: c_int = 3;

/// A copy of a filter. A copy of none accepts every stream.
pub(super) struct Filter(Function);

impl Filter {
    /// Copies a filter. Exceptions of the copy propagate to the caller.
    ///
    /// # Safety
    /// `function` is NULL or points to a `std::function<bool(cudaStream_t)>` of libstdc++.
    pub(super) unsafe fn copy_of(function: *const c_void) -> Self {
        let mut copy = Function { functor: [0; 2], manager: None, invoker: None };
        // SAFETY: by this function's contract.
        let original = unsafe { function.cast::<Function>().as_ref() };
        if let Some(Function { functor, manager: Some(manager), invoker }) = original {
            // SAFETY: the call makes the first a copy of the second, and both are valid.
            unsafe { manager(&mut copy.functor, functor, CLONE_FUNCTOR) };
            (copy.manager, copy.invoker) = (Some(*manager), *invoker);
        }
        Filter(copy)
    }

    /// Returns whether the pool serves a request of the calling thread in the order of a stream. Exceptions propagate
    /// to the caller.
    pub(super) fn accepts(&self, stream: bfc_stream_t) -> bool {
        match self.0.invoker {
            // SAFETY: the functor is valid, and the second argument is a reference to the stream.
            Some(invoke) => unsafe { invoke(&self.0.functor, &stream) },
            None => true,
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(manager) = self.0.manager {
            let functor = &raw mut self.0.functor;
            // SAFETY: the functor was made by `copy_of` and is not used again.
            unsafe { manager(functor, functor, DESTROY_FUNCTOR) };
        }
    }
}
