//! Device memory in one reserved address range, using `cuMemCreate`, `cuMemMap` and related functions.
//!
//! Each granule is a piece of physical memory with a handle of its own, because the driver unmaps only what was mapped
//! by a single call. A handle is kept while its granule moves, and released when the granule is returned ([`handles`]).
//! [`access`] decides which devices may access the memory. [`life`] handles the end of the context.

mod access;
mod handles;
mod life;
mod notices;

use self::access::Access;
use self::handles::{Handles, create, release_unwanted, release_when_possible};
use self::notices::{Notice, Notices};

use super::Cuda;
use super::calls::{self, Failure};
use super::context::{self, inside};
use crate::backend::addresses::{Comfort, Reserved};
use crate::backend::exclusive::Exclusive;
use crate::backend::granules::Granules;
use crate::backend::life::Life;
use crate::backend::memory::Memory;
use crate::backend::order::Streams;
use crate::backend::{Backend, Granted};
use crate::error::{ErrorKind, fail, keeping_last_error};
use bfc_core::units::Span;
use bfc_core::vmm::Range;
use bfc_hostmem::{HostMemoryExhausted, try_box};
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, Driver};

const COMFORT: Comfort = Comfort { per_limit: 64, most: 2 << 40 };
/// The smallest granule, which is that of all current devices.
const LEAST_GRANULE: u64 = 2 << 20;

/// A reserved address range of a device, with the physical memory mapped in it.
pub(crate) struct CudaVmm {
    cuda: Cuda,
    range: Range,
    mapped: Exclusive<MappedMemory>,
}

/// The memory mapped in the range, and the devices with access to it.
struct MappedMemory {
    handles: Handles,
    access: Access,
    /// Notices that are not logged yet, because a call is under way.
    notices: Notices,
    /// Valid until the range is left.
    reserved: Option<Reserved>,
}

