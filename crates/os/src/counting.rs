//! Counting down.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Decrements the count, with `order`. Returns false if the count is 0, which does not change.
///
/// This is a loop because Rust 1.99 deprecates `fetch_update` in favour of `try_update`, which Rust 1.88 lacks.
pub fn take_one(count: &AtomicUsize, order: Ordering) -> bool {
    let mut seen = count.load(Ordering::Relaxed);
    while let Some(less) = seen.checked_sub(1) {
        match count.compare_exchange_weak(seen, less, order, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}
