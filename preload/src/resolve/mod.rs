//! Lookups of the driver's functions by `dlsym` and `cuGetProcAddress`, as programs and the CUDA runtimes make them.
//!
//! The real lookup is done first. Its result is replaced if it is a function of the driver that has a hook. A name that
//! the driver lacks, or one in another library, is therefore answered as without the interposer.

mod dlsym;
mod proc_address;
