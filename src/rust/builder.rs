//! The settings of a new pool.

use super::{Error, HostPool, Pool, Result};
use crate::device::{Device, MAX_DEVICES};
use crate::error::{ErrorKind, fail};
use crate::options::{BackendKind, DEFAULT_FLAGS, Flags, GrowthPolicy, Options, PINNED_DEVICE, SubAllocator};
use std::path::Path;
use std::time::Duration;

/// The settings of a new pool. It begins with the recommended ones: growth by need, garbage collection, every remainder
/// split off. What is not set here is taken from the environment (docs/environment.md), or else from the default.
///
/// ```
/// use bfc::{BackendKind, HOST_DEVICE, Pool};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = Pool::builder(HOST_DEVICE)
///     .backend(BackendKind::HostVmm)
///     .memory_limit(1 << 30)
///     .name("activations")
///     .build()?;
/// assert_eq!(pool.stats()?.bytes_limit, 1 << 30);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Builder<'a> {
    /// `None` is any that is free.
    ordinal: Option<i32>,
    /// `None` is the recommended ones, unless the environment says otherwise.
    flags: Option<Flags>,
    /// Without the flags.
    options: Options<'a>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(ordinal: Option<i32>) -> Self {
        let options = Options { flags: Flags::empty(), ..Options::recommended() };
        Builder { ordinal, flags: None, options }
    }

    /// The source of regions. The default is [`BackendKind::Auto`].
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.options.backend = backend;
        self
    }

    /// The most bytes held from the backend. 0 stands for the available memory, which is also the default.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.options.memory_limit = bytes;
        self
    }

    /// The limit as a fraction of the device's total memory, at most 1. 0 stands for none. No effect with a limit in bytes.
    pub fn memory_fraction(mut self, fraction: f64) -> Self {
        self.options.memory_fraction = fraction;
        self
    }

    /// The name in reports, messages and metrics. The default is "bfc".
    pub fn name(mut self, name: &'a str) -> Self {
        self.options.name = Some(name);
        self
    }

    /// How the sizes of regions are chosen.
    pub fn growth(mut self, policy: GrowthPolicy) -> Self {
        self.options.growth_policy = policy;
        self
    }

    /// Replaces the recommended flags. Those of the environment count only if none are given here.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// use bfc::{Flags, HostPool};
    ///
    /// // As TensorFlow's allocator without growth: one region.
    /// let pool = HostPool::builder().memory_limit(4 << 20).flags(Flags::GARBAGE_COLLECTION).build_host()?;
    /// let block = pool.alloc(1)?;
    /// assert_eq!(pool.stats()?.pool_bytes, 4 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = Some(flags);
        self
    }

    /// The bytes of the first region. The default is 2 MiB.
    pub fn initial_region(mut self, bytes: u64) -> Self {
        self.options.initial_region_bytes = bytes;
        self
    }

    /// Splits off a remainder of this fraction of the limit, where [`Flags::SPLIT_ALWAYS`] is not set. The default is
    /// TensorFlow's rule of 128 MiB.
    pub fn fragmentation_fraction(mut self, fraction: f64) -> Self {
        self.options.fragmentation_fraction = fraction;
        self
    }

    /// How long a request waits for another thread's free before it fails, rounded up to milliseconds. The default is not
    /// at all.
    pub fn retry_timeout(mut self, time: Duration) -> Self {
        self.options.retry_timeout_ms = time.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u32::MAX);
        self
    }

    /// A file with planned placements, as `bfc plan` writes it.
    pub fn plan(mut self, path: &'a Path) -> Self {
        self.options.plan = Some(path);
        self
    }

    /// Obtains regions from functions of the program ([`BackendKind::Custom`]). They must remain until the pool is
    /// destroyed.
    pub fn suballocator(mut self, functions: SubAllocator) -> Self {
        self.options.backend = BackendKind::Custom;
        self.options.suballocator = Some(functions);
        self
    }

    /// The settings, for [`raw::Device::create`](crate::raw::Device::create).
    pub fn options(&self) -> Options<'a> {
        Options { flags: self.flags.unwrap_or(DEFAULT_FLAGS), ..self.options }
    }

    /// Creates the pool. No memory is obtained before the first allocation. For a [`HostPool`] call
    /// [`Builder::build_host`].
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the ordinal has an allocator, which [`Pool::borrowed`] shares;
    /// [`ErrorKind::BackendUnavailable`] without a driver or such a device; [`ErrorKind::InvalidArgument`] for settings that
    /// exclude each other; [`ErrorKind::OutOfMemory`] for host memory.
    pub fn build(self) -> Result<Pool> {
        match self.ordinal {
            Some(ordinal) => self.build_on(ordinal),
            None => self.build_anywhere(),
        }
        .map_err(Error::last)
    }

    fn build_on(&self, ordinal: i32) -> Result<Pool, ErrorKind> {
        let device = Device::new(ordinal)?;
        match self.flags {
            Some(flags) => device.create(Some(&Options { flags, ..self.options }))?,
            None => device.create_with_default_flags(&self.options)?,
        }
        Ok(Pool::owning(device))
    }

    /// Takes the last free ordinal, because programs that choose theirs begin with the first.
    fn build_anywhere(&self) -> Result<Pool, ErrorKind> {
        for ordinal in (PINNED_DEVICE + 1..MAX_DEVICES).rev() {
            let built = self.build_on(ordinal);
            if !matches!(built, Err(ErrorKind::AlreadyExists)) {
                return built;
            }
        }
        Err(fail!(
            ErrorKind::AlreadyExists,
            "all ordinals from {} to {} have an allocator: destroy one first",
            PINNED_DEVICE + 1,
            MAX_DEVICES - 1
        ))
    }

    /// Creates a pool of host memory.
    ///
    /// # Errors
    /// As [`Builder::build`]. Also [`ErrorKind::InvalidArgument`] if the memory is not the host's.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// use bfc::{BackendKind, HostPool};
    ///
    /// let pool = HostPool::builder().backend(BackendKind::HostVmm).memory_limit(1 << 30).build_host()?;
    /// let block = pool.alloc_zeroed(100)?;
    /// assert_eq!(*block, [0; 100]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_host(self) -> Result<HostPool> {
        HostPool::new_of(self.build()?)
    }
}
