//! The primary context's life, which the program can end at any time.
//!
//! What the driver's manual says of that (CUDA Driver API, Primary Context Management):
//! - `cuDevicePrimaryCtxReset`: "Explicitly destroys and cleans up all resources associated with the current device in
//!   the current process", and "Resetting the primary context does not release it, an application that has retained
//!   the primary context should explicitly release its usage". So what was retained here is still to be released, once.
//! - `cuDevicePrimaryCtxRetain`: the context is "active and available to the user until the user releases it with
//!   cuDevicePrimaryCtxRelease() or resets it with cuDevicePrimaryCtxReset()". To be active again it is retained again,
//!   which counts, so that one of the two is released at once.
//! - `cuDevicePrimaryCtxRelease`: "The context is automatically reset once the last reference to it is released", which
//!   may be ours that somebody else has released.
//! - `cuCtxGetId`: the number "is unique for the life of the program". That a context which was reset and has come to
//!   life again has another one is how its lives are told apart. It was never seen on a real driver.

use super::Cuda;
use super::calls::{self, Failure};
use super::context::within;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Granted};
use crate::error::{Error, LastError};
use crate::log::{self, Level};
use cuda_sys::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY, Driver,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// As many as there can be: one for each ordinal, which is a `u8`.
const DEVICES: usize = u8::MAX as usize + 1;

/// For each device how many lives of its primary context are known to be over. The context is the whole process's, and
/// copies of a backend that are out in calls see it here.
static OVER: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// Devices whose primary context this library has no reference to, although it is to release one. There is one backend
/// of a device at a time.
static UNRETAINED: [AtomicBool; DEVICES] = [const { AtomicBool::new(false) }; DEVICES];

/// What a look for the context has shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It is another one, or none.
    Gone,
    There,
    /// The region is none; the context may be another.
    Missing,
    /// The driver does not tell.
    Nothing,
}

impl Cuda {
    fn over(&self) -> &'static AtomicU64 {
        &OVER[self.ordinal as usize]
    }

    fn unretained(&self) -> &'static AtomicBool {
        &UNRETAINED[self.ordinal as usize]
    }

    /// The current number of lives that are over, for one that begins.
    pub(super) fn present_life(&self) -> u64 {
        self.over().load(Acquire)
    }

    /// That the current context is the one that was opened.
    pub(super) fn require_same(&self, driver: Driver) -> Result<(), Failure> {
        if self.id.is_some() && calls::current_id(driver)? != self.id { Err(Failure::Gone) } else { Ok(()) }
    }

    /// Whether a call failed because the context is gone: then that is the failure.
    pub(super) fn look_after(&self, failure: Failure) -> Failure {
        // A context has to be there to have no memory; and after its end there is nothing to ask.
        let innocent = failure.is(CUDA_ERROR_OUT_OF_MEMORY) || failure.is_the_end();
        let says_so = failure == Failure::Gone
            || failure.is(CUDA_ERROR_CONTEXT_IS_DESTROYED)
            || failure.is(CUDA_ERROR_INVALID_CONTEXT);
        let is_gone = |seen| seen == Seen::Gone || seen == Seen::Nothing && says_so;
        if innocent || !is_gone(self.ask(None, false)) {
            return failure;
        }
        self.end();
        Failure::Gone
    }

    /// Whether the context is another than the one that was opened, which its number tells; without one `region` may.
    fn ask(&self, region: Option<Granted>, told: bool) -> Seen {
        match calls::is_active(self.driver, self.device) {
            Ok(true) => {}
            Ok(false) => return Seen::Gone,
            Err(_) => return Seen::Nothing,
        }
        let looked = within(self, |driver| {
            let id = calls::current_id(driver)?;
            Ok(match id {
                Some(_) if id != self.id => Seen::Gone,
                // That each life has a number of its own is not certain enough to contradict the program.
                Some(_) if !told => Seen::There,
                _ => region.map_or(Seen::Nothing, |region| Self::ask_for(driver, region)),
            })
        });
        match looked {
            Ok(Seen::Nothing) if self.id.is_some() => Seen::There,
            Ok(seen) => seen,
            Err(failure) if failure.is(CUDA_ERROR_CONTEXT_IS_DESTROYED) => Seen::Gone,
            Err(_) => Seen::Nothing,
        }
    }

    fn ask_for(driver: Driver, region: Granted) -> Seen {
        match calls::allocation(driver, region.base) {
            Ok(found) if found == (region.base, region.bytes) => Seen::There,
            Ok(_) => Seen::Missing,
            // The manual has both for an address that the driver does not know. Any other failure says nothing of it.
            Err(failure) if failure.is(CUDA_ERROR_NOT_FOUND) || failure.is(CUDA_ERROR_INVALID_VALUE) => {
                Seen::Missing
            }
            Err(_) => Seen::Nothing,
        }
    }

    /// Releases the context once; that it cannot be is worth a message and no more.
    pub(super) fn release(&self) {
        if self.unretained().swap(false, AcqRel) {
            return;
        }
        if let Err(failure) = calls::release_primary(self.driver, self.device)
            && !failure.is_the_end()
        {
            let error = failure.explain(self.driver);
            log::emit(Level::Error, format_args!("{}: {LastError}", error.text()));
        }
    }

    /// Retains the context anew, which brings it to life, and releases what was retained before.
    pub(super) fn retain_again(&self) -> Result<Cuda, Failure> {
        let Cuda { driver, device, .. } = *self;
        let life = self.present_life();
        let context = calls::retain_primary(driver, device)?;
        self.release();
        if calls::is_active(driver, device) == Ok(false) {
            // Somebody had released ours, and now it was the last one. Or it was reset just now, and stays retained once
            // too often: the two cannot be told apart, and this is the harmless mistake.
            calls::retain_primary(driver, device).inspect_err(|_| self.unretained().store(true, Release))?;
        }
        let mut renewed = Cuda { context, life, id: None, ..*self };
        renewed.id = within(&renewed, calls::current_id)?;
        Ok(renewed)
    }
}

impl Life for Cuda {
    fn is_over(&self) -> bool {
        self.present_life() != self.life
    }

    fn look(&self, region: Option<Granted>, told: bool) -> bool {
        if self.is_over() {
            return false;
        }
        let seen = self.ask(region, told);
        if seen == Seen::Gone || seen == Seen::Nothing && told {
            self.end();
        }
        seen == Seen::Missing
    }

    /// Who is told late ends no later life.
    fn end(&self) {
        let _ = self.over().compare_exchange(self.life, self.life + 1, AcqRel, Acquire);
    }

    fn renew(&self) -> Result<AnyBackend, Error> {
        let renewed = self.retain_again();
        renewed.map(AnyBackend::Cuda).map_err(|failure| failure.explain_renewal(self.driver))
    }
}
