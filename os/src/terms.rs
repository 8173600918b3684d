//! What the library and the command print in the place of something that is not there. Each has one term.

/// The holder of memory that was allocated outside of all scopes.
pub const NO_OPERATION: &str = "(no operation)";

/// A limit that limits nothing.
pub const NO_LIMIT: &str = "none";

/// Returns whether a limit in bytes limits nothing, because no device has as much memory.
pub fn is_no_limit(bytes: u64) -> bool {
    bytes >= 1 << 50
}
