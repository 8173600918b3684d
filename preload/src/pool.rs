//! A pool: serving, taking back, and when to wait for the device.
//!
//! cudaFree waits for the device before it returns, and programs rely on that: what they free is not handed out again
//! before the work that was queued until then is done. Here a freed chunk waits instead (`BFC_QUARANTINE`), and one
//! synchronisation serves all that wait: when a request finds nothing that is safe, and either many wait or the pool
//! would grow beyond need.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use cuda_sys::*;

use crate::bfc::{self, Request, Stats, Status};
use crate::contexts::{self, Current, DEVICES};
use crate::hooks::{self, real};
use crate::watch::Passed;
use crate::{captures, ordered, settings, text};

/// So many frees are worth a synchronisation, if the pool is idle enough.
const ENOUGH: u64 = 128;

/// An idle pool that is smaller than this may grow instead.
const LITTLE: u64 = 256 << 20;

/// So many frees are synchronised anyway: their chunks take host memory and keep others from merging.
const MANY: u64 = 1024;

/// What is freed may be handed out at once, for a test to show that it sees the races that come of it.
const MUTATED: bool = cfg!(feature = "without-quarantine");

/// The driver aligns what it gives to 512; its documentation promises 256.
const ALIGNMENT: usize = 512;

/// What is known of a pool beside libbfc's own books.
pub(crate) struct State {
    /// Whose it is: nobody's, ours, or somebody else's who created it before.
    origin: AtomicU8,
    /// The process that it is of: the child of a fork has it no more.
    process: AtomicI32,
    pub(crate) served: AtomicU64,
    pub(crate) freed: AtomicU64,
    /// How many of the frees were followed by a synchronisation.
    settled: AtomicU64,
    pub(crate) synchronizations: AtomicU64,
    pub(crate) obtained: AtomicU64,
    pub(crate) returned: AtomicU64,
}

const NOBODYS: u8 = 0;
const OURS: u8 = 1;
const OTHERS: u8 = 2;
const CREATING: u8 = 3;

impl State {
    pub(crate) const fn new() -> Self {
        State {
            origin: AtomicU8::new(NOBODYS),
            process: AtomicI32::new(0),
            served: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            synchronizations: AtomicU64::new(0),
            obtained: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        }
    }
}

static DEVICE_STATES: [State; DEVICES] = [const { State::new() }; DEVICES];

/// A pool by its ordinal in libbfc's table.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    ordinal: i32,
    pub(crate) state: &'static State,
}

/// Why a request is not served.
pub(crate) enum Refused {
    /// The driver is to serve it.
    Pass(Passed),
    /// There is no memory, and the user has set a limit.
    OutOfMemory,
}

impl Pool {
    #[inline]
    pub(crate) fn of_device(device: usize) -> Option<Self> {
        let state = DEVICE_STATES.get(device)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // less than DEVICES
        Some(Pool { ordinal: device as i32, state })
    }

    pub(crate) const fn new(ordinal: i32, state: &'static State) -> Self {
        Pool { ordinal, state }
    }

    /// All of devices that have been used.
    pub(crate) fn of_devices() -> impl Iterator<Item = Pool> {
        (0..DEVICES).filter_map(Pool::of_device).filter(|pool| pool.is_there())
    }

    pub(crate) fn ordinal(self) -> i32 {
        self.ordinal
    }

    /// Whether anything may be of it: while it is created it may be there already.
    #[inline]
    pub(crate) fn is_there(self) -> bool {
        self.state.origin.load(Ordering::Relaxed) != NOBODYS
    }

    /// Whether it is known whose it is.
    #[inline]
    fn is_known(self) -> bool {
        matches!(self.state.origin.load(Ordering::Acquire), OURS | OTHERS)
    }

    /// Whether it is this process's, and not that of a parent.
    pub(crate) fn is_own(self) -> bool {
        self.is_there() && self.state.process.load(Ordering::Relaxed) == text::process()
    }

    /// Whether what is freed waits in it.
    #[inline]
    fn has_quarantine(self) -> bool {
        self.state.origin.load(Ordering::Relaxed) == OURS
            && (self.ordinal == bfc::PINNED || !settings::serves_async())
    }

    pub(crate) fn stats(self) -> Option<Stats> {
        if self.is_there() { bfc::stats(self.ordinal) } else { None }
    }

    /// The same, where there is a limit also before anything was allocated: programs ask what there is, and then take it.
    pub(crate) fn stats_or_limit(self) -> Option<Stats> {
        self.stats().or_else(|| {
            if !settings::is_limited() {
                return None;
            }
            self.create().ok()?;
            self.stats()
        })
    }

