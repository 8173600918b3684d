//! What the suite uses of `tests/common`, with the pool of this binary in place of that of the C ABI.

#![allow(dead_code, unused_imports)] // the suite uses a part

pub use crate::c_abi::*;
pub use crate::pool::Pool;

#[allow(clippy::duplicate_mod)] // its functions are to take this pool
#[path = "../common/guarded.rs"]
pub mod guarded;
