//! The history of a process: its last events, in a ring in a file.

pub mod layout;
