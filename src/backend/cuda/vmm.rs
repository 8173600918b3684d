//! Device memory in one reserved range of addresses: `cuMemCreate`, `cuMemMap` and what belongs to them.
//!
//! Each granule is a piece of physical memory with a handle of its own, for the driver unmaps only what was mapped by
//! one call. A handle is kept while its granule moves, and is released when the granule goes back. What becomes of
//! all that with the context is in [`life`].

mod life;

use super::Cuda;
use super::calls::{self, Failure};
use super::context::{self, inside};
use crate::backend::granules::Granules;
use crate::backend::life::Life;
use crate::backend::memory::Memory;
use crate::backend::order::Streams;
use crate::backend::{Backend, Granted};
use crate::core::holes::Range;
use crate::core::remap::Span;
use crate::error::{Error, fail, keeping_last_error};
use crate::sys::table::LazyTable;
use crate::sys::{HostMemoryExhausted, try_box};
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUmemGenericAllocationHandle as Handle, Driver};
use spin::mutex::SpinMutex;

/// How much larger the range is than the limit, and at most what for comfort: see docs/algorithm.md.
const RANGE_PER_LIMIT: u64 = 64;
const COMFORT: u64 = 2 << 40;
/// The least granule, and what all devices of today have.
const LEAST_GRANULE: u64 = 2 << 20;

/// A range of a device's addresses, with the physical memory that is mapped in it.
pub(crate) struct CudaVmm {
    cuda: Cuda,
    range: Range,
    /// One thread at a time calls; this is for whoever does not know that.
    books: SpinMutex<Books>,
}

struct Books {
    /// For each granule of the range the place of its handle, plus 1.
    places: LazyTable,
    handles: Vec<Handle>,
    /// Places of `handles` that are free.
    vacant: Vec<u32>,
    /// Places of handles that are mapped nowhere, for `attach`.
    kept: Vec<u32>,
    /// The same of what was to go back to the system and has not: the next granules are of these.
    unwanted: Vec<u32>,
    /// The addresses are somebody else's by now, or something is mapped there that is not to be unmapped.
    is_range_lost: bool,
}