    /// Serves a request of cudaMalloc's kind: the memory may be used by any work from now on.
    #[inline]
    pub(crate) fn alloc(self, bytes: usize, stream: Option<CUstream>) -> Result<u64, Refused> {
        if !self.is_known() {
            // It may serve already, created by another thread or by the program. But a free has to know whose it is.
            self.create()?;
        }
        if self.waiting() >= MANY && self.has_quarantine() {
            self.synchronize();
        }
        match self.request(bytes, stream, bfc::HELD_ONLY) {
            Ok(address) => Ok(address),
            Err(status) => self.alloc_slowly(bytes, stream, status),
        }
    }

    #[cold]
    fn alloc_slowly(self, bytes: usize, stream: Option<CUstream>, status: Status) -> Result<u64, Refused> {
        if status == bfc::NO_ALLOCATOR {
            self.create()?;
        } else if status != bfc::OUT_OF_MEMORY {
            return Err(Refused::Pass(Passed::Pool));
        } else if stream.is_some() && captures::any() {
            // What libbfc would wait for may be captured.
            return Err(Refused::Pass(Passed::Capture));
        } else if self.is_worth_a_synchronization(bytes as u64)
            && self.synchronize() == CUDA_SUCCESS
            && let Ok(address) = self.request(bytes, stream, bfc::HELD_ONLY)
        {
            return Ok(address);
        }
        // In the order of a stream it may be memory that others' work is still to leave: the stream waits for that. But
        // whoever uses what cudaMalloc gave waits for nobody, so that is a request without a stream, which itself waits.
        let stream = stream.filter(|&stream| !ordered::is_nobodys(stream));
        match self.request(bytes, stream, 0) {
            Ok(address) => return Ok(address),
            Err(bfc::OUT_OF_MEMORY) => {}
            Err(_) => return Err(Refused::Pass(Passed::Pool)),
        }
        if self.waiting() != 0
            && self.synchronize() == CUDA_SUCCESS
            && let Ok(address) = self.request(bytes, stream, 0)
        {
            return Ok(address);
        }
        if settings::is_limited() {
            return Err(Refused::OutOfMemory);
        }
        // The driver may find in one piece what the pool cannot.
        self.trim();
        Err(Refused::Pass(Passed::Full))
    }

    #[inline]
    fn request(self, bytes: usize, stream: Option<CUstream>, flags: u32) -> Result<u64, Status> {
        let (stream, on_stream) = match stream {
            Some(stream) => (stream.cast(), bfc::ON_STREAM),
            None => (ptr::null_mut(), 0),
        };
        let request = Request {
            struct_size: size_of::<Request>(),
            bytes,
            alignment: ALIGNMENT,
            stream,
            freed_before: 0,
            flags: flags | on_stream,
            reserved: 0,
        };
        let mut address = ptr::null_mut();
        // SAFETY: the struct is as large as it says, and the pointer is valid for writing.
        match unsafe { bfc::bfc_alloc_ex(self.ordinal, &request, &mut address) } {
            bfc::OK => {
                self.state.served.fetch_add(1, Ordering::Relaxed);
                Ok(address.addr() as u64)
            }
            status => Err(status),
        }
    }

    /// Frees that no synchronisation has followed.
    #[inline]
    fn waiting(self) -> u64 {
        let settled = self.state.settled.load(Ordering::Relaxed);
        self.state.freed.load(Ordering::Relaxed).saturating_sub(settled)
    }

    /// Whether a request that found nothing should rather wait for the device than have the pool grow.
    fn is_worth_a_synchronization(self, bytes: u64) -> bool {
        let waiting = self.waiting();
        if waiting == 0 || !self.has_quarantine() {
            return false;
        }
        let Some(stats) = self.stats() else { return false };
        // It cannot grow any more.
        if stats.pool_bytes.saturating_add(bytes) > stats.bytes_limit {
            return true;
        }
        let idle = stats.idle_bytes();
        // Twice the peak is room enough, and so is little. Below that, few frees are not worth it.
        idle >= bytes.max(stats.peak_bytes_in_use).max(LITTLE)
            || (waiting >= ENOUGH && idle >= bytes.max(stats.bytes_in_use).max(LITTLE / 8))
    }

    fn create(self) -> Result<(), Refused> {
        // Its own hooks create it, and it ends only with its device's context.
        if self.ordinal == bfc::PINNED {
            return self.await_creation();
        }
        let mut flags = bfc::ALLOW_GROWTH | bfc::GARBAGE_COLLECTION | bfc::SPLIT_ALWAYS;
        if !settings::serves_async() && !MUTATED {
            flags |= bfc::TIMESTAMPS | bfc::QUARANTINE;
        }
        // Regions by cuMemAlloc, unless the user prefers granules: for them there are no IPC handles.
        let backend = if settings::wants_granules() { bfc::BACKEND_CUDA_VMM } else { bfc::BACKEND_CUDA };
        let mut options = bfc::Options::new(backend, flags, c"preload");
        if !settings::is_limited() {
            // All there is, as it is without a pool. What others need of it goes back to the driver on demand.
            options.memory_limit = total_memory(self.ordinal);
        }
        self.create_as(&options)
    }

