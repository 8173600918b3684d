//! The bfc command.
fn main() {}
