//! The driver's functions, one file a subject. Each has the signature in cuda-sys's list, except that it returns a
//! `Result`. `exports` finds it by its name. Twins for the per-thread default stream are the same functions:
//! `calling_thread::is_per_thread` tells which one was called.

mod array;
mod capture;
mod context;
mod copy;
mod device;
mod event;
mod general;
mod graph;
mod green;
mod ipc;
mod memory;
mod module;
mod pointer;
mod pool;
mod rectangle;
mod stream;
mod value;
mod virtual_memory;

pub(crate) use array::*;
pub(crate) use capture::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use general::*;
pub(crate) use graph::*;
pub(crate) use green::*;
pub(crate) use ipc::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use pointer::*;
pub(crate) use pool::*;
pub(crate) use rectangle::*;
pub(crate) use stream::*;
pub(crate) use value::*;
pub(crate) use virtual_memory::*;
