//! Terms that the library and the command print for absent values. Each has one term.

/// The holder of memory that was allocated outside of all scopes.
pub const NO_OPERATION: &str = "(no operation)";

/// The absence of a limit.
pub const NO_LIMIT: &str = "none";

/// Returns whether a limit in bytes has no effect, because no device has that much memory.
pub fn is_no_limit(bytes: u64) -> bool {
    bytes >= 1 << 50
}
