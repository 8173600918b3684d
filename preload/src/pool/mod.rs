//! A pool: serving, taking back, and when to wait for the device.
//!
//! cudaFree waits for the device before it returns, and programs rely on that: what they free is not handed out again
//! before the work that was queued until then is done. Here a freed chunk waits instead (`BFC_QUARANTINE`), and one
//! synchronisation serves all that wait: when a request finds nothing that is safe, and either many wait or the pool
//! would grow beyond need.

mod create;
mod deferred_frees;
mod probe;
pub(crate) mod streams;
mod wait;

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cuda_sys::*;

use self::probe::Probe;
use crate::bfc::{self, Request, Stats, Status};
use crate::diagnostics::check_log::Passed;
use crate::diagnostics::report::{Activity, Reported};
use crate::settings;
use crate::state::contexts::DEVICES;
use crate::state::{captures, internal_streams};
use crate::sys::lock::Owned;
use crate::sys::mapped_file;

pub(crate) use probe::note_end;
pub(crate) use wait::Frees;

/// So many frees are synchronised anyway: their chunks take host memory and keep others from merging.
const MANY: u64 = 1024;

/// What is freed may be handed out at once, for a test to show that it sees the races that come of it.
const MUTATED: bool = cfg!(feature = "without-quarantine");

/// Drivers align small allocations to 512; the documentation promises 256.
const ALIGNMENT: usize = 512;

/// They align large ones to pages, and programs rely on it: a DMA-BUF (`cuMemGetHandleForAddressRange`), by which NCCL
/// registers memory with a network, wants whole pages of the host, which have up to 64 KiB. 2 MiB would need 5% more
/// memory for the recorded programs, these need 0.1% (docs/interposition.md, `cargo bench --bench alignment`).
const LARGE_ALIGNMENT: usize = 64 << 10;

/// Large is what has at least so many bytes.
const LARGE: usize = 1 << 20;

/// What is known of a pool beside libbfc's own books.
pub(crate) struct State {
    /// Which it is: none, ours, or one that the program created before. A larger number is the thread that creates it.
    origin: AtomicUsize,
    pub(crate) served: AtomicU64,
    pub(crate) freed: AtomicU64,
    /// How many of the frees were followed by a synchronisation.
    settled: AtomicU64,
    pub(crate) synchronizations: AtomicU64,
    /// The work of several contexts that is asked after.
    probe: Owned<Probe>,
    pub(crate) obtained: AtomicU64,
    pub(crate) returned: AtomicU64,
}

const NOBODYS: usize = 0;
const OURS: usize = 1;
const OTHERS: usize = 2;

