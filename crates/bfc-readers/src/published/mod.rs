//! The statistics that processes publish.

#[cfg(any(test, feature = "testing"))]
pub mod made;
pub mod reader;
#[cfg(test)]
mod tests;
