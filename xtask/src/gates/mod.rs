//! The gates: pure functions from what was found to what is wrong with it, one line each; nothing wrong
//! is an empty list. A gate that cannot fail is worth nothing, so each one's tests feed it bad input.

pub mod header;
