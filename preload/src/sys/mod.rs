//! The operating system, and nothing of CUDA or of allocators: locks, files, messages, the identity of the process.

pub(crate) mod file_name;
pub(crate) mod lock;
pub(crate) mod mapped_file;
pub(crate) mod process;
pub(crate) mod text;
