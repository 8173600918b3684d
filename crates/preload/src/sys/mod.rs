//! The operating system: locks, files, messages, the identity of the process. Nothing here depends on CUDA or on
//! allocators.

pub(crate) mod file_name;
pub(crate) mod lock;
pub(crate) mod mapped_file;
pub(crate) mod process;
pub(crate) mod slots;
pub(crate) mod text;
pub(crate) mod window;
