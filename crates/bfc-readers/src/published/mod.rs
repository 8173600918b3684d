//! The statistics that processes publish.

#[cfg(feature = "testing")]
pub mod made;
pub mod reader;
#[cfg(all(test, feature = "testing"))]
mod tests;
