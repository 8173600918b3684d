//! One entry of the device table: a lock, the data that it protects, and the threads that wait.
//!
//! The lock is taken once a call and held for some tens of nanoseconds. Backends are called, and threads wait, with the
//! lock open. The slot lists the calls under way, so that destruction can wait for them.
//!
//! ```text
//!   stack_list   lists of entries in stack frames      call           a call under way
//!   waiting      refuses waits that would never end    ranges         address ranges, for lookups without the lock
//!   slot         the slot, and what its lock protects  guard          the locked slot: entering, leaving
//!   fork         slots before and after a fork         context_end    forgets all memory after a reset
//!   calls        calls with the lock open              backend_calls  calls of the backend and its driver
//!   table        all slots of the process
//! ```

mod backend_calls;
mod call;
mod calls;
mod context_end;
mod fork;
mod guard;
mod ranges;
#[allow(clippy::module_inception)] // the type of this module
mod slot;
mod stack_list;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;

pub(super) use self::backend_calls::{Interrupted, Outside, deferred, is_reborn, or_reborn, unsaid_outside};
pub(super) use self::call::CallKind;
pub(super) use self::context_end::forget_if_over;
pub(super) use self::guard::FastGuard;
pub(crate) use self::guard::Guard;
pub(super) use self::slot::Phase;
pub(crate) use self::slot::Slot;