impl CudaVmm {
    /// A range on the device with that ordinal, on the heap until its `Owned` ends it. `limit` is asked once the
    /// device is there.
    pub(crate) fn open(
        ordinal: i32,
        limit: impl FnOnce(&Cuda) -> Result<u64, Error>,
    ) -> Result<&'static Self, Error> {
        let cuda = Cuda::open(ordinal)?;
        let opened = limit(&cuda).and_then(|limit| Self::on(cuda, limit));
        opened.inspect_err(|_| keeping_last_error(|| cuda.close()))
    }

    fn on(cuda: Cuda, limit: u64) -> Result<&'static Self, Error> {
        let absent = |failure: Failure| failure.explain_absence(cuda.driver);
        if !calls::has_virtual_memory(cuda.driver, cuda.device).map_err(absent)? {
            return Err(fail!(
                Error::BackendUnavailable,
                "the device has no virtual memory management; name BFC_BACKEND_CUDA"
            ));
        }
        let granule = inside(&cuda, |driver| calls::granularity(driver, cuda.device)).map_err(absent)?;
        let granule = granule.max(LEAST_GRANULE);
        if !granule.is_power_of_two() {
            return Err(fail!(Error::BackendUnavailable, "the device's granules are of {granule} bytes"));
        }
        let range = reserve(&cuda, granule, comfortable(limit, granule));
        Self::in_range(cuda, range.map_err(|failure| failure.explain(cuda.driver))?)
    }

    /// In a range that was reserved for it; it is given back if this comes to nothing.
    fn in_range(cuda: Cuda, range: Range) -> Result<&'static Self, Error> {
        let made = LazyTable::new((range.bytes / range.granule) as usize).and_then(|places| {
            let (handles, vacant, kept, unwanted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let books = Books { places, handles, vacant, kept, unwanted, is_range_lost: false };
            try_box(CudaVmm { cuda, range, books: SpinMutex::new(books) })
        });
        match made {
            Ok(made) => Ok(Box::leak(made)),
            Err(exhausted) => {
                let _ = inside(&cuda, |driver| free_range(driver, range));
                Err(exhausted.into())
            }
        }
    }

    fn inside<T>(&self, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Error> {
        self.explained(inside(&self.cuda, work))
    }

    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, Error> {
        done.map_err(|failure| {
            if failure.is(CUDA_ERROR_OUT_OF_MEMORY) {
                return fail!(Error::OutOfMemory, "the device has no more memory for granules");
            }
            failure.explain(self.cuda.driver)
        })
    }

    /// Maps a handle to a granule, which is not accessible then.
    fn map_one(&self, driver: Driver, books: &mut Books, number: usize, place: u32) -> Result<(), Failure> {
        let handle = books.handles[place as usize];
        // SAFETY: the handle is ours, of a granule's size, and nothing is mapped there, by the trait's contract.
        unsafe { calls::map(driver, self.range.address(number), self.range.granule, handle) }?;
        books.places.set(number, place + 1);
        Ok(())
    }

    /// Unmaps a granule; returns the place of its handle.
    fn unmap_one(&self, driver: Driver, books: &mut Books, number: usize) -> Result<u32, Failure> {
        // SAFETY: whoever calls has made sure that nobody uses this memory; it was mapped by one call.
        unsafe { calls::unmap(driver, self.range.address(number), self.range.granule) }?;
        let place = books.places.get(number) - 1;
        books.places.set(number, 0);
        Ok(place)
    }

    fn allow(&self, driver: Driver, span: Span) -> Result<(), Failure> {
        // SAFETY: the span is wholly mapped, by calls for whole granules.
        unsafe { calls::set_access(driver, span.base, span.bytes, self.cuda.device) }
    }

    /// Maps the span with handles that `next` gives; on failure nothing is mapped and `back` has had them.
    fn map_span(
        &self,
        span: Span,
        mut next: impl FnMut(Driver, &mut Books) -> Result<u32, Failure>,
        back: impl Fn(Driver, &mut Books, u32),
    ) -> Result<(), Error> {
        let mut books = self.books.lock();
        let numbers = self.range.numbers(span);
        self.inside(|driver| {
            let books = &mut *books;
            let mut mapped = numbers.start;
            let step = |books: &mut Books, number: usize, next: &mut dyn FnMut(Driver, &mut Books) -> _| {
                let place = next(driver, books)?;
                self.map_one(driver, books, number, place).inspect_err(|_| back(driver, books, place))
            };
            let mut done = Ok(());
            while done.is_ok() && mapped < numbers.end {
                done = step(books, mapped, &mut next);
                mapped += usize::from(done.is_ok());
            }
            done.and_then(|()| self.allow(driver, span)).inspect_err(|_| {
                for number in numbers.start..mapped {
                    // What is not unmapped now never will be: the driver is beyond help.
                    if let Ok(place) = self.unmap_one(driver, books, number) {
                        back(driver, books, place);
                    }
                }
            })
        })
    }

    /// Unmaps the span; the places of the handles are kept, from one place of the list on, and `then` does something
    /// with them. On failure all of it is mapped again.
    fn unmap_span(
        &self,
        span: Span,
        then: impl FnOnce(Driver, &mut Books, usize),
    ) -> Result<Result<(), Failure>, HostMemoryExhausted> {
        let mut books = self.books.lock();
        let numbers = self.range.numbers(span);
        books.kept.try_reserve(numbers.len())?;
        Ok(inside(&self.cuda, |driver| {
            let books = &mut *books;
            let before = books.kept.len();
            for number in numbers.clone() {
                match self.unmap_one(driver, books, number) {
                    Ok(place) => books.kept.push(place),
                    Err(failure) => {
                        for number in numbers.start..number {
                            let place = books.kept.remove(before);
                            // As above.
                            let _ = self.map_one(driver, books, number, place);
                        }
                        let bytes = self.range.address(number) - span.base;
                        if bytes != 0 {
                            let _ = self.allow(driver, Span { bytes, ..span });
                        }
                        return Err(failure);
                    }
                }
            }
            then(driver, books, before);
            Ok(())
        }))
    }

    /// Gives back all that is mapped, and what is unwanted: as much of it as the driver takes.
    fn clear_when_idle(&self) -> Result<(), Failure> {
        // Before the lock, behind which nobody is to spin as long as that.
        if self.books.lock().mapped() != 0 {
            inside(&self.cuda, context::synchronize)?;
        }
        inside(&self.cuda, |driver| self.clear(driver))
    }

    /// The same while nobody uses it.
    fn clear(&self, driver: Driver) -> Result<(), Failure> {
        let mut books = self.books.lock();
        let books = &mut *books;
        let mut left = books.mapped();
        let mut cleared = Ok(());
        for number in 0..books.places.entries() {
            if left == 0 {
                break;
            }
            if books.places.get(number) != 0 {
                left -= 1;
                match self.unmap_one(driver, books, number) {
                    // There is room for all places.
                    Ok(place) => books.unwanted.push(place),
                    Err(failure) => cleared = Err(failure),
                }
            }
        }
        release_unwanted(driver, books).and(cleared)
    }
}

impl Books {
    /// How many handles are mapped.
    fn mapped(&self) -> usize {
        self.handles.len() - self.vacant.len() - self.kept.len() - self.unwanted.len()
    }

    /// Handles that are kept, from one place of the list on, are to go back to the system.
    fn give_up_kept(&mut self, from: usize) {
        // There is room for all places.
        self.unwanted.extend(self.kept.drain(from..));
    }
}

