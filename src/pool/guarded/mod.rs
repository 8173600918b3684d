//! The debug mode `BFC_DEBUG=guard`: writes behind or in front of an allocation are found when it is freed.
//!
//! A chunk is at least [`ROOM`](layout::ROOM) bytes longer than what was asked for. All that lies behind the end of that is guard,
//! and so are the last [`ROOM`](layout::ROOM) bytes of what lies in front of a chunk in use: the end of the neighbour's guard, or a
//! part of free memory.
//!
//! ```text
//!   poison .......... guard | what was asked for  guard | what was asked for     guard | poison
//!   free                    | in use                    | in use                       | free
//! ```
//!
//! Guards are written and checked with the lock open and the device idle, by one thread at a time: while one does
//! ([`turn`]) no chunk is handed out or freed, so nothing changes about the chunks that it has looked up. Nothing
//! else needs a turn but to take memory away that is free, with its neighbours in use: a plan of remapping begins when
//! no thread does, and its chunks are out of reach until it is done. With the memory a guard may go that lies
//! at its end: it is [exempt](super::Pool::leave_behind), and so is one in front of which an unmapped chunk lies.
//!
//! The mode changes no answer: where guards cannot be written, a call goes on without, and [`Exempt`](super::guard_state::Exempt)
//! remembers which are not to be believed.

mod check;
mod check_on_free;
mod damage_report;
mod hand_out;
mod layout;
mod work;

pub(crate) use self::check::check;
pub(super) use self::check_on_free::free;
pub(super) use self::hand_out::{hand_out, make_room, turn};
pub(super) use self::layout::chunk_size;