impl CudaVmm {
    /// Creates a range on the device with an ordinal. It is on the heap until its `Owned` ends it. `limit` is called
    /// once the device is open.
    pub(crate) fn open(
        ordinal: i32,
        limit: impl FnOnce(&Cuda) -> Result<u64, ErrorKind>,
    ) -> Result<&'static Self, ErrorKind> {
        let cuda = Cuda::open(ordinal)?;
        let opened = limit(&cuda).and_then(|limit| Self::on(cuda, limit));
        opened.inspect_err(|_| keeping_last_error(|| cuda.close()))
    }

    /// Creates a range like [`Self::on`] if each device of the process can access the others' memory. Without access,
    /// `cudaMemcpy` copies memory from `cuMemAlloc` between devices and refuses memory that is mapped, so programs
    /// could lose by it.
    pub(super) fn on_all_peers(cuda: Cuda, limit: u64) -> Result<&'static Self, ErrorKind> {
        let mut notices = Notices::default();
        let reaches_all = Access::of(&cuda, &mut notices)?.is_of_all_devices();
        notices.log(&cuda);
        if !reaches_all {
            return Err(fail!(
                ErrorKind::BackendUnavailable,
                "not all devices can access its memory, and cudaMemcpy would refuse to copy it to those that cannot"
            ));
        }
        Self::on(cuda, limit)
    }

    fn on(cuda: Cuda, limit: u64) -> Result<&'static Self, ErrorKind> {
        let absent = |failure: Failure| failure.explain_absence(cuda.driver);
        if !calls::has_virtual_memory(cuda.driver, cuda.device).map_err(absent)? {
            return Err(fail!(
                ErrorKind::BackendUnavailable,
                "the device has no virtual memory management; name BFC_BACKEND_CUDA"
            ));
        }
        let mut notices = Notices::default();
        let (granule, for_rdma) = granularity(&cuda, &mut notices).map_err(absent)?;
        let granule = granule.max(LEAST_GRANULE);
        if !granule.is_power_of_two() {
            return Err(fail!(
                ErrorKind::BackendUnavailable,
                "the device's allocation granularity of {granule} bytes is not a power of two; name BFC_BACKEND_CUDA"
            ));
        }
        let range = reserve(&cuda, granule, COMFORT.range_for(limit, granule));
        Self::in_range(cuda, range.map_err(|failure| failure.explain(cuda.driver))?, for_rdma, notices)
    }

    /// Creates the object in a range reserved for it. On failure the range is freed.
    fn in_range(
        cuda: Cuda,
        range: Range,
        for_rdma: bool,
        mut notices: Notices,
    ) -> Result<&'static Self, ErrorKind> {
        match Self::make(cuda, range, for_rdma, &mut notices) {
            Ok(made) => {
                // Logged here, where no part of the new object is in a stack frame.
                made.mapped.with(|mapped| mapped.access.log(made.cuda.ordinal));
                notices.log(&made.cuda);
                Ok(Box::leak(made))
            }
            Err(exhausted) => {
                let _ = inside(&cuda, |driver| free_range(driver, range));
                Err(exhausted.into())
            }
        }
    }

    #[inline(never)]
    fn make(
        cuda: Cuda,
        range: Range,
        for_rdma: bool,
        notices: &mut Notices,
    ) -> Result<Box<Self>, HostMemoryExhausted> {
        let handles = Handles::new((range.bytes / range.granule) as usize, for_rdma)?;
        let access = Access::of(&cuda, notices)?;
        let reserved = Some(Reserved::new(range.bytes));
        let mapped = try_box(MappedMemory { handles, access, notices: Notices::default(), reserved })?;
        try_box(CudaVmm { cuda, range, mapped: Exclusive::new(mapped) })
    }

    /// Runs `work` with what is mapped. Afterwards, logs the driver's refusals.
    fn with_mapped<T>(&self, work: impl FnOnce(&mut MappedMemory) -> T) -> T {
        let (result, notices) = self.mapped.with(|mapped| (work(mapped), mapped.notices.take()));
        notices.log(&self.cuda);
        result
    }

    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, ErrorKind> {
        done.map_err(|failure| {
            if failure.is(CUDA_ERROR_OUT_OF_MEMORY) {
                return fail!(ErrorKind::OutOfMemory, "the device has no more memory for granules");
            }
            failure.explain(self.cuda.driver)
        })
    }

    /// Maps a handle to a granule. The granule is not accessible yet.
    fn map_one(
        &self,
        driver: Driver,
        handles: &mut Handles,
        number: usize,
        place: u32,
    ) -> Result<(), Failure> {
        // SAFETY: the handle is valid and of a granule's size. Nothing is mapped there, by the trait's contract.
        unsafe { calls::map(driver, self.range.address(number), self.range.granule, handles.at(place)) }?;
        handles.places.set(number, place + 1);
        Ok(())
    }

    /// Unmaps a granule and returns the place of its handle.
    fn unmap_one(&self, driver: Driver, handles: &mut Handles, number: usize) -> Result<u32, Failure> {
        // SAFETY: the caller ensures that this memory is not in use. It was mapped by one call.
        unsafe { calls::unmap(driver, self.range.address(number), self.range.granule) }?;
        let place = handles.places.get(number) - 1;
        handles.places.set(number, 0);
        Ok(place)
    }

    /// Maps the span with handles from `next`, accessible to all devices that have access. On failure nothing is
    /// mapped, and the handles were passed to `back`.
    fn map_span(
        &self,
        span: Span,
        mut next: impl FnMut(Driver, &mut MappedMemory) -> Result<u32, Failure>,
        back: impl Fn(Driver, &mut Handles, u32),
    ) -> Result<(), ErrorKind> {
        let numbers = self.range.numbers(span);
        let done = self.with_mapped(|mapped| {
            inside(&self.cuda, |driver| {
                let mut end = numbers.start;
                let mut done = Ok(());
                while done.is_ok() && end < numbers.end {
                    done = next(driver, mapped).and_then(|place| {
                        let handles = &mut mapped.handles;
                        self.map_one(driver, handles, end, place)
                            .inspect_err(|_| back(driver, handles, place))
                    });
                    end += usize::from(done.is_ok());
                }
                let done = done.and_then(|()| mapped.access.give(driver, span, &mut mapped.notices));
                done.inspect_err(|_| {
                    for number in numbers.start..end {
                        // If the undo fails too, the driver is unusable, and the granule stays mapped.
                        if let Ok(place) = self.unmap_one(driver, &mut mapped.handles, number) {
                            back(driver, &mut mapped.handles, place);
                        }
                    }
                })
            })
        });
        self.explained(done)
    }

    /// Unmaps the span. The handles are appended to the kept ones, and `then` is called with the position of the first
    /// of them in the list. On failure the whole span is mapped again, for the same devices.
    fn unmap_span(
        &self,
        span: Span,
        then: impl FnOnce(Driver, &mut Handles, usize),
    ) -> Result<Result<(), Failure>, HostMemoryExhausted> {
        let numbers = self.range.numbers(span);
        self.with_mapped(|mapped| {
            mapped.handles.kept.try_reserve(numbers.len())?;
            Ok(inside(&self.cuda, |driver| {
                let handles = &mut mapped.handles;
                let before = handles.kept.len();
                for number in numbers.clone() {
                    match self.unmap_one(driver, handles, number) {
                        Ok(place) => handles.kept.push(place),
                        Err(failure) => {
                            for number in numbers.start..number {
                                let place = handles.kept.remove(before);
                                // A failure is ignored, as above.
                                let _ = self.map_one(driver, handles, number, place);
                            }
                            let bytes = self.range.address(number) - span.base;
                            if bytes != 0 {
                                let again = Span { bytes, ..span };
                                let _ = mapped.access.give(driver, again, &mut mapped.notices);
                            }
                            return Err(failure);
                        }
                    }
                }
                then(driver, handles, before);
                Ok(())
            }))
        })
    }

    /// Frees everything that is mapped and all unwanted handles, as far as the driver permits.
    fn clear_when_idle(&self) -> Result<(), Failure> {
        self.mapped.with(|MappedMemory { handles, .. }| {
            if handles.mapped() != 0 {
                inside(&self.cuda, context::synchronize)?;
            }
            inside(&self.cuda, |driver| self.clear(driver, handles))
        })
    }

    /// Frees everything while the memory is not in use.
    fn clear(&self, driver: Driver, handles: &mut Handles) -> Result<(), Failure> {
        let mut left = handles.mapped();
        let mut cleared = Ok(());
        for number in 0..handles.places.entries() {
            if left == 0 {
                break;
            }
            if handles.places.get(number) != 0 {
                left -= 1;
                match self.unmap_one(driver, handles, number) {
                    // There is room for all places.
                    Ok(place) => handles.unwanted.push(place),
                    Err(failure) => cleared = Err(failure),
                }
            }
        }
        release_unwanted(driver, handles).and(cleared)
    }
}

