//! libbfc's functions, looked up at run time. Their types are generated from the header (bfc-sys).

use bfc_sys::{bfc_stats_t, pointers};
use libloading::Library;

/// Declares the table and the loop that fills it once, so that they cannot drift apart.
macro_rules! functions {
    ($($name:ident)*) => {
        /// The library's functions that this command calls.
        pub struct Api {
            $(pub $name: pointers::$name,)*
        }

        impl Api {
            /// Looks up every function. The error names one that is missing.
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
    bfc_create
    bfc_destroy
    bfc_destroy_forced
    bfc_alloc
    bfc_free
    bfc_alloc_async
    bfc_alloc_ex
    bfc_timestamp
    bfc_set_safe_frontier
    bfc_free_async
    bfc_allocated_size
    bfc_stats
    bfc_reset_stats
    bfc_occupancy
    bfc_memory_map
    bfc_report
    bfc_resolve_options
    bfc_status_string
    bfc_last_error
    bfc_version
}

/// The traces' sizes and the simulated device's addresses are 64-bit numbers.
const _: () = assert!(size_of::<usize>() == 8, "bfc needs a 64-bit machine");

/// Returns the fragmentation as TensorFlow defines it: the share of the pool's free bytes that one request could not get.
/// A full pool has none.
pub fn fragmentation(stats: &bfc_stats_t) -> f64 {
    let free = stats.pool_bytes.saturating_sub(stats.bytes_in_use);
    if free == 0 {
        return 0.0;
    }
    1.0 - stats.largest_free_block_bytes as f64 / free as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_of_a_full_pool_is_none() {
        let full = bfc_stats_t { pool_bytes: 512, bytes_in_use: 512, ..Default::default() };
        assert_eq!(fragmentation(&full), 0.0);
        let halves = bfc_stats_t { pool_bytes: 1024, largest_free_block_bytes: 512, ..Default::default() };
        assert_eq!(fragmentation(&halves), 0.5);
    }
}