    /// Creates it, unless another thread or the program itself does. Somebody else's may lack what keeps cudaFree's
    /// promise.
    pub(crate) fn create_as(self, options: &bfc::Options) -> Result<(), Refused> {
        let origin = &self.state.origin;
        let before = origin.load(Ordering::Acquire);
        if before == CREATING {
            return self.await_creation();
        }
        // Another thread may just have created it. Else it was there and has ended: nothing of it is ours any more.
        if before != NOBODYS && bfc::stats(self.ordinal).is_some() {
            return Ok(());
        }
        if origin.compare_exchange(before, CREATING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.await_creation();
        }
        self.state.process.store(text::process(), Ordering::Relaxed);
        // SAFETY: the struct is as large as it says, and what it points to lives until the call returns.
        let status = unsafe { bfc::bfc_create(self.ordinal, options) };
        let whose = match status {
            bfc::OK => OURS,
            // Ours, if another thread was quicker after all.
            bfc::ALREADY_EXISTS if before == OURS => OURS,
            bfc::ALREADY_EXISTS => OTHERS,
            _ => NOBODYS,
        };
        if status != bfc::OK {
            origin.store(whose, Ordering::Release);
            return if whose == NOBODYS { Err(Refused::Pass(Passed::Pool)) } else { Ok(()) };
        }
        let user_data = ptr::from_ref(self.state).cast_mut().cast();
        // SAFETY: the function may be called with it from any thread, at any time: it is static. Should the pool have
        // memory already, by a thread of the program's own calls, that is not counted.
        unsafe { bfc::bfc_set_region_callback(self.ordinal, Some(count_region), user_data) };
        origin.store(OURS, Ordering::Release);
        Ok(())
    }

    /// Another thread is about to create it, which takes it less than a millisecond. Whoever is not through by then, in
    /// the child of a fork say, is not waited for.
    fn await_creation(self) -> Result<(), Refused> {
        for _ in 0..100_000 {
            if self.state.origin.load(Ordering::Acquire) != CREATING {
                return Ok(());
            }
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        }
        Err(Refused::Pass(Passed::Pool))
    }

