//! Idle memory, and how it goes back to the backend: by a trim, by a lower limit, before growth that would exceed a limit,
//! and after some time of rest.
//!
//! ```text
//!   callback   the client's function before a pool at rest is trimmed
//!   give_back  wholly free regions, and the pages of free chunks
//!   limits     the limit, and limits that follow the memory of the system
//!   trim       trims, and pools at rest
//! ```
//!
//! What a pool knows of its rest and of its limit is state: [`idle_time`](super::idle_time) and
//! [`limit_share`](super::limit_share).

pub(crate) mod callback;
mod give_back;
pub(super) mod limits;
pub(crate) mod trim;
