//! The frees of a pool that wait for a synchronization.

use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::Pool;
use crate::bfc;
use crate::state::contexts::Current;

/// The frees of a pool up to a certain moment. A synchronization that begins afterwards makes them reusable.
pub(crate) struct WaitingFrees(Option<Waiting>);

struct Waiting {
    pool: Pool,
    /// How many pools of its ordinal had ended before it.
    ended: u64,
    freed: u64,
    stamp: u64,
}

impl WaitingFrees {
    /// Returns the frees that a synchronization of this context covers: those waiting in the pool of its device, and in
    /// that of pinned memory.
    pub(crate) fn of(context: Current) -> [Self; 2] {
        let Current::Primary(device) = context else { return [Self::none(), Self::none()] };
        [Pool::of_device(device), Some(Pool::pinned())].map(|pool| {
            let Some(pool) = pool.filter(|pool| pool.waiting() != 0) else { return Self::none() };
            // First, because another context may begin to use memory that is freed while the second question is answered.
            let frees = Self::waiting_in(pool);
            // Other contexts' work may use the memory too.
            if pool.is_sole_user(device) { frees } else { Self::none() }
        })
    }

    pub(super) fn waiting_in(pool: Pool) -> Self {
        if !pool.has_quarantine() {
            return WaitingFrees(None);
        }
        let ended = pool.state.ended.load(Ordering::Acquire);
        let freed = pool.state.freed.load(Ordering::Relaxed);
        WaitingFrees(bfc::timestamp(pool.ordinal).map(|stamp| Waiting { pool, ended, freed, stamp }))
    }

    pub(super) const fn none() -> Self {
        WaitingFrees(None)
    }

    /// Makes the frees reusable, if the synchronization succeeded, and the pool has not ended meanwhile.
    pub(crate) fn settle(self, code: CUresult) {
        let is_there = |waiting: &Waiting| waiting.pool.state.ended.load(Ordering::Acquire) == waiting.ended;
        let settled = self.0.filter(|waiting| code == CUDA_SUCCESS && is_there(waiting));
        let Some(Waiting { pool, freed, stamp, .. }) = settled else { return };
        bfc::set_safe_frontier(pool.ordinal, stamp.saturating_add(1));
        pool.state.settled.fetch_max(freed, Ordering::Relaxed);
    }
}
