//! Functions for framework adapters: requests that name no stream but may be used on many, captures of unknown streams,
//! and the device used for a thread.

use super::table::{Device, USED, devices_in};
use crate::backend::current_device;
use crate::error::ErrorKind;
use crate::options::{BackendKind, DEFAULT_FLAGS, Flags, LAST_CUDA_DEVICE, Options};
use crate::pool::{free, graph_pools, idle, order, zeroing};
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use std::sync::atomic::Ordering::*;

/// The alignment that the driver and the frameworks' own allocators provide in practice. Some kernels
/// rely on it, although NVIDIA's manual promises only half of it.
const ALIGNMENT: u64 = 512;

/// The order of a framework's request, and whether it is for a private pool.
#[derive(Clone, Copy)]
pub(crate) enum ClientOrder {
    /// That of a stream, as in [`Device::alloc_on`].
    Stream(u64),
    /// That of no stream: the client may use any and names none. No queued work uses the returned memory. It is freed with
    /// [`Device::free_on_any`] or [`Device::free`]. While a capture is visible the memory belongs to a private pool, and
    /// stays there after its free.
    Any { pool_of_captures: u64 },
    /// As [`ClientOrder::Any`], for work on a stream. Whether that stream is captured is checked too.
    AnyBeside { stream: u64, pool_of_captures: u64 },
    /// That of a stream, for this request from a private pool, which is created if needed. The stream must exist until
    /// [`Device::end_routes`] or [`Device::forget_stream`].
    Pool { stream: u64, pool: u64 },
}

impl Device {
    /// Returns the device of the calling thread's current context. Without one, returns device 0, like the CUDA
    /// runtime.
    pub(crate) fn current() -> Result<Self, ErrorKind> {
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
    pub(crate) unsafe fn zero(self, addr: u64, bytes: u64) -> Result<(), ErrorKind> {
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
    ) -> Result<(), ErrorKind> {
        match options {
            Some(options) => self.create_as(options, Flags::empty()),
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
    ) -> Result<(), ErrorKind> {
        let own = options.map(|options| Options { memory_fraction, ..*options });
        match own {
            Some(options) => self.create_as(&options, Flags::empty()),
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
    ) -> Result<(), ErrorKind> {
        let options = options.copied().unwrap_or_else(Options::growing);
        let options = Options { memory_fraction, ..options };
        idle::trim::set_limit_as(self.slot(), &options).map_err(|error| self.explain(error))
    }

    /// Allocates with the driver's alignment, in the order that a framework needs.
    pub(crate) fn alloc_in_order(self, bytes: u64, order: ClientOrder) -> Result<u64, ErrorKind> {
        let slot = self.slot();
        let stream = match order {
            ClientOrder::Stream(stream) => Ok(order::stream_of(slot, stream)?),
            ClientOrder::Any { pool_of_captures } => {
                graph_pools::order_of_any(slot, Stream::ANY, pool_of_captures)
            }
            ClientOrder::AnyBeside { stream, pool_of_captures } => graph_pools::order_of_any(
                slot,
                order::stream_in_current_context(slot, stream)?,
                pool_of_captures,
            ),
            ClientOrder::Pool { stream, pool } => {
                graph_pools::order_of(slot, order::stream_of(slot, stream)?, pool)
            }
        };
        let stream = stream.map_err(|error| self.explain(error))?;
        self.serve(&Request { alignment: ALIGNMENT, ..Request::new(bytes, stream).in_512() })
    }

    /// Frees memory that queued work of any stream may still use. The memory is not reusable until the device was
    /// idle.
    pub(crate) fn free_on_any(self, addr: u64) -> Result<(), ErrorKind> {
        if addr == 0 {
            return Ok(());
        }
        let freed = free::free_on(self.slot(), addr, Stream::UNKNOWN, false);
        freed.map_err(|error| self.explain_pointer(error, addr))
    }

    /// Announces that an unknown stream is about to be captured. Until [`Self::withdraw_capture`], no call waits for
    /// the device or releases memory.
    pub(crate) fn announce_capture(self) -> Result<(), ErrorKind> {
        graph_pools::announce(self.slot()).map_err(|error| self.explain(error))
    }

    /// Ends the individual requests for a private pool ([`ClientOrder::Pool`]): their streams may then be destroyed.
    pub(crate) fn end_routes(self, pool: u64) -> Result<(), ErrorKind> {
        graph_pools::end_routes(self.slot(), pool).map_err(|error| self.explain(error))
    }

    /// Ends one announcement.
    pub(crate) fn withdraw_capture(self) -> Result<(), ErrorKind> {
        graph_pools::withdraw_announcement(self.slot()).map_err(|error| self.explain(error))
    }
}
