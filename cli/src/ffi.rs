//! libbfc's C ABI as this client declares it.
//!
//! Written by hand from the contract and not shared with the library's own source: the command is a
//! client like any other, and a slip in the library's layout has to show here instead of cancelling out.

use std::ffi::{c_char, c_void};

use libloading::Library;
use serde::Serialize;

/// `bfc_status_t`: an integer, because a library newer than this command may return values it cannot name.
pub type Status = i32;

/// `BFC_OK`.
pub const OK: Status = 0;
/// `BFC_ERROR_OUT_OF_MEMORY`: the one failure of a request that a replay counts instead of stopping.
pub const ERROR_OUT_OF_MEMORY: Status = 4;
/// `BFC_ERROR_BACKEND_UNAVAILABLE`.
pub const ERROR_BACKEND_UNAVAILABLE: Status = 8;

/// `BFC_BACKEND_AUTO`.
pub const BACKEND_AUTO: u32 = 0;
/// `BFC_BACKEND_HOST`.
pub const BACKEND_HOST: u32 = 1;
/// `BFC_BACKEND_CUSTOM`.
pub const BACKEND_CUSTOM: u32 = 2;
/// `BFC_BACKEND_CUDA`.
pub const BACKEND_CUDA: u32 = 3;
/// `BFC_BACKEND_CUDA_VMM`.
pub const BACKEND_CUDA_VMM: u32 = 4;
/// `BFC_BACKEND_HOST_VMM`.
pub const BACKEND_HOST_VMM: u32 = 5;

/// `BFC_ALLOW_GROWTH`.
pub const ALLOW_GROWTH: u32 = 1 << 0;
/// `BFC_GARBAGE_COLLECTION`.
pub const GARBAGE_COLLECTION: u32 = 1 << 1;
/// `BFC_SPLIT_ALWAYS`.
pub const SPLIT_ALWAYS: u32 = 1 << 3;

/// `bfc_suballocator_t`.
#[repr(C)]
pub struct Suballocator {
    pub struct_size: usize,
    pub user_data: *mut c_void,
    pub alloc: Option<unsafe extern "C" fn(*mut c_void, usize, usize, *mut usize) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
    pub supports_coalescing: u32,
    pub reserved: u32,
}

/// `bfc_options_t`.
#[repr(C)]
pub struct Options {
    pub struct_size: usize,
    pub backend: u32,
    pub flags: u32,
    pub memory_limit: u64,
    pub memory_fraction: f64,
    pub fragmentation_fraction: f64,
    pub initial_region_bytes: u64,
    pub retry_timeout_ms: u32,
    pub reserved: u32,
    pub name: *const c_char,
    pub suballocator: *const Suballocator,
}

/// `bfc_stats_t`; its fields keep their names in the JSON output.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    #[serde(skip)]
    pub struct_size: usize,
    pub num_allocs: u64,
    pub num_frees: u64,
    pub num_failures: u64,
    pub bytes_in_use: u64,
    pub peak_bytes_in_use: u64,
    pub bytes_requested: u64,
    pub peak_bytes_requested: u64,
    pub largest_alloc_size: u64,
    pub bytes_limit: u64,
    pub pool_bytes: u64,
    pub peak_pool_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub num_regions: u64,
    pub num_chunks: u64,
    pub num_free_chunks: u64,
    pub metadata_bytes: u64,
}

impl Stats {
    /// Fragmentation as TensorFlow defines it: the share of the pool's free bytes that one request could
    /// not get. A full pool has none.
    pub fn fragmentation(&self) -> f64 {
        let free = self.pool_bytes.saturating_sub(self.bytes_in_use);
        if free == 0 {
            return 0.0;
        }
        1.0 - self.largest_free_block_bytes as f64 / free as f64
    }
}

/// Declares the functions once: the table of pointers and the loop that resolves it cannot drift apart.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The library's functions, resolved.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl Api {
            /// Resolves every function, or says which is missing.
            ///
            /// # Safety
            /// `library` must be a libbfc (its `bfc_` symbols have the types of the C contract), and it
            /// must stay loaded for as long as the pointers are called.
            pub unsafe fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the caller vouches that the symbol of this name is the contract's function
                    // and that it stays loaded.
                    $($name: *unsafe { library.get(stringify!($name)) }?,)*
                })
            }
        }
    };
}