/// Returns the device's granule, and whether memory can have the flag for GPUDirect RDMA, which is used if the device
/// promises to accept it. If the driver refuses it all the same, memory is allocated without it.
fn granularity(cuda: &Cuda, notices: &mut Notices) -> Result<(u64, bool), Failure> {
    let ordinal = cuda.ordinal.into();
    inside(cuda, |driver| {
        let for_rdma = calls::takes_rdma_flag(driver, cuda.device)?;
        match calls::granularity(driver, ordinal, for_rdma) {
            Err(failure) if for_rdma && handles::is_flag_refused(failure) => {
                notices.add(Notice::NoRdma { failure });
                Ok((calls::granularity(driver, ordinal, false)?, false))
            }
            granule => Ok((granule?, for_rdma)),
        }
    })
}

/// Reserves as many addresses as possible, up to `wanted` bytes.
fn reserve(cuda: &Cuda, granule: u64, wanted: u64) -> Result<Range, Failure> {
    let mut bytes = wanted;
    loop {
        match inside(cuda, |driver| calls::reserve(driver, bytes, granule)) {
            Ok(base) => return Ok(Range { base, bytes, granule }),
            Err(failure) if bytes == granule || !failure.is(CUDA_ERROR_OUT_OF_MEMORY) => return Err(failure),
            Err(_) => bytes = (bytes / 2 / granule).max(1) * granule,
        }
    }
}

fn unless_it_is_the_end(failure: Failure) -> Result<(), Failure> {
    if failure.is_the_end() { Ok(()) } else { Err(failure) }
}

