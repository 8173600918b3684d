//! The global table with one allocator for each device ordinal. This is the Rust interface, which the C interface
//! wraps.

mod clients;
mod forks;
pub mod history;
mod idle_trim;
mod order;
mod populator;
mod publisher;
mod request;
mod service;
mod table;

pub(crate) use self::clients::ClientOrder;
pub(crate) use self::forks::survive_forks;
pub use self::request::Request;
pub use self::table::{Device, MAX_DEVICES};

use self::request::aligned;
use self::table::{USED, devices_in};
use crate::error::{ErrorKind, append_to_last_error, fail, keeping_last_error};
use crate::options::{DEFAULT_FLAGS, Flags, Options, Resolution};
use crate::pool::idle_time::{IdleCallback, IdleFunction};
use crate::pool::listener::RegionCallback;
use crate::pool::slot::Guard;
use crate::pool::{Pool, alloc, context_loss, free, guarded, idle, lifecycle, snapshot};
use crate::report::layout::Region;
use crate::report::metrics::Sample;
use crate::report::{self, Subject};
use crate::scope;
use bfc_core::request::Request as ArenaRequest;
use bfc_core::stats::Stats;
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::Ordering::*;

/// The chunk and the region that contain an address, each as start and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressRange {
    /// Start and bytes of the chunk.
    pub chunk: (u64, u64),
    /// Start and bytes of the region.
    pub region: (u64, u64),
}

