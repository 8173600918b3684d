//! The history of a process: its last events, in a ring in a file.

#[cfg(feature = "readers")]
mod fields;
pub mod layout;
#[cfg(feature = "testing")]
pub mod made;
#[cfg(feature = "readers")]
pub mod ranges;
#[cfg(feature = "readers")]
pub mod reader;
#[cfg(feature = "readers")]
pub mod source;
#[cfg(feature = "readers")]
pub mod stacks;
#[cfg(feature = "readers")]
pub mod timeline;
