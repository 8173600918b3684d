//! The statistics that a process publishes in a file.

pub mod layout;
