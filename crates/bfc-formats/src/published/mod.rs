//! The statistics that a process publishes in a file.

pub mod layout;
#[cfg(feature = "testing")]
pub mod made;
#[cfg(feature = "readers")]
pub mod reader;
#[cfg(all(test, feature = "testing"))]
mod tests;
