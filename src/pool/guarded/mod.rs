//! The debug mode `BFC_DEBUG=guard`, which detects writes behind or in front of an allocation when it is freed.
//!
//! A chunk is at least `ROOM` bytes longer than the request. All bytes behind the end of the request are its guard. The
//! last `ROOM` bytes in front of a chunk in use are a guard too. They are the end of the neighbour's guard, or a part
//! of free memory.
//!
//! ```text
//!   poison .......... guard | requested bytes   guard | requested bytes      guard | poison
//!   free                    | in use                  | in use                     | free
//! ```
//!
//! Guards are written and checked with the lock open and the device idle, by one thread at a time ([`await_turn`]). Meanwhile
//! no chunk is allocated or freed, so the chunks that the thread has looked up do not change. A plan to remap granules
//! removes free memory between chunks in use. It begins only when no thread writes guards, and its chunks are out of
//! reach until it is done. A guard at the end of such memory is lost with it and is [exempt](super::Pool::exempt_guards_behind)
//! from checks from then on, as is one behind an unmapped chunk.
//!
//! The slot has a phase of its own for this mode, so that allocation and free cost nothing extra without it. The mode
//! changes no result. If guards cannot be written, the call succeeds without them, and
//! [`Exempt`](super::guard_state::Exempt) remembers which guards are not to be checked.

mod check;
mod check_on_free;
mod damage_report;
mod hand_out;
mod layout;
mod work;

pub(crate) use self::check::check;
pub(super) use self::check_on_free::free;
pub(super) use self::hand_out::{await_turn, hand_out, make_room};
pub(super) use self::layout::chunk_size;