/// Physical memory for one granule; returns the place of its handle. What could not be given back is held still, and
/// comes first: else there would be more than the limit says.
fn create(cuda: &Cuda, granule: u64, driver: Driver, books: &mut Books) -> Result<u32, Failure> {
    if let Some(place) = books.unwanted.pop() {
        return Ok(place);
    }
    if books.vacant.is_empty() {
        let more = (books.handles.len() / 4).max(64);
        // A handle that cannot be noted is not asked for: the driver's error is the one that fits.
        let exhausted = |_| Failure::Refused { call: "cuMemCreate", code: CUDA_ERROR_OUT_OF_MEMORY };
        books.handles.try_reserve_exact(more).map_err(exhausted)?;
        books.vacant.try_reserve_exact(books.handles.len() + more).map_err(exhausted)?;
        books.unwanted.try_reserve_exact(books.handles.len() + more).map_err(exhausted)?;
        let first = books.handles.len() as u32;
        books.handles.resize(books.handles.len() + more, 0);
        books.vacant.extend((first..first + more as u32).rev());
    }
    let handle = calls::create(driver, granule, cuda.device)?;
    let Some(place) = books.vacant.pop() else {
        // It was made sure of above.
        // SAFETY: nobody knows of it yet.
        let _ = unsafe { calls::release(driver, handle) };
        return Err(Failure::Refused { call: "cuMemCreate", code: CUDA_ERROR_OUT_OF_MEMORY });
    };
    books.handles[place as usize] = handle;
    Ok(place)
}

/// Gives the memory of a handle back that is mapped nowhere.
fn release(driver: Driver, books: &mut Books, place: u32) -> Result<(), Failure> {
    // SAFETY: the handle is ours, mapped nowhere, and is not used again unless it is refused.
    unsafe { calls::release(driver, books.handles[place as usize]) }?;
    // There is room for all places.
    books.vacant.push(place);
    Ok(())
}

/// The same, now or later.
fn release_in_the_end(driver: Driver, books: &mut Books, place: u32) {
    books.unwanted.push(place);
    let _ = release_unwanted(driver, books);
}

/// Tries all that is unwanted; says what went wrong last.
fn release_unwanted(driver: Driver, books: &mut Books) -> Result<(), Failure> {
    let (mut refused, mut released) = (0, Ok(()));
    for nth in 0..books.unwanted.len() {
        let place = books.unwanted[nth];
        if let Err(failure) = release(driver, books, place) {
            books.unwanted[refused] = place;
            (refused, released) = (refused + 1, Err(failure));
        }
    }
    books.unwanted.truncate(refused);
    released
}

/// How many bytes of addresses a pool of that limit wants.
fn comfortable(limit: u64, granule: u64) -> u64 {
    let granules = limit.clamp(granule, 2 * COMFORT).div_ceil(granule);
    granules.saturating_mul(RANGE_PER_LIMIT).min(COMFORT / granule).max(granules) * granule
}

/// As many addresses as there are, up to `wanted` bytes.
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
    // SAFETY: the range is ours, and is not used again; if something is mapped in it the driver refuses.
    unsafe { calls::free_range(driver, range.base, range.bytes) }
}

impl Granules for CudaVmm {
    fn range(&self) -> Range {
        self.range
    }

    /// After the driver's end there is no work.
    fn wait_until_idle(&self) -> Result<(), Error> {
        self.explained(inside(&self.cuda, context::synchronize).or_else(unless_it_is_the_end))
    }

    fn map(&self, span: Span) -> Result<(), Error> {
        let granule = self.range.granule;
        self.map_span(span, |driver, books| create(&self.cuda, granule, driver, books), release_in_the_end)
    }

    fn release(&self, span: Span) -> Result<(), Error> {
        let unmapped = self.unmap_span(span, |driver, books, from| {
            books.give_up_kept(from);
            if let Err(failure) = release_unwanted(driver, books) {
                // It stays unwanted; but the context may be gone.
                self.cuda.look_after(failure);
            }
        });
        // With the driver all memory has gone.
        self.explained(unmapped?.or_else(unless_it_is_the_end))
    }

    fn detach(&self, span: Span) -> Result<(), Error> {
        self.explained(self.unmap_span(span, |_, _, _| {})?)
    }

    fn attach(&self, span: Span) -> Result<(), Error> {
        let wanted = self.range.numbers(span).len();
        if wanted > self.books.lock().kept.len() {
            return Err(fail!(Error::BackendFailed, "{wanted} granules were to be mapped, fewer are kept"));
        }
        let none = Failure::Refused { call: "cuMemMap", code: CUDA_ERROR_OUT_OF_MEMORY };
        // There is room for them to go back: they were there.
        self.map_span(span, |_, books| books.kept.pop().ok_or(none), |_, books, place| books.kept.push(place))
    }

    fn drop_kept(&self) {
        let mut books = self.books.lock();
        let books = &mut *books;
        books.give_up_kept(0);
        let _ = inside(&self.cuda, |driver| release_unwanted(driver, books));
    }
}

impl Backend for CudaVmm {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, Error> {
        Ok(None)
    }

    /// What is still mapped, at the end: work that was queued before may still run on it.
    fn free(&self, _: Granted) -> Result<(), Error> {
        match self.clear_when_idle() {
            // With the driver all memory has gone; what is left of it when the context went is for `close`.
            Err(failure) if failure.is_the_end() || failure == Failure::Gone => Ok(()),
            freed => freed.map_err(|failure| failure.explain(self.cuda.driver)),
        }
    }

    fn close(&self) {
        let end = || {
            self.clear_when_idle()?;
            inside(&self.cuda, |driver| free_range(driver, self.range))
        };
        // Nobody comes back to what failed once.
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
