//! Functions for framework adapters: requests that name no stream but may be used on many, captures of unknown streams,
//! and the device used for a thread.

use super::table::{Device, USED, devices_in};
use crate::backend::current_device;
use crate::core::request::Request;
use crate::core::stream_id::Stream;
use crate::error::Error;
use crate::options::{BackendKind, DEFAULT_FLAGS, LAST_CUDA_DEVICE, Options};
use crate::pool::{free, graph_pools, idle, order, zeroing};
use std::sync::atomic::Ordering::*;

/// The alignment that the driver and the frameworks' own allocators provide in practice. Some kernels
/// rely on it, although NVIDIA's manual promises only half of it.
const ALIGNMENT: u64 = 512;

impl Device {
    /// Returns the device of the calling thread's current context. Without one, returns device 0, like the CUDA
    /// runtime.
    pub(crate) fn current() -> Result<Self, Error> {
        Device::new(current_device()?.unwrap_or(0))
    }

    /// Returns the CUDA ordinals that ever had an allocator.
    pub(crate) fn all_of_cuda() -> impl Iterator<Item = Self> {
        devices_in(&USED).filter(|device| device.ordinal() <= LAST_CUDA_DEVICE)
    }

    /// Zeroes an allocation of host memory.
    ///
    /// # Safety
    /// The caller has just allocated these bytes and nothing else uses them. They are accessible from the host.
    pub(crate) unsafe fn zero(self, addr: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { zeroing::zero(self.slot(), addr, bytes) }
    }

    /// Returns whether the device ever had an allocator.
    #[inline]
    pub(crate) fn was_created(self) -> bool {
        USED[self.word()].load(Acquire) & self.bit() != 0
    }

    /// Creates the allocator for a framework. `None` stands for the environment's settings, on top of a backend and
    /// [`DEFAULT_FLAGS`].
    pub(crate) fn create_for_framework(
        self,
        options: Option<&Options<'_>>,
        backend: BackendKind,
    ) -> Result<(), Error> {
        match options {
            Some(options) => self.create_as(options, 0),
            None => self.create_as(&Options { backend, ..Options::default() }, DEFAULT_FLAGS),
        }
    }

    /// Creates the allocator like [`Self::create_for_framework`], with a fraction of the device's memory from 0 to 1 as
    /// its limit.
    pub(crate) fn create_with_fraction(
        self,
        memory_fraction: f64,
        options: Option<&Options<'_>>,
        backend: BackendKind,
    ) -> Result<(), Error> {
        let own = options.map(|options| Options { memory_fraction, ..*options });
        match own {
            Some(options) => self.create_as(&options, 0),
            None => {
                self.create_as(&Options { backend, memory_fraction, ..Options::default() }, DEFAULT_FLAGS)
            }
        }
    }

    /// Changes the limit of an existing allocator to what [`Self::create_with_fraction`] would have set.
    pub(crate) fn limit_to_fraction(
        self,
        memory_fraction: f64,
        options: Option<&Options<'_>>,
    ) -> Result<(), Error> {
        let options = options.copied().unwrap_or_else(Options::growing);
        let options = Options { memory_fraction, ..options };
        idle::trim::set_limit_as(self.slot(), &options).map_err(|error| self.explain(error))
    }

    /// Allocates in the order of a stream, like [`Self::alloc_on`], with the driver's alignment.
    pub(crate) fn alloc_for_stream(self, bytes: u64, stream: u64) -> Result<u64, Error> {
        self.alloc_as(bytes, order::stream_of(self.slot(), stream)?)
    }

    /// Allocates for a client that may use any stream and names none. No queued work uses the returned memory. It is
    /// freed with [`Self::free_on_any`] or [`Self::free`]. While a capture is visible the memory belongs to a private
    /// pool, and stays there after its free.
    pub(crate) fn alloc_on_any(self, bytes: u64, pool_of_captures: u64) -> Result<u64, Error> {
        let order = graph_pools::order_of_any(self.slot(), Stream::ANY, pool_of_captures);
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    /// Allocates like [`Self::alloc_on_any`] for work on a stream. Also checks whether that stream is captured.
    pub(crate) fn alloc_on_any_beside(
        self,
        bytes: u64,
        stream: u64,
        pool_of_captures: u64,
    ) -> Result<u64, Error> {
        let order = graph_pools::order_of_any(
            self.slot(),
            order::stream_there(self.slot(), stream)?,
            pool_of_captures,
        );
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    /// Frees memory that queued work of any stream may still use. The memory is not reusable until the device was
    /// idle.
    pub(crate) fn free_on_any(self, addr: u64) -> Result<(), Error> {
        if addr == 0 {
            return Ok(());
        }
        let freed = free::free_on(self.slot(), addr, Stream::UNKNOWN, false);
        freed.map_err(|error| self.explain_pointer(error, addr))
    }

    /// Allocates a single request like [`Self::alloc_for_stream`] from a private pool, which is created if needed. The
    /// stream must exist until [`Self::end_routes`] or [`Self::forget_stream`].
    pub(crate) fn alloc_in_pool(self, bytes: u64, stream: u64, pool: u64) -> Result<u64, Error> {
        let order = graph_pools::order_of(self.slot(), order::stream_of(self.slot(), stream)?, pool);
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    fn alloc_as(self, bytes: u64, stream: Stream) -> Result<u64, Error> {
        self.serve(&Request { alignment: ALIGNMENT, ..Request::new(bytes, stream).in_512() })
    }

    /// Announces that an unknown stream is about to be captured. Until [`Self::withdraw_capture`], no call waits for
    /// the device or releases memory.
    pub(crate) fn announce_capture(self) -> Result<(), Error> {
        graph_pools::announce(self.slot()).map_err(|error| self.explain(error))
    }

    /// Ends the individual requests for a private pool ([`Self::alloc_in_pool`]): their streams may then be
    /// destroyed.
    pub(crate) fn end_routes(self, pool: u64) -> Result<(), Error> {
        graph_pools::end_routes(self.slot(), pool).map_err(|error| self.explain(error))
    }

    /// Ends one announcement.
    pub(crate) fn withdraw_capture(self) -> Result<(), Error> {
        graph_pools::withdraw_announcement(self.slot()).map_err(|error| self.explain(error))
    }
}
