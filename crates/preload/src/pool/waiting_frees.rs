//! The frees of a pool that wait for a synchronization.

use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::deferred_frees;
use super::handle::Pool;
use crate::bfc;
use crate::state::contexts::Current;

/// The frees of a pool up to a certain moment. A synchronization that begins afterwards makes them reusable.
pub(crate) struct WaitingFrees(Option<Waiting>);

struct Waiting {
    pool: Pool,
    /// The number of pools of its ordinal that had ended before it.
    ended: u64,
    frees: Frees,
}

enum Frees {
    /// In a pool with a quarantine: their number, and the stamp of the last one.
    Stamped(u64, u64),
    /// In another one: the number of the last one that was deferred.
    Deferred(u64),
}

impl WaitingFrees {
    /// Returns the frees that a synchronization of this context covers: those waiting in the pool of its device, and in
    /// that of pinned memory.
    pub(crate) fn of(context: Current) -> [Self; 2] {
        let Current::Primary(device) = context else { return [Self::none(), Self::none()] };
        [Pool::of_device(device), Some(Pool::pinned())].map(|pool| {
            let Some(pool) = pool.filter(|pool| pool.waits()) else { return Self::none() };
            // Read first, because another context may begin to use memory that is freed during the second query.
            let frees = Self::waiting_in(pool);
            // Other contexts' work may use the memory too.
            if pool.is_sole_user(device) { frees } else { Self::none() }
        })
    }

    pub(super) fn waiting_in(pool: Pool) -> Self {
        let ended = pool.state.ended.load(Ordering::Acquire);
        let frees = if pool.has_quarantine() {
            let freed = pool.state.freed.load(Ordering::Relaxed);
            bfc::timestamp(pool.ordinal).map(|stamp| Frees::Stamped(freed, stamp))
        } else {
            pool.has_any_deferred().then(|| Frees::Deferred(deferred_frees::last()))
        };
        WaitingFrees(frees.map(|frees| Waiting { pool, ended, frees }))
    }

    pub(super) const fn none() -> Self {
        WaitingFrees(None)
    }

    /// Makes the frees reusable, if the synchronization succeeded, and the pool has not ended meanwhile.
    pub(crate) fn settle(self, code: CUresult) {
        let is_there = |waiting: &Waiting| waiting.pool.state.ended.load(Ordering::Acquire) == waiting.ended;
        let settled = self.0.filter(|waiting| code == CUDA_SUCCESS && is_there(waiting));
        let Some(Waiting { pool, frees, .. }) = settled else { return };
        match frees {
            Frees::Stamped(freed, stamp) => {
                bfc::set_safe_frontier(pool.ordinal, stamp.saturating_add(1));
                pool.state.settled.fetch_max(freed, Ordering::Relaxed);
            }
            Frees::Deferred(last) => pool.free_deferred(last),
        }
    }
}