impl State {
    pub(crate) const fn new() -> Self {
        State {
            origin: AtomicUsize::new(NOBODYS),
            served: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            synchronizations: AtomicU64::new(0),
            probe: Owned::new(Probe::new()),
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

/// What became of a free.
pub(crate) enum Freed {
    /// The pool has taken the chunk back, or says why not.
    Here(CUresult),
    /// It is none of this pool's memory, but perhaps of another one's.
    Elsewhere(Option<Pool>),
}

impl Freed {
    /// What the pool says, if it is its memory.
    pub(crate) fn code(self) -> Option<CUresult> {
        match self {
            Freed::Here(code) => Some(code),
            Freed::Elsewhere(_) => None,
        }
    }
}

impl Reported for Pool {
    fn ordinal(self) -> i32 {
        self.ordinal
    }

    fn activity(self) -> Activity {
        let state = self.state;
        Activity {
            served: state.served.load(Ordering::Acquire),
            freed: state.freed.load(Ordering::Acquire),
            obtained: state.obtained.load(Ordering::Relaxed),
            returned: state.returned.load(Ordering::Relaxed),
            synchronizations: state.synchronizations.load(Ordering::Relaxed),
        }
    }

    fn stats(self) -> Option<Stats> {
        Pool::stats(self)
    }
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

    /// Whether this interposer created it, and not the program.
    #[inline]
    pub(crate) fn is_ours(self) -> bool {
        self.state.origin.load(Ordering::Acquire) == OURS
    }

    /// Whether it is known whose it is.
    #[inline]
    pub(crate) fn is_known(self) -> bool {
        matches!(self.state.origin.load(Ordering::Acquire), OURS | OTHERS)
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
            self.make_safe(u64::MAX);
        }
        self.free_what_was_put_off();
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
        } else if self.waiting() != 0
            && self.has_quarantine()
            && self.make_safe(bytes as u64)
            && let Ok(address) = self.request(bytes, stream, bfc::HELD_ONLY)
        {
            return Ok(address);
        }
        // In the order of a stream it may be memory that others' work is still to leave: the stream waits for that. But
        // whoever uses what cudaMalloc gave waits for nobody, so that is a request without a stream, which itself waits.
        let stream = stream.filter(|&stream| !internal_streams::is_internal(stream));
        match self.request(bytes, stream, 0) {
            Ok(address) => return Ok(address),
            Err(bfc::OUT_OF_MEMORY) => {}
            Err(_) => return Err(Refused::Pass(Passed::Pool)),
        }
        // Rather at another place than behind a synchronization, or not at all.
        if self.alignment_of(bytes) != ALIGNMENT
            && let Ok(address) = self.request_at(ALIGNMENT, bytes, stream, 0)
        {
            return Ok(address);
        }
        // Without a quarantine libbfc has waited for everything already.
        if self.waiting() != 0
            && self.has_quarantine()
            && self.synchronize() == CUDA_SUCCESS
            && let Ok(address) =
                self.request(bytes, stream, 0).or_else(|_| self.request_at(ALIGNMENT, bytes, stream, 0))
        {
            return Ok(address);
        }
        // The limit is meant for devices.
        if settings::is_limited() && self.ordinal != bfc::PINNED {
            return Err(Refused::OutOfMemory);
        }
        // The driver may find in one piece what the pool cannot.
        self.trim();
        Err(Refused::Pass(Passed::Full))
    }

    /// Where a request of that size may begin.
    #[inline]
    fn alignment_of(self, bytes: usize) -> usize {
        match self.ordinal {
            _ if bytes < LARGE => ALIGNMENT,
            // Pinned memory begins at a page of the host.
            bfc::PINNED => usize::try_from(mapped_file::page()).unwrap_or(ALIGNMENT),
            _ => LARGE_ALIGNMENT,
        }
    }

    #[inline]
    fn request(self, bytes: usize, stream: Option<CUstream>, flags: u32) -> Result<u64, Status> {
        self.request_at(self.alignment_of(bytes), bytes, stream, flags)
    }

    #[inline(never)] // Its arguments for libbfc would be in the frames of all that try several times.
    fn request_at(
        self,
        alignment: usize,
        bytes: usize,
        stream: Option<CUstream>,
        flags: u32,
    ) -> Result<u64, Status> {
        let (stream, on_stream) = match stream {
            Some(stream) => (stream.cast(), bfc::ON_STREAM),
            None => (ptr::null_mut(), 0),
        };
        let request = Request {
            struct_size: size_of::<Request>(),
            bytes,
            alignment,
            stream,
            freed_before: 0,
            flags: flags | on_stream | bfc::SIZE_512,
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

    /// Takes a chunk back.
    #[inline]
    fn give_back(self, address: u64) -> Freed {
        if !self.has_quarantine() && !MUTATED {
            // What is freed here may be handed out at once, so it must not be in use any more.
            self.free_what_was_put_off();
            if self.has_put_off(address) {
                return Freed::Here(CUDA_ERROR_INVALID_VALUE);
            }
            match self.settle_before(address) {
                CUDA_SUCCESS => {}
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if self.put_free_off(address) => {
                    return Freed::Here(CUDA_SUCCESS);
                }
                code => return Freed::Here(code),
            }
        }
        match self.give_to_libbfc(address) {
            bfc::OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Freed::Here(CUDA_SUCCESS)
            }
            bfc::DOUBLE_FREE => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            bfc::INVALID_POINTER | bfc::NO_ALLOCATOR => self.not_given_back(address),
            // In the child of a fork, or while the pool ends: never to the driver, to which it may be a region.
            _ => Freed::Here(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// It is inside of a chunk, or free, or not of this pool.
    #[cold]
    fn not_given_back(self, address: u64) -> Freed {
        match bfc::owner(address) {
            Some(owner) if owner == self.ordinal => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            owner => Freed::Elsewhere(owner.and_then(of_ordinal)),
        }
    }

    /// In a pool that knows streams nothing uses the chunk any more: it is freed on a stream on which nothing is ever
    /// queued. Freed without a stream it would wait for a synchronisation.
    #[inline]
    fn give_to_libbfc(self, address: u64) -> Status {
        if settings::serves_async()
            && let Some(stream) = usize::try_from(self.ordinal).ok().and_then(internal_streams::get)
        {
            let status = bfc::bfc_free_async(self.ordinal, pointer(address), stream.cast());
            if status != bfc::UNSUPPORTED {
                return status;
            }
        }
        bfc::bfc_free(self.ordinal, pointer(address))
    }

    /// Waits for the device before a live chunk of this pool is freed.
    fn settle_before(self, address: u64) -> CUresult {
        let mut bytes = 0;
        // SAFETY: any address may be asked for, and the pointer is valid for writing.
        match unsafe { bfc::bfc_requested_size(self.ordinal, pointer(address), &mut bytes) } {
            bfc::OK => self.wait(),
            // The free itself says what is wrong.
            _ => CUDA_SUCCESS,
        }
    }

    /// cudaFree of an address that is this pool's if anybody's.
    #[inline]
    pub(crate) fn free(self, address: u64) -> Freed {
        let freed = self.give_back(address);
        let is_freed = matches!(freed, Freed::Here(CUDA_SUCCESS));
        if is_freed && settings::free_synchronizes() && self.has_quarantine() {
            return match self.synchronize() {
                // It is freed, and waits.
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => freed,
                code => Freed::Here(code),
            };
        }
        freed
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
}

/// The pool of a device that holds an address: of those that serve cudaMalloc.
pub(crate) fn owner(address: u64) -> Option<Pool> {
    bfc::owner(address).and_then(of_ordinal)
}

fn of_ordinal(ordinal: i32) -> Option<Pool> {
    Pool::of_device(usize::try_from(ordinal).ok()?).filter(|pool| pool.is_there())
}

pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}