functions! {
    fn bfc_create(device: i32, options: *const Options) -> Status;
    fn bfc_destroy(device: i32) -> Status;
    fn bfc_destroy_forced(device: i32) -> Status;
    fn bfc_alloc(device: i32, bytes: usize, out_ptr: *mut *mut c_void) -> Status;
    fn bfc_free(device: i32, ptr: *mut c_void) -> Status;
    fn bfc_alloc_async(device: i32, bytes: usize, stream: *mut c_void, out_ptr: *mut *mut c_void) -> Status;
    fn bfc_free_async(device: i32, ptr: *mut c_void, stream: *mut c_void) -> Status;
    fn bfc_allocated_size(device: i32, ptr: *const c_void, out: *mut usize) -> Status;
    fn bfc_stats(device: i32, out_stats: *mut Stats) -> Status;
    fn bfc_reset_stats(device: i32) -> Status;
    fn bfc_occupancy(device: i32, buf: *mut c_char, capacity: usize, out_length: *mut usize) -> Status;
    fn bfc_memory_map(device: i32, buf: *mut c_char, capacity: usize, out_length: *mut usize) -> Status;
    fn bfc_report(device: i32, buf: *mut c_char, capacity: usize, out_length: *mut usize) -> Status;
    fn bfc_status_string(status: Status) -> *const c_char;
    fn bfc_last_error(buf: *mut c_char, capacity: usize) -> usize;
    fn bfc_version() -> *const c_char;
}

/// The traces' sizes and the simulated device's addresses are 64-bit numbers.
const _: () = assert!(size_of::<usize>() == 8, "bfc needs a 64-bit machine");

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    #[test]
    fn suballocator_has_the_layout_of_the_contract() {
        assert_eq!(size_of::<Suballocator>(), 40);
        assert_eq!(align_of::<Suballocator>(), 8);
        assert_eq!(offset_of!(Suballocator, user_data), 8);
        assert_eq!(offset_of!(Suballocator, alloc), 16);
        assert_eq!(offset_of!(Suballocator, free), 24);
        assert_eq!(offset_of!(Suballocator, supports_coalescing), 32);
        assert_eq!(offset_of!(Suballocator, reserved), 36);
    }

    #[test]
    fn options_have_the_layout_of_the_contract() {
        assert_eq!(size_of::<Options>(), 72);
        assert_eq!(align_of::<Options>(), 8);
        assert_eq!(offset_of!(Options, backend), 8);
        assert_eq!(offset_of!(Options, flags), 12);
        assert_eq!(offset_of!(Options, memory_limit), 16);
        assert_eq!(offset_of!(Options, memory_fraction), 24);
        assert_eq!(offset_of!(Options, fragmentation_fraction), 32);
        assert_eq!(offset_of!(Options, initial_region_bytes), 40);
        assert_eq!(offset_of!(Options, retry_timeout_ms), 48);
        assert_eq!(offset_of!(Options, reserved), 52);
        assert_eq!(offset_of!(Options, name), 56);
        assert_eq!(offset_of!(Options, suballocator), 64);
    }

    #[test]
    fn stats_have_the_layout_of_the_contract() {
        // struct_size and sixteen counters, all of 8 bytes, in the order of the contract.
        assert_eq!(size_of::<Stats>(), 17 * 8);
        assert_eq!(offset_of!(Stats, num_allocs), 8);
        assert_eq!(offset_of!(Stats, num_failures), 3 * 8);
        assert_eq!(offset_of!(Stats, peak_bytes_requested), 7 * 8);
        assert_eq!(offset_of!(Stats, bytes_limit), 9 * 8);
        assert_eq!(offset_of!(Stats, largest_free_block_bytes), 12 * 8);
        assert_eq!(offset_of!(Stats, metadata_bytes), 16 * 8);
    }

    #[test]
    fn fragmentation_of_a_full_pool_is_none() {
        let full = Stats { pool_bytes: 512, bytes_in_use: 512, ..Stats::default() };
        assert_eq!(full.fragmentation(), 0.0);
        let halves = Stats { pool_bytes: 1024, largest_free_block_bytes: 512, ..Stats::default() };
        assert_eq!(halves.fragmentation(), 0.5);
    }
}