impl Device {
    #[inline]
    fn enter(self) -> Result<Guard<'static>, ErrorKind> {
        self.slot().enter().map_err(|error| self.explain(error))
    }

    /// Locks the allocator for a call that holds the lock for long.
    fn enter_for_long(self) -> Result<Guard<'static>, ErrorKind> {
        self.slot().enter_for_long().map_err(|error| self.explain(error))
    }

    /// Completes an error message with the ordinal, which is unknown to a slot. A wrong ordinal is the most common
    /// cause.
    #[cold]
    fn explain(self, error: ErrorKind) -> ErrorKind {
        match error {
            ErrorKind::NoAllocator => {
                fail!(error, "no allocator was created for device {}: create one first", self.0)
            }
            error => error,
        }
    }

    /// Creates the device's allocator. `None` stands for growth, garbage collection and the environment's settings.
    pub fn create(self, options: Option<&Options<'_>>) -> Result<(), ErrorKind> {
        match options {
            Some(options) => self.create_as(options, Flags::empty()),
            None => self.create_as(&Options::default(), DEFAULT_FLAGS),
        }
    }

    /// Creates the allocator from options without flags: those of the environment, or the recommended ones.
    pub(crate) fn create_with_default_flags(self, options: &Options<'_>) -> Result<(), ErrorKind> {
        self.create_as(options, DEFAULT_FLAGS)
    }

    /// Creates the allocator. `default_flags` apply where neither the options nor the environment set anything.
    fn create_as(self, options: &Options<'_>, default_flags: Flags) -> Result<(), ErrorKind> {
        forks::survive()?;
        options.check()?;
        // Checked before the backend is examined: sharing an existing allocator does not depend on its backend.
        lifecycle::require_vacant(self.slot(), self.0)?;
        let resolved = options.resolve(self.0, default_flags)?;
        history::start_as_the_environment_says();
        // Set before the allocator appears, because a fork must find it as soon as it appears.
        USED[self.word()].fetch_or(self.bit(), SeqCst);
        let (trims, populates) = (resolved.trim_after.is_some(), resolved.backend.get().populates());
        lifecycle::create(self.slot(), self.0, resolved)?;
        if trims {
            idle_trim::watch();
        }
        if populates {
            populator::watch();
        }
        publisher::start_as_the_environment_says();
        Ok(())
    }

    /// Destroys the allocator. Returns [`ErrorKind::Busy`] while there are live allocations. Waits for calls of other
    /// threads.
    ///
    /// # Safety
    /// Nothing that owns the allocator uses it afterwards, like a [`Pool`](crate::Pool).
    pub unsafe fn destroy(self) -> Result<(), ErrorKind> {
        lifecycle::destroy(self.slot(), false).map_err(|error| self.explain(error))
    }

    /// Destroys the allocator even if there are live allocations. Their pointers are invalid afterwards.
    ///
    /// # Safety
    /// As [`Self::destroy`], and nothing uses the memory of live allocations, like a [`Block`](crate::Block).
    pub unsafe fn destroy_forced(self) -> Result<(), ErrorKind> {
        lifecycle::destroy(self.slot(), true).map_err(|error| self.explain(error))
    }

    /// Allocates memory. The address is a multiple of 256, or 0 for 0 bytes.
    // Always inlined, although the adapter for NumPy calls it too, which must not cost bfc_alloc an extra call.
    #[inline(always)]
    pub fn alloc(self, bytes: u64) -> Result<u64, ErrorKind> {
        if scope::is_open() {
            return self.serve(&ArenaRequest::new(bytes, Stream::NONE));
        }
        alloc::alloc(self.slot(), bytes, Stream::NONE).map_err(|error| self.explain(error))
    }

    /// Allocates memory at a multiple of a power of two.
    pub fn alloc_aligned(self, bytes: u64, alignment: u64) -> Result<u64, ErrorKind> {
        self.alloc_with(&aligned(ArenaRequest::new(bytes, Stream::NONE), alignment)?)
    }

    /// Allocates memory according to a request.
    pub(crate) fn alloc_with(self, request: &ArenaRequest<'_>) -> Result<u64, ErrorKind> {
        let ArenaRequest { stream, max_stamp, short_lived, .. } = *request;
        if stream != Stream::NONE || max_stamp != u64::MAX || short_lived || scope::is_open() {
            return self.serve(request);
        }
        alloc::alloc_aligned(self.slot(), request).map_err(|error| self.explain(error))
    }

    /// Counts a request as failed that was attempted, and that the caller could not serve in any other way. It counts
    /// for the calling thread's operation.
    pub(crate) fn count_failed_attempt(self, request: &ArenaRequest<'_>) -> Result<(), ErrorKind> {
        self.in_scope(request, |guard, request| {
            alloc::count_failed_attempt(guard, request);
            Ok(())
        })
    }

    /// Allocates like [`Self::alloc`] from chunks whose free was stamped at most `freed_before`. 0 accepts any. The
    /// allocator must have timestamps even for 0, because callers of this function rely on them.
    pub fn alloc_freed_before(self, bytes: u64, freed_before: u64) -> Result<u64, ErrorKind> {
        let request = ArenaRequest::new(bytes, Stream::NONE).freed_before(freed_before);
        self.with_guard(&request, |guard, request| {
            guard.require_timestamps("bfc_alloc_freed_before")?;
            alloc::serve(guard, request)
        })
    }

    fn serve(self, request: &ArenaRequest<'_>) -> Result<u64, ErrorKind> {
        self.with_guard(request, alloc::serve)
    }

    fn with_guard<T>(
        self,
        request: &ArenaRequest<'_>,
        work: impl FnOnce(Guard<'_>, &ArenaRequest<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        if scope::is_open() { self.in_scope(request, work) } else { work(self.enter()?, request) }
    }

    /// Adds the operation and the backtrace to a request.
    #[cold]
    fn in_scope<T>(
        self,
        request: &ArenaRequest<'_>,
        work: impl FnOnce(Guard<'_>, &ArenaRequest<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        let mut request = ArenaRequest { stack: crate::history::capture().number(), ..*request };
        let mut guard = self.enter()?;
        let tag = match scope::read(|name, step| guard.arena.tag(name, step)) {
            Some(Err(exhausted)) => return Err(guard.fail(exhausted.into(), &request)),
            Some(Ok(tag)) => Some(tag),
            None => None,
        };
        request.scope = tag.as_ref();
        work(guard, &request)
    }

    /// Frees an allocation. The address 0 is accepted.
    ///
    /// # Safety
    /// Nothing uses the memory afterwards but work that is queued before what uses it next. Nothing else frees it, like a
    /// [`Block`](crate::Block).
    // Always, as above.
    #[inline(always)]
    pub unsafe fn free(self, addr: u64) -> Result<(), ErrorKind> {
        if addr == 0 {
            return self.slot().accepts_null();
        }
        free::free(self.slot(), addr).map_err(|error| self.explain_pointer(error, addr))
    }

    /// Completes the error message if the pointer belongs to another device.
    #[cold]
    fn explain_pointer(self, error: ErrorKind, addr: u64) -> ErrorKind {
        let foreign = matches!(error, ErrorKind::InvalidPointer | ErrorKind::NoAllocator);
        let holds = |device: &Device| *device != self && matches!(device.slot().holds(addr), Ok(true));
        let owner = if foreign { devices_in(&USED).find(holds) } else { None };
        let error = self.explain(error);
        if let Some(Device(owner)) = owner {
            append_to_last_error(format_args!("; {addr:#x} belongs to device {owner}"));
        }
        error
    }

    /// Sets a function that is called after memory was obtained from the backend and before it is released. `None`
    /// removes it.
    ///
    /// # Safety
    /// The function may be called with `user_data` from any thread until this function was called again and has
    /// returned, or until the allocator has ended.
    pub unsafe fn set_region_callback(
        self,
        callback: Option<RegionCallback>,
        user_data: *mut c_void,
    ) -> Result<(), ErrorKind> {
        lifecycle::set_region_callback(self.slot(), callback, user_data).map_err(|error| self.explain(error))
    }

    /// Sets a function that is called before memory of an idle allocator is released. `None` removes it.
    ///
    /// # Safety
    /// As for [`Self::set_region_callback`].
    pub unsafe fn set_idle_callback(
        self,
        callback: Option<IdleFunction>,
        user_data: *mut c_void,
    ) -> Result<(), ErrorKind> {
        let callback = callback.map(|function| IdleCallback::new(function, user_data));
        idle::callback::set(self.slot(), callback).map_err(|error| self.explain(error))
    }

    /// Declares that the context of the device's memory was reset or destroyed. The memory is lost, and all earlier
    /// addresses are invalid. Returns [`ErrorKind::Unsupported`] if the memory does not belong to a context.
    ///
    /// # Safety
    /// The memory is gone, so nothing uses it. No [`Block`](crate::Block) of it is dropped later: its address may be that of
    /// another one by then.
    pub unsafe fn lost(self) -> Result<(), ErrorKind> {
        context_loss::declare_lost(self.slot()).map_err(|error| self.explain(error))
    }

    fn require_timestamps(self, what: &str) -> Result<Guard<'static>, ErrorKind> {
        let guard = self.enter()?;
        guard.require_timestamps(what)?;
        Ok(guard)
    }

    /// Returns the last stamp given to a free.
    pub fn timestamp(self) -> Result<u64, ErrorKind> {
        Ok(self.require_timestamps("bfc_timestamp")?.arena.last_stamp())
    }

    /// Declares stamps below `frontier` safe. A lower value than before has no effect.
    pub fn set_safe_frontier(self, frontier: u64) -> Result<(), ErrorKind> {
        let mut guard = self.require_timestamps("bfc_set_safe_frontier")?;
        guard.arena.raise_frontier(frontier);
        guard.notify();
        Ok(())
    }

    /// Reads data of a live chunk.
    fn of_chunk<T>(
        self,
        addr: u64,
        read: impl FnOnce(&Pool, bfc_core::ids::ChunkId) -> T,
    ) -> Result<T, ErrorKind> {
        let guard = self.enter()?;
        match guard.arena.chunk_in_use(addr) {
            Some(id) => Ok(read(&guard, id)),
            None => Err(fail!(ErrorKind::InvalidPointer, "{addr:#x} is not the start of a live allocation")),
        }
    }

    /// Returns the requested size of an allocation in bytes.
    pub fn requested_size(self, addr: u64) -> Result<u64, ErrorKind> {
        self.of_chunk(addr, |pool, id| pool.arena.chunks().cold(id).requested)
    }

    /// Returns the usable size of an allocation: the bytes of its chunk, or in the debug mode the requested bytes,
    /// because the rest is guard.
    pub fn allocated_size(self, addr: u64) -> Result<u64, ErrorKind> {
        self.of_chunk(addr, |pool, id| match pool.is_guarded() {
            true => pool.arena.chunks().cold(id).requested,
            false => pool.arena.chunks().size(id),
        })
    }

    /// Returns the number of an allocation. Numbers are unique and rise from 1.
    pub fn allocation_id(self, addr: u64) -> Result<u64, ErrorKind> {
        self.of_chunk(addr, |pool, id| pool.arena.chunks().cold(id).allocation_id)
    }

    /// Returns the live chunk and the region that contain an address, which may be an interior one.
    pub fn address_range(self, addr: u64) -> Result<AddressRange, ErrorKind> {
        let guard = self.enter()?;
        let arena = &guard.arena;
        let chunks = arena.chunks();
        let around = arena.chunk_around(addr).filter(|&id| chunks.in_use(id));
        let Some(id) = around else {
            return Err(fail!(ErrorKind::InvalidPointer, "{addr:#x} lies in no live allocation"));
        };
        let region = arena.regions().get(chunks.region(id));
        let region = (region.base, arena.extent(region));
        Ok(AddressRange { chunk: (chunks.addr(id), chunks.size(id)), region })
    }

    /// Returns the device whose allocator holds the region that contains an address. Never waits for calls on other
    /// devices.
    pub fn owner(addr: u64) -> Result<Self, ErrorKind> {
        for device in devices_in(&USED) {
            if device.slot().holds(addr)? {
                return Ok(device);
            }
        }
        Err(fail!(ErrorKind::InvalidPointer, "{addr:#x} is in no region of any allocator"))
    }

    /// Releases wholly free regions as long as `keep` bytes stay held. Returns the number of bytes released. Returns
    /// [`ErrorKind::BackendFailed`] if the driver did not accept all of them. The rest is free memory as before.
    pub fn trim(self, keep: u64) -> Result<u64, ErrorKind> {
        idle::trim::trim(self.slot(), keep).map_err(|error| self.explain(error))
    }

    /// Changes how many bytes the allocator may hold from the backend. If it holds more, existing memory stays valid,
    /// nothing more is obtained, and free memory is released as by [`Self::trim`]. For a backend with granules the
    /// limit is rounded down to whole granules, and is at most the reserved range.
    pub fn set_memory_limit(self, bytes: u64) -> Result<(), ErrorKind> {
        idle::trim::set_limit(self.slot(), bytes).map_err(|error| self.explain(error))
    }

    /// Returns the current statistics.
    pub fn stats(self) -> Result<Stats, ErrorKind> {
        Ok(self.enter()?.stats())
    }

    /// Writes the statistics of all allocators of the process as OpenMetrics text. Allocators are copied one after the
    /// other, each at one moment. The text is written with no lock held. Poisoned allocators are only counted: they stay
    /// until the process ends, and must not hide the others.
    pub(crate) fn write_metrics(out: &mut dyn fmt::Write) -> Result<(), ErrorKind> {
        let (mut samples, mut poisoned) = (Vec::new(), 0);
        for device in devices_in(&USED) {
            // An allocator that no longer exists, or not in this child process, has no statistics. That is not a
            // failure of this call, so the last message is kept.
            let mut entered = Err(ErrorKind::NoAllocator);
            keeping_last_error(|| entered = device.slot().enter());
            let guard = match entered {
                Err(ErrorKind::NoAllocator | ErrorKind::ShuttingDown) => continue,
                Err(ErrorKind::Internal) => {
                    poisoned += 1;
                    continue;
                }
                // Entered again to set the message.
                Err(_) => device.enter()?,
                Ok(guard) => guard,
            };
            let stats = guard.stats();
            let (name, backend) = snapshot::identity(&guard)?;
            drop(guard);
            samples.try_reserve(1).map_err(HostMemoryExhausted::from)?;
            samples.push(Sample { device: device.0, name, backend, stats });
        }
        // Writing to the caller's buffer cannot fail.
        let _ = report::metrics::write(out, &samples, poisoned);
        Ok(())
    }

    /// Resets counters to 0 and peaks to the current values.
    pub fn reset_stats(self) -> Result<(), ErrorKind> {
        self.enter()?.arena.reset_stats();
        Ok(())
    }

    /// Checks every invariant of the allocator's metadata. A broken invariant poisons the allocator. In the debug mode
    /// this also checks the guards of all live allocations. Damaged guards are reported in the log and are not an
    /// error.
    pub fn check(self) -> Result<(), ErrorKind> {
        let guard = self.enter_for_long()?;
        match guard.arena.check() {
            Ok(()) if guard.is_guarded() => guarded::check(guard),
            Ok(()) => Ok(()),
            Err(broken) => {
                guard.poison();
                Err(fail!(ErrorKind::Internal, "invariant {broken:?} is broken: please report this"))
            }
        }
    }

    /// Returns the occupancy line: 100 columns, `*` used, `x` slack, `_` free.
    pub fn occupancy(self) -> Result<String, ErrorKind> {
        text(|out| self.write_occupancy(out))
    }

    /// Returns the memory map as JSON: regions, chunks, bins, statistics.
    pub fn memory_map(self) -> Result<String, ErrorKind> {
        text(|out| self.write_memory_map(out))
    }

    /// Returns the regions with their chunks.
    pub fn regions(self) -> Result<Vec<Region>, ErrorKind> {
        let copied = snapshot::report(self.slot(), report::layout::regions);
        Ok(copied.map_err(|error| self.explain(error))??)
    }

    /// Returns an error if there is no allocator.
    pub(crate) fn require_allocator(self) -> Result<(), ErrorKind> {
        self.enter().map(drop)
    }

    /// Returns whether the memory is the host's.
    pub(crate) fn is_of_host(self) -> Result<bool, ErrorKind> {
        Ok(self.enter()?.backend.is_of_host())
    }

    /// Returns the statistics of all allocators of the process as OpenMetrics text.
    pub(crate) fn metrics() -> Result<String, ErrorKind> {
        text(Self::write_metrics)
    }

    /// Returns the out-of-memory report.
    pub fn report(self) -> Result<String, ErrorKind> {
        text(|out| self.write_report(out))
    }

    /// Writes the text of [`Self::occupancy`]. `out` must be a writer of the library, because it may run with the lock
    /// held.
    pub(crate) fn write_occupancy(self, out: &mut dyn fmt::Write) -> Result<(), ErrorKind> {
        self.write(|subject| report::occupancy::write(out, &subject.view))
    }

    pub(crate) fn write_memory_map(self, out: &mut dyn fmt::Write) -> Result<(), ErrorKind> {
        self.write(|subject| report::map::write(out, subject))
    }

    pub(crate) fn write_report(self, out: &mut dyn fmt::Write) -> Result<(), ErrorKind> {
        self.write(|subject| report::failure::write(out, subject, None))
    }

    /// Writes the settings that an allocator would be created with. Nothing is created, and no driver is called.
    pub(crate) fn write_resolved_options(
        self,
        options: Option<&Options<'_>>,
        out: &mut dyn fmt::Write,
    ) -> Result<(), ErrorKind> {
        let (options, default_flags) = match options {
            Some(options) => (options, Flags::empty()),
            None => (&Options::default(), DEFAULT_FLAGS),
        };
        let resolution = Resolution::new(options, self.0, default_flags)?;
        Ok(report::resolved_options::write(out, self.0, &resolution).map_err(|_| HostMemoryExhausted)?)
    }

    fn write(self, report: impl FnOnce(&Subject<'_>) -> fmt::Result) -> Result<(), ErrorKind> {
        let written = snapshot::report(self.slot(), report).map_err(|error| self.explain(error))?;
        Ok(written.map_err(|_| HostMemoryExhausted)?)
    }
}

#[cfg(test)]
mod tests;

/// Collects text, and fails without aborting if memory runs out.
fn text(write: impl Fn(&mut dyn fmt::Write) -> Result<(), ErrorKind>) -> Result<String, ErrorKind> {
    let mut result = Ok(());
    let text = report::to_string(|out| {
        result = write(out);
        result.map_err(|_| fmt::Error)
    });
    result?;
    Ok(text?)
}
