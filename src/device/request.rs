//! Requests with optional parameters.

use super::table::Device;
use crate::error::{ErrorKind, fail};
use bfc_core::request::Request as ArenaRequest;
use bfc_core::stream_id::Stream;
use bfc_core::units::UNIT;

/// A request for memory with optional parameters.
///
/// ```
/// use bfc::{HostPool, Request};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let page = pool.alloc_with(&Request::new(100).alignment(4096))?;
/// assert_eq!(page.as_ptr().addr().get() % 4096, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Request {
    bytes: u64,
    alignment: u64,
    freed_before: u64,
    options: u32,
}

impl Request {
    // As in the C ABI, whose requests are passed on as they are.
    pub(crate) const NO_GROWTH: u32 = 1 << 1;
    pub(crate) const IN_512: u32 = 1 << 3;
    pub(crate) const SHORT_LIVED: u32 = 1 << 4;
    pub(crate) const ATTEMPT: u32 = 1 << 6;

    /// Requests `bytes` bytes, at a multiple of 256.
    #[inline]
    pub const fn new(bytes: usize) -> Self {
        Request { bytes: bytes as u64, alignment: 0, freed_before: 0, options: 0 }
    }

    /// A request with all parameters. Other bits of the options are ignored.
    #[inline]
    pub(crate) const fn with_all(bytes: u64, alignment: u64, freed_before: u64, options: u32) -> Self {
        Request { bytes, alignment, freed_before, options }
    }

    /// At a multiple of a power of two. 0 stands for 256. Another number is refused with
    /// [`ErrorKind::InvalidArgument`], and one larger than the limit with [`ErrorKind::OutOfMemory`].
    #[inline]
    pub const fn alignment(self, alignment: usize) -> Self {
        Request { alignment: alignment as u64, ..self }
    }

    /// Only from memory that the pool holds: no growth, no waiting. Finding none is no failure in the statistics.
    #[inline]
    pub const fn no_growth(self) -> Self {
        self.with(Self::NO_GROWTH)
    }

    /// Finding no memory is no failure in the statistics, because the caller has other ways to get it.
    #[inline]
    pub const fn attempt(self) -> Self {
        self.with(Self::ATTEMPT)
    }

    /// The memory will be freed soon, so it is taken from the upper end of a chunk where that is possible.
    #[inline]
    pub const fn short_lived(self) -> Self {
        self.with(Self::SHORT_LIVED)
    }

    /// Rounded up to a multiple of 512 bytes instead of 256, as in PyTorch.
    #[inline]
    pub const fn multiple_of_512(self) -> Self {
        self.with(Self::IN_512)
    }

    /// Only from chunks whose free was stamped at most `stamp`. 0 accepts any. Needs [`Flags::TIMESTAMPS`].
    ///
    /// [`Flags::TIMESTAMPS`]: crate::Flags::TIMESTAMPS
    #[inline]
    pub const fn freed_before(self, stamp: u64) -> Self {
        Request { freed_before: stamp, ..self }
    }

    /// The requested bytes.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    const fn with(self, option: u32) -> Self {
        Request { options: self.options | option, ..self }
    }

    const fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }

    /// Returns the request as the arena takes it, in the order of a stream's handle or of no stream.
    #[inline]
    pub(crate) fn on(&self, device: Device, stream: Option<u64>) -> Result<ArenaRequest<'static>, ErrorKind> {
        let stream = match stream {
            Some(handle) => device.stream_of(handle)?,
            None => Stream::NONE,
        };
        let request = ArenaRequest::new(self.bytes, stream).freed_before(self.freed_before);
        let request = if self.has(Self::IN_512) { request.in_512() } else { request };
        let (no_growth, is_attempt) = (self.has(Self::NO_GROWTH), self.has(Self::ATTEMPT));
        aligned(
            ArenaRequest {
                no_growth,
                // Finding no room does not count as a failure of such a request.
                is_attempt: is_attempt || no_growth,
                // It cannot be repeated with growth, so it may use all memory that is held.
                splits_large: no_growth && !is_attempt,
                short_lived: self.has(Self::SHORT_LIVED),
                ..request
            },
            self.alignment,
        )
    }
}

impl Device {
    /// Allocates memory according to a request, in the order of a stream or of none.
    ///
    /// # Safety
    /// As [`Self::alloc_on`], if there is a stream.
    #[inline]
    pub unsafe fn alloc_request(self, request: &Request, stream: Option<u64>) -> Result<u64, ErrorKind> {
        self.alloc_with(&request.on(self, stream)?)
    }
}

/// Returns a request with an alignment. 0 stands for 256.
#[inline]
pub(super) fn aligned(request: ArenaRequest<'_>, alignment: u64) -> Result<ArenaRequest<'_>, ErrorKind> {
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(fail!(ErrorKind::InvalidArgument, "alignment {alignment} is not a power of two"));
    }
    Ok(ArenaRequest { alignment: alignment.max(UNIT), ..request })
}
