//! The contexts whose work may use a pool's memory: those of its own device, those that the program has related to it
//! ([`relations`]), and those for which its memory is mapped.

use std::ffi::c_int;

use cuda_sys::*;

use super::handle::Pool;
use crate::driver;
use crate::settings;
use crate::state::contexts::{self, DEVICES};
use crate::state::relations;
use crate::state::user_contexts::{self, UserContext};

impl Pool {
    /// Calls `work` with each context whose work may use this pool's memory, made current. For pinned memory these are
    /// all known contexts. Returns the first failure. The device's own context must be known.
    pub(super) fn in_each_user(self, work: impl Fn() -> CUresult) -> CUresult {
        if self.device().is_some_and(|owner| contexts::primary_of_device(owner).is_null()) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        let mut codes =
            self.primary_users().map(|(device, context)| match contexts::run_in(context, &work) {
                // Another thread may end the context and its work meanwhile. With the pool's own context the memory
                // ends too.
                CUDA_ERROR_CONTEXT_IS_DESTROYED if self.device() != Some(device) => CUDA_SUCCESS,
                code => code,
            });
        codes.find(|&code| code != CUDA_SUCCESS).unwrap_or_else(|| {
            user_contexts::in_each(
                |user| self.device().is_none_or(|owner| self.may_touch(user, owner)),
                &work,
            )
        })
    }

    /// Returns whether only work of this device's primary context may use this pool's memory.
    pub(super) fn is_sole_user(self, device: usize) -> bool {
        let has_user_contexts = match self.device() {
            Some(owner) => self.user_contexts(owner).next().is_some(),
            None => user_contexts::any(),
        };
        !has_user_contexts && self.primary_users().all(|(user, _)| user == device)
    }

    /// Returns whether work of another device may use this pool's memory. For pinned memory, returns whether two
    /// devices are in use.
    pub(super) fn is_shared(self) -> bool {
        contexts::are_several() && self.has_other_devices()
    }

    fn has_other_devices(self) -> bool {
        match self.device() {
            Some(owner) => {
                self.user_contexts(owner).any(|user| usize::try_from(user.device()) != Ok(owner))
                    || self.primary_users().any(|(device, _)| device != owner)
            }
            None => self.primary_users().nth(1).is_some() || user_contexts::any(),
        }
    }

    /// Returns the primary contexts whose work may use this pool's memory, with their devices.
    fn primary_users(self) -> impl Iterator<Item = (usize, CUcontext)> {
        let known = (0..DEVICES).map(|device| (device, contexts::primary_of_device(device)));
        known.filter(move |&(device, context)| {
            let may_touch = || self.device().is_none_or(|owner| self.primary_may_touch(device, owner));
            !context.is_null() && may_touch()
        })
    }

    /// Returns the contexts created by the program whose work may use the memory of this pool of device `owner`.
    fn user_contexts(self, owner: usize) -> impl Iterator<Item = UserContext> {
        user_contexts::live().filter(move |&user| self.may_touch(user, owner))
    }

    fn primary_may_touch(self, user: usize, owner: usize) -> bool {
        user == owner || relations::is_primary_related(user, owner) || self.is_mapped_for(user, owner)
    }

    fn may_touch(self, user: UserContext, owner: usize) -> bool {
        relations::is_user_context_related(user, owner)
            || usize::try_from(user.device())
                .is_ok_and(|device| device == owner || self.is_mapped_for(device, owner))
    }

    /// Returns whether work of device `user` may use this pool's memory because that is mapped for it. Granules are
    /// mapped for all devices whose contexts "are capable of directly accessing memory from contexts on" theirs
    /// (cuda.h, cuDeviceCanAccessPeer). A pool created by the program may have granules.
    fn is_mapped_for(self, user: usize, owner: usize) -> bool {
        let may_have_granules = settings::wants_granules() || (self.is_known() && !self.is_ours());
        if !may_have_granules {
            return false;
        }
        let Some(Ok(ask)) = driver::load().map(|driver| driver.cuDeviceCanAccessPeer()) else { return true };
        let (Ok(user), Ok(owner)) = (c_int::try_from(user), c_int::try_from(owner)) else { return true };
        let mut can = 0;
        // SAFETY: the pointer is valid for writing.
        let code = unsafe { ask(&mut can, user, owner) };
        code != CUDA_SUCCESS || can != 0
    }
}
