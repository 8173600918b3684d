//! The life of the primary context, which the program can end at any time.
//!
//! The driver's manual (CUDA Driver API, Primary Context Management):
//! - `cuDevicePrimaryCtxReset`: "Explicitly destroys and cleans up all resources associated with the current device in
//!   the current process", and "Resetting the primary context does not release it, an application that has retained the
//!   primary context should explicitly release its usage". So the library's reference must still be released, once.
//! - `cuDevicePrimaryCtxRetain`: the context is "active and available to the user until the user releases it with
//!   cuDevicePrimaryCtxRelease() or resets it with cuDevicePrimaryCtxReset()". To become active again it is retained
//!   again. References are counted, so one of the two is released at once.
//! - `cuDevicePrimaryCtxRelease`: "The context is automatically reset once the last reference to it is released". That
//!   may be the library's reference, released by other code.
//! - `cuCtxGetId`: the number "is unique for the life of the program". The library assumes that a context which was
//!   reset and became active again has another number, and distinguishes its lives by it. This was never observed on a
//!   real driver.

use super::Cuda;
use super::calls::{self, Failure};
use super::context::within;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Granted};
use crate::error::{ErrorKind, LastError};
use crate::log::{self, Level};
use cuda_sys::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY, Driver,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// One for each ordinal, which is a `u8`.
const DEVICES: usize = u8::MAX as usize + 1;

/// The number of lives of each device's primary context that are known to be over. It is static because the context
/// belongs to the whole process, and copies of a backend that are in use by calls must see it.
static OVER: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// Devices whose primary context the library holds no reference to, although it is about to release one. A device has
/// one backend at a time.
static UNRETAINED: [AtomicBool; DEVICES] = [const { AtomicBool::new(false) }; DEVICES];

/// The result of a check for the context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// The context is another one, or there is none.
    Gone,
    There,
    /// The region does not exist. The context may be another one.
    Missing,
    /// The driver's answer is inconclusive.
    Nothing,
}

impl Cuda {
    fn over(&self) -> &'static AtomicU64 {
        &OVER[self.ordinal as usize]
    }

    fn unretained(&self) -> &'static AtomicBool {
        &UNRETAINED[self.ordinal as usize]
    }

    /// Returns the number of lives that are over, for a life that begins.
    pub(super) fn present_life(&self) -> u64 {
        self.over().load(Acquire)
    }

    /// Fails if the current context is not the one that was opened.
    pub(super) fn require_same(&self, driver: Driver) -> Result<(), Failure> {
        if self.id.is_some() && calls::current_id(driver)? != self.id { Err(Failure::Gone) } else { Ok(()) }
    }

    /// Returns [`Failure::Gone`] if a call failed because the context is gone. Otherwise returns the call's failure.
    pub(super) fn detect_loss(&self, failure: Failure) -> Failure {
        // Only an existing context can be out of memory, and a driver past its end cannot be asked.
        let innocent = failure.is(CUDA_ERROR_OUT_OF_MEMORY) || failure.is_the_end();
        let says_so = failure == Failure::Gone
            || failure.is(CUDA_ERROR_CONTEXT_IS_DESTROYED)
            || failure.is(CUDA_ERROR_INVALID_CONTEXT);
        let is_gone = |seen| seen == Presence::Gone || seen == Presence::Nothing && says_so;
        if innocent || !is_gone(self.ask(None, false)) {
            return failure;
        }
        self.end();
        Failure::Gone
    }

    /// Checks whether the context is the one that was opened, by its number. Without numbers, `region` may identify it.
    fn ask(&self, region: Option<Granted>, declared: bool) -> Presence {
        match calls::is_active(self.driver, self.device) {
            Ok(true) => {}
            Ok(false) => return Presence::Gone,
            Err(_) => return Presence::Nothing,
        }
        let seen = within(self, |driver| {
            let id = calls::current_id(driver)?;
            Ok(match id {
                Some(_) if id != self.id => Presence::Gone,
                // The program's report takes precedence, because it is not certain that each life has a number
                // of its own.
                Some(_) if !declared => Presence::There,
                _ => region.map_or(Presence::Nothing, |region| Self::ask_for(driver, region)),
            })
        });
        match seen {
            Ok(Presence::Nothing) if self.id.is_some() => Presence::There,
            Ok(seen) => seen,
            Err(failure) if failure.is(CUDA_ERROR_CONTEXT_IS_DESTROYED) => Presence::Gone,
            Err(_) => Presence::Nothing,
        }
    }

    fn ask_for(driver: Driver, region: Granted) -> Presence {
        match calls::allocation(driver, region.base) {
            Ok(found) if found == (region.base, region.bytes) => Presence::There,
            Ok(_) => Presence::Missing,
            // The manual documents both codes for an address that the driver does not know. Other failures are
            // inconclusive.
            Err(failure) if failure.is(CUDA_ERROR_NOT_FOUND) || failure.is(CUDA_ERROR_INVALID_VALUE) => {
                Presence::Missing
            }
            Err(_) => Presence::Nothing,
        }
    }

    /// Releases the context once. A failure is only logged.
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

    /// Retains the context again, which activates it, and releases the old reference.
    pub(super) fn renew_context(&self) -> Result<Cuda, Failure> {
        let Cuda { driver, device, .. } = *self;
        let life = self.present_life();
        let context = calls::retain_primary(driver, device)?;
        self.release();
        if calls::is_active(driver, device) == Ok(false) {
            // Other code had released the library's reference, and this release was the last one. Or the context was
            // reset just now, and one reference too many remains. The two cases cannot be told apart, and an extra
            // reference does no harm.
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

    fn probe(&self, region: Option<Granted>, declared: bool) -> bool {
        if self.is_over() {
            return false;
        }
        let seen = self.ask(region, declared);
        if seen == Presence::Gone || seen == Presence::Nothing && declared {
            self.end();
        }
        seen == Presence::Missing
    }

    /// Ends only this life. A late call does not end a later life.
    fn end(&self) {
        let _ = self.over().compare_exchange(self.life, self.life + 1, AcqRel, Acquire);
    }

    fn renew(&self) -> Result<AnyBackend, ErrorKind> {
        let renewed = self.renew_context();
        renewed.map(AnyBackend::Cuda).map_err(|failure| failure.explain_renewal(self.driver))
    }
}