    /// Takes a chunk back; `None` if the pointer is none of this pool's.
    #[inline]
    fn give_back(self, address: u64) -> Option<CUresult> {
        if !self.has_quarantine() && !MUTATED {
            // What is freed here may be handed out at once, so it must not be in use any more.
            match self.settle_before(address)? {
                CUDA_SUCCESS => {}
                code => return Some(code),
            }
        }
        match self.give_to_libbfc(address) {
            bfc::OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Some(CUDA_SUCCESS)
            }
            bfc::DOUBLE_FREE => Some(CUDA_ERROR_INVALID_VALUE),
            // Inside of a chunk, or free, or nobody's.
            bfc::INVALID_POINTER if bfc::owner(address) == Some(self.ordinal) => {
                Some(CUDA_ERROR_INVALID_VALUE)
            }
            bfc::INVALID_POINTER | bfc::NO_ALLOCATOR => None,
            // In the child of a fork, or while the pool ends: never to the driver, to which it may be a region.
            _ => Some(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// In a pool that knows streams nothing uses the chunk any more: it is freed on a stream on which nothing is ever
    /// queued. Freed without a stream it would wait for a synchronisation.
    #[inline]
    fn give_to_libbfc(self, address: u64) -> Status {
        if settings::serves_async()
            && let Some(stream) = usize::try_from(self.ordinal).ok().and_then(ordered::known_stream_of_nobody)
        {
            let status = bfc::bfc_free_async(self.ordinal, pointer(address), stream.cast());
            if status != bfc::UNSUPPORTED {
                return status;
            }
        }
        bfc::bfc_free(self.ordinal, pointer(address))
    }

    /// Waits for the device before a live chunk of this pool is freed.
    fn settle_before(self, address: u64) -> Option<CUresult> {
        let mut bytes = 0;
        // SAFETY: any address may be asked for, and the pointer is valid for writing.
        match unsafe { bfc::bfc_requested_size(self.ordinal, pointer(address), &mut bytes) } {
            bfc::OK => Some(self.wait()),
            // The free itself says what is wrong.
            _ => Some(CUDA_SUCCESS),
        }
    }

    /// cudaFree of an address that is this pool's if anybody's.
    #[inline]
    pub(crate) fn free(self, address: u64) -> Option<CUresult> {
        let freed = self.give_back(address);
        if freed == Some(CUDA_SUCCESS) && settings::free_synchronizes() && self.has_quarantine() {
            return match self.synchronize() {
                // It is freed, and waits.
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => freed,
                code => Some(code),
            };
        }
        freed
    }

    /// Waits for all work that may use this pool's memory; not while anything is captured.
    fn wait(self) -> CUresult {
        let Some(synchronize) = real::cuCtxSynchronize() else { return CUDA_ERROR_NOT_INITIALIZED };
        // Pinned memory is no device's.
        let device = usize::try_from(self.ordinal).ok().filter(|&device| device < DEVICES);
        captures::unless_any(|| {
            self.state.synchronizations.fetch_add(1, Ordering::Relaxed);
            // SAFETY: no preconditions.
            contexts::in_all(device, || unsafe { synchronize() })
        })
    }

    /// Waits for the device, after which all that waits so far may be handed out.
    pub(crate) fn synchronize(self) -> CUresult {
        let frees = Frees::waiting_in(self);
        let code = self.wait();
        frees.settle(code);
        code
    }

    /// Gives what nobody uses back to the driver. How many bytes that were.
    pub(crate) fn trim(self) -> u64 {
        let mut released = 0;
        if self.is_there() {
            // SAFETY: the pointer is valid for writing.
            unsafe { bfc::bfc_trim(self.ordinal, 0, &mut released) };
        }
        released
    }

    /// As [`Self::trim`], for somebody whom the driver has no memory for: what waits goes too.
    pub(crate) fn trim_all(self) -> u64 {
        if self.waiting() != 0 && self.has_quarantine() {
            self.synchronize();
        }
        self.trim()
    }

    /// The context is about to end, and the memory with it.
    pub(crate) fn end(self) {
        if self.is_there() && bfc::bfc_destroy_forced(self.ordinal) == bfc::OK {
            self.state.origin.store(NOBODYS, Ordering::Relaxed);
        }
    }

    /// The context was reset: the memory is gone.
    pub(crate) fn lose(self) {
        if self.is_there() {
            bfc::bfc_device_lost(self.ordinal);
            self.state.settled.store(self.state.freed.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Frees of a pool that are all followed by what happens next.
pub(crate) struct Frees(Option<(Pool, u64, u64)>);

impl Frees {
    /// What waits in the pool of a context, if anything does.
    pub(crate) fn of(context: Current) -> Self {
        let Current::Primary(device) = context else { return Frees(None) };
        match Pool::of_device(device) {
            // With others one context's synchronisation is not enough.
            Some(pool) if pool.waiting() != 0 && contexts::is_only(device) => Self::waiting_in(pool),
            _ => Frees(None),
        }
    }

    fn waiting_in(pool: Pool) -> Self {
        if !pool.has_quarantine() {
            return Frees(None);
        }
        let freed = pool.state.freed.load(Ordering::Relaxed);
        Frees(bfc::timestamp(pool.ordinal).map(|stamp| (pool, freed, stamp)))
    }

    /// A synchronisation came after them, if it succeeded.
    pub(crate) fn settle(self, code: CUresult) {
        let Some((pool, freed, stamp)) = self.0.filter(|_| code == CUDA_SUCCESS) else { return };
        bfc::bfc_set_safe_frontier(pool.ordinal, stamp.saturating_add(1));
        pool.state.settled.fetch_max(freed, Ordering::Relaxed);
    }
}

unsafe extern "C" fn count_region(
    state: *mut c_void,
    _device: i32,
    _base: *mut c_void,
    _bytes: usize,
    event: i32,
) {
    // SAFETY: it was made from a static one.
    let state = unsafe { &*state.cast::<State>() };
    let count = if event == bfc::REGION_OBTAINED { &state.obtained } else { &state.returned };
    count.fetch_add(1, Ordering::Relaxed);
}

/// The pool of a device that holds an address: of those that serve cudaMalloc.
pub(crate) fn owner(address: u64) -> Option<Pool> {
    let device = usize::try_from(bfc::owner(address)?).ok()?;
    Pool::of_device(device).filter(|pool| pool.is_there())
}

pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn total_memory(device: i32) -> u64 {
    let mut bytes = 0;
    match hooks::load().map(|driver| driver.cuDeviceTotalMem_v2()) {
        // SAFETY: the pointer is valid for writing.
        Some(Ok(total)) if unsafe { total(&mut bytes, device) } == CUDA_SUCCESS => bytes as u64,
        // Then libbfc's default counts.
        _ => 0,
    }
}
