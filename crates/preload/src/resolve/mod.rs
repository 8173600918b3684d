//! Lookups of the driver's functions through `dlsym` and `cuGetProcAddress`, as made by programs and the CUDA runtimes.
//!
//! The real lookup is done first. Its result is replaced if it is a function of the driver that has a hook. So a name
//! that the driver lacks, or one in another library, gets the same answer as without the interposer.

mod dlsym;
mod proc_address;