fn free_range(driver: Driver, range: Range) -> Result<(), Failure> {
    // SAFETY: the range belongs to this object and is not used again. If something is mapped in it the driver refuses.
    unsafe { calls::free_range(driver, range.base, range.bytes) }
}

impl Granules for CudaVmm {
    fn range(&self) -> Range {
        self.range
    }

    /// No work runs after the driver's end.
    fn wait_until_idle(&self) -> Result<(), ErrorKind> {
        self.explained(inside(&self.cuda, context::synchronize).or_else(unless_it_is_the_end))
    }

    fn map(&self, span: Span) -> Result<(), ErrorKind> {
        // Reserved here instead of for each handle, because fewer frames lie above the C library's allocator here.
        self.mapped.with(|mapped| mapped.handles.reserve(self.range.numbers(span).len()))?;
        let granule = self.range.granule;
        let next = |driver: Driver, mapped: &mut MappedMemory| {
            create(&self.cuda, granule, driver, &mut mapped.handles, &mut mapped.notices)
        };
        self.map_span(span, next, release_when_possible)
    }

    fn release(&self, span: Span) -> Result<(), ErrorKind> {
        let unmapped = self.unmap_span(span, |driver, handles, from| {
            handles.give_up_kept(from);
            if let Err(failure) = release_unwanted(driver, handles) {
                // A handle that was not released stays in the unwanted list. The context may be gone, too.
                self.cuda.detect_loss(failure);
            }
        });
        // At the driver's end all memory is freed anyway.
        self.explained(unmapped?.or_else(unless_it_is_the_end))
    }

    fn detach(&self, span: Span) -> Result<(), ErrorKind> {
        self.explained(self.unmap_span(span, |_, _, _| {})?)
    }

    fn attach(&self, span: Span) -> Result<(), ErrorKind> {
        let wanted = self.range.numbers(span).len();
        let kept = self.mapped.with(|mapped| mapped.handles.kept.len());
        if wanted > kept {
            return Err(fail!(
                ErrorKind::BackendFailed,
                "{wanted} granules were to be mapped again, and {kept} are kept"
            ));
        }
        let none = Failure::Refused { call: "cuMemMap", code: CUDA_ERROR_OUT_OF_MEMORY };
        let next = |_: Driver, mapped: &mut MappedMemory| mapped.handles.kept.pop().ok_or(none);
        // This cannot exceed the capacity, because the handles were in the list before.
        self.map_span(span, next, |_, handles, place| handles.kept.push(place))
    }

    fn drop_kept(&self) {
        self.mapped.with(|MappedMemory { handles, .. }| {
            handles.give_up_kept(0);
            let _ = inside(&self.cuda, |driver| release_unwanted(driver, handles));
        });
    }
}

impl Backend for CudaVmm {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, ErrorKind> {
        Ok(None)
    }

    /// Frees what is still mapped at the end. Work queued before may still run on it.
    fn free(&self, _: Granted) -> Result<(), ErrorKind> {
        match self.clear_when_idle() {
            // At the driver's end all memory is freed anyway. What remains after the end of the context is left to
            // `close`.
            Err(failure) if failure.is_the_end() || failure == Failure::Gone => Ok(()),
            freed => freed.map_err(|failure| failure.explain(self.cuda.driver)),
        }
    }

    fn close(&self) {
        let end = || {
            self.clear_when_idle()?;
            inside(&self.cuda, |driver| free_range(driver, self.range))
        };
        // There is no later attempt, so a failed one is repeated once.
        let ended = end().or_else(|failure| if failure == Failure::Gone { Err(failure) } else { end() });
        if ended == Err(Failure::Gone) {
            self.bury();
            self.leave_range(None);
        }
        self.cuda.close();
    }

    fn total_memory(&self) -> Option<u64> {
        self.cuda.total_memory()
    }

    fn default_limit(&self) -> Option<u64> {
        self.cuda.default_limit()
    }

    fn name(&self) -> &'static str {
        "cuda_vmm"
    }

    fn order(&self) -> Option<&dyn Streams> {
        Some(&self.cuda)
    }

    fn granules(&self) -> Option<&dyn Granules> {
        Some(self)
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&self.cuda)
    }

    fn life(&self) -> Option<&dyn Life> {
        Some(self)
    }
}
