//! What frameworks need beside the interface for everybody: requests that name no stream though many work, captures
//! of streams that nobody names, the device that a thread means.

use super::{Device, USED, devices_in};
use crate::backend::current_device;
use crate::core::stream_id::Stream;
use crate::error::Error;
use crate::options::{ALLOW_GROWTH, GARBAGE_COLLECTION, LAST_CUDA_DEVICE, Options};
use crate::pool::alloc::RequestParams;
use crate::pool::{free, graph_pools, lifecycle, order};
use std::sync::atomic::Ordering::*;

/// What the driver gives, and the frameworks' own allocators over it; some kernels rest on that, though NVIDIA's manual
/// promises half of it.
const ALIGNMENT: u64 = 512;

impl Device {
    /// That of the calling thread's current context; without one the first, as the CUDA runtime has it.
    pub(crate) fn current() -> Result<Self, Error> {
        Device::new(current_device()?.unwrap_or(0))
    }

    /// Those of CUDA's ordinals that ever had an allocator.
    pub(crate) fn all_of_cuda() -> impl Iterator<Item = Self> {
        devices_in(&USED).filter(|device| device.ordinal() <= LAST_CUDA_DEVICE)
    }

    /// Whether it ever had an allocator.
    #[inline]
    pub(crate) fn was_created(self) -> bool {
        USED[self.word()].load(Acquire) & self.bit() != 0
    }

    /// As [`Self::create`], but for a share of the device's memory, from 0 to 1.
    pub(crate) fn create_with_fraction(
        self,
        memory_fraction: f64,
        options: Option<&Options<'_>>,
    ) -> Result<(), Error> {
        match options {
            Some(options) => self.create_as(&Options { memory_fraction, ..*options }, 0),
            None => self.create_as(
                &Options { memory_fraction, ..Options::default() },
                ALLOW_GROWTH | GARBAGE_COLLECTION,
            ),
        }
    }

    /// Changes the limit of an allocator that is there to what [`Self::create_with_fraction`] would make it.
    pub(crate) fn limit_to_fraction(
        self,
        memory_fraction: f64,
        options: Option<&Options<'_>>,
    ) -> Result<(), Error> {
        let options = options.copied().unwrap_or_else(Options::growing);
        let options = Options { memory_fraction, ..options };
        lifecycle::set_limit_as(self.slot(), &options).map_err(|error| self.explain(error))
    }

    /// Allocates in the order of a stream, as [`Self::alloc_on`], at the driver's alignment.
    pub(crate) fn alloc_for_stream(self, bytes: u64, stream: u64) -> Result<u64, Error> {
        self.alloc_as(bytes, order::stream_of(stream)?)
    }

    /// Allocates for a client that may use any stream and names none: no queued work touches what it returns any more.
    /// [`Self::free_on_any`] is its free, and so is [`Self::free`] of what this gave. While a capture is visible the memory
    /// is a private pool's, and stays there once it is freed.
    pub(crate) fn alloc_on_any(self, bytes: u64, pool_of_captures: u64) -> Result<u64, Error> {
        let order = graph_pools::order_of_any(self.slot(), Stream::ANY, pool_of_captures);
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    /// The same for work on a stream, which is asked whether it is captured.
    pub(crate) fn alloc_on_any_beside(
        self,
        bytes: u64,
        stream: u64,
        pool_of_captures: u64,
    ) -> Result<u64, Error> {
        let order = graph_pools::order_of_any(self.slot(), order::stream_of(stream)?, pool_of_captures);
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    /// Frees what work of any stream may still touch, as far as it is queued by now: nobody gets it before the device
    /// was idle.
    pub(crate) fn free_on_any(self, addr: u64) -> Result<(), Error> {
        if addr == 0 {
            return Ok(());
        }
        let freed = free::free_on(self.slot(), addr, Stream::UNKNOWN);
        freed.map_err(|error| self.explain_pointer(error, addr))
    }

    /// As [`Self::alloc_for_stream`], for a private pool, which begins to exist if need be: for this request only.
    pub(crate) fn alloc_in_pool(self, bytes: u64, stream: u64, pool: u64) -> Result<u64, Error> {
        let order = graph_pools::order_of(self.slot(), order::stream_of(stream)?, pool);
        self.alloc_as(bytes, order.map_err(|error| self.explain(error))?)
    }

    fn alloc_as(self, bytes: u64, stream: Stream) -> Result<u64, Error> {
        self.serve(&RequestParams {
            bytes,
            alignment: ALIGNMENT,
            in_512: true,
            stream,
            ..RequestParams::default()
        })
    }

    /// Some stream is about to be captured, and nobody can say yet which: until [`Self::withdraw_capture`] no call
    /// waits for the device or gives memory back.
    pub(crate) fn announce_capture(self) -> Result<(), Error> {
        graph_pools::announce(self.slot()).map_err(|error| self.explain(error))
    }

    /// Ends one announcement.
    pub(crate) fn withdraw_capture(self) -> Result<(), Error> {
        graph_pools::withdraw_announcement(self.slot()).map_err(|error| self.explain(error))
    }
}
