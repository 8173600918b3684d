//! The history of a process.

mod fields;
#[cfg(any(test, feature = "testing"))]
pub mod made;
pub mod ranges;
pub mod reader;
pub mod source;
pub mod stacks;
pub mod timeline;
