//! One pool of the library, with safe calls.

mod interposed;

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, anyhow, bail};
use bfc_sys::{bfc_options_t, bfc_stats_t, bfc_status_t};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::library::{CallError, Library, c_name, checked};
use crate::simulated_device::{Region, SimulatedDevice};

/// The ordinal used where no real device is meant: the first one that is for the caller's own use.
const OWN_ORDINAL: i32 = 258;

/// Where a pool's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Host memory.
    Host,
    /// One range of host memory, in which granules of 2 MiB are mapped on demand and moved.
    #[value(alias = "host_vmm")]
    HostVmm,
    /// CUDA device 0.
    Cuda,
    /// CUDA device 0, in one range of addresses. Granules are mapped on demand and moved.
    #[value(alias = "cuda_vmm")]
    CudaVmm,
    /// Addresses without memory; chosen by --device-capacity.
    #[value(skip)]
    Simulated,
}

impl Backend {
    /// Its name on the command line and in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::HostVmm => "host-vmm",
            Self::Cuda => "cuda",
            Self::CudaVmm => "cuda-vmm",
            Self::Simulated => "simulated",
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Host => bfc_sys::BFC_BACKEND_HOST,
            Self::HostVmm => bfc_sys::BFC_BACKEND_HOST_VMM,
            Self::Cuda => bfc_sys::BFC_BACKEND_CUDA,
            Self::CudaVmm => bfc_sys::BFC_BACKEND_CUDA_VMM,
            Self::Simulated => bfc_sys::BFC_BACKEND_CUSTOM,
        }
    }

    pub fn ordinal(self) -> i32 {
        match self {
            Self::Cuda | Self::CudaVmm => 0,
            Self::Host | Self::HostVmm | Self::Simulated => OWN_ORDINAL,
        }
    }
}

/// How the sizes of regions are chosen with growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrowthPolicy {
    /// Each region has twice the size of the previous one.
    #[value(name = "tensorflow")]
    TensorFlow,
    /// A region is as large as needed, plus at most a sixteenth of the pool.
    Need,
}

impl GrowthPolicy {
    fn number(self) -> u32 {
        match self {
            Self::TensorFlow => bfc_sys::BFC_GROWTH_TENSORFLOW,
            Self::Need => bfc_sys::BFC_GROWTH_NEED,
        }
    }
}

/// How to create a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolConfig {
    /// Where regions come from.
    pub backend: Backend,
    /// `BFC_ALLOW_GROWTH`.
    pub growth: bool,
    /// Of the regions, with growth; `None` is the library's.
    pub growth_policy: Option<GrowthPolicy>,
    /// `BFC_GARBAGE_COLLECTION`.
    pub gc: bool,
    /// `BFC_SPLIT_ALWAYS`.
    pub split_always: bool,
    /// `BFC_TWO_ENDS`.
    pub two_ends: bool,
    /// Of the limit; `None` is the 128 MiB rule.
    pub fragmentation_fraction: Option<f64>,
    /// The growth hint; `None` is the library's.
    pub initial_region: Option<u64>,
    /// The simulated device's bytes; only with [`Backend::Simulated`].
    pub device_capacity: Option<u64>,
    /// Replay through the `_async` pair, on the trace's streams.
    pub stream_ordered: bool,
    /// Replay as the interposer would make the requests.
    #[serde(skip)]
    pub interposed: Option<Frees>,
    /// The plan to follow.
    pub plan: Option<PathBuf>,
    /// The regions that the simulated device provides first, see [`SimulatedDevice::with_regions`].
    #[serde(skip)]
    pub regions: Vec<Region>,
}

/// When the interposer makes freed memory reusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frees {
    /// At once.
    AtOnce,
    /// Until the interposer asks for the device's work, which is done by then, or the program waits for it
    /// ([`Trace::reusable`](bfc_readers::trace::Trace::reusable)).
    Wait,
}

impl PoolConfig {
    /// `BFC_ALLOW_GROWTH` and the others.
    pub fn flags(&self) -> u32 {
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        flag(self.growth, bfc_sys::BFC_ALLOW_GROWTH)
            | flag(self.gc, bfc_sys::BFC_GARBAGE_COLLECTION)
            | flag(self.split_always, bfc_sys::BFC_SPLIT_ALWAYS)
            | flag(self.two_ends, bfc_sys::BFC_TWO_ENDS)
            | flag(self.interposed == Some(Frees::Wait), bfc_sys::BFC_TIMESTAMPS | bfc_sys::BFC_QUARANTINE)
    }
}

impl PoolConfig {
    /// The path of the plan as the library takes it.
    pub fn plan_path(&self) -> Result<Option<CString>> {
        let path = self.plan.as_ref().map(|path| CString::new(path.as_os_str().as_bytes()));
        path.transpose().context("the path of --plan contains a zero byte")
    }

    /// The options of a pool, without a name, a plan, and the functions of a simulated device.
    pub fn options(&self, limit: u64) -> bfc_options_t {
        bfc_options_t {
            fragmentation_fraction: self.fragmentation_fraction.unwrap_or(0.0),
            initial_region_bytes: self.initial_region.unwrap_or(0),
            growth_policy: self.growth_policy.map_or(bfc_sys::BFC_GROWTH_DEFAULT, GrowthPolicy::number),
            ..options(self.backend.number(), self.flags(), limit)
        }
    }
}

/// A pool that is destroyed when it is dropped. Addresses are plain numbers here: a replay never
/// touches the memory, and the library checks every address that it is given.
pub struct Device<'a> {
    library: &'a Library,
    ordinal: i32,
    stream_ordered: bool,
    interposed: Option<Frees>,
    /// How many frees were reusable when the pool was last told.
    reusable: AtomicU64,
    /// The data that the pool's callbacks point at. It must live until the pool is destroyed.
    simulated: Option<Box<SimulatedDevice>>,
    live: bool,
}

impl<'a> Device<'a> {
    /// Creates a pool of `limit` bytes.
    pub fn create(library: &'a Library, config: &PoolConfig, limit: u64, name: &str) -> Result<Self> {
        let name: CString = c_name(name);
        let plan = config.plan_path()?;
        let plan = plan.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        let options = bfc_options_t { name: name.as_ptr(), plan, ..config.options(limit) };
        let simulated =
            config.device_capacity.map(|bytes| SimulatedDevice::with_regions(bytes, &config.regions));
        match Self::open(library, config.backend.ordinal(), options, simulated) {
            Ok(mut device) => {
                (device.stream_ordered, device.interposed) = (config.stream_ordered, config.interposed);
                Ok(device)
            }
            // The library's advice is for programs. This command has options for it.
            Err(error) if error.status == bfc_sys::BFC_ERROR_BACKEND_UNAVAILABLE => bail!(
                "--backend {} cannot be used: {}; use --backend host, or --device-capacity SIZE for a simulated device",
                config.backend.name(),
                error.reason()
            ),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the pool that `options` describe, on a simulated device if there is one.
    fn open(
        library: &'a Library,
        ordinal: i32,
        mut options: bfc_options_t,
        simulated: Option<SimulatedDevice>,
    ) -> Result<Self, CallError> {
        let simulated = simulated.map(Box::new);
        let suballocator = simulated.as_ref().map(|device| device.suballocator());
        options.suballocator = suballocator.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the struct says its size, and what it points at outlives the call, which copies it; the
        // callbacks' target is kept in the device until the pool is destroyed.
        let status = unsafe { (library.api.bfc_create)(ordinal, &raw const options) };
        checked(library, "bfc_create", status)?;
        Ok(Self {
            library,
            ordinal,
            stream_ordered: false,
            interposed: None,
            reusable: AtomicU64::new(0),
            simulated,
            live: true,
        })
    }

    /// Requests `bytes` on the trace's `stream`. Returns the status, and the address or 0.
    #[inline]
    pub fn alloc(&self, bytes: u64, stream: u16) -> (bfc_status_t, usize) {
        let mut out = ptr::null_mut();
        let bytes = bytes as usize;
        let status = if let Some(frees) = self.interposed {
            self.alloc_interposed(bytes, frees, &mut out)
        } else if self.stream_ordered {
            // SAFETY: the out-pointer is valid for a write; streams are mere tokens on every backend that
            // is taken here with stream ordering (the command line refuses CUDA).
            unsafe { (self.library.api.bfc_alloc_async)(self.ordinal, bytes, token(stream), &raw mut out) }
        } else {
            // SAFETY: the out-pointer is valid for a write.
            unsafe { (self.library.api.bfc_alloc)(self.ordinal, bytes, &raw mut out) }
        };
        (status, out.expose_provenance())
    }

    /// Frees the chunk at `address`.
    #[inline]
    pub fn free(&self, address: usize, stream: u16) -> bfc_status_t {
        let pointer = ptr::with_exposed_provenance_mut::<c_void>(address);
        if self.stream_ordered {
            // SAFETY: any address may be passed, the library checks it; nothing here reads the chunk.
            unsafe { (self.library.api.bfc_free_async)(self.ordinal, pointer, token(stream)) }
        } else {
            // SAFETY: as above.
            unsafe { (self.library.api.bfc_free)(self.ordinal, pointer) }
        }
    }

    /// The message for a status that `alloc` has just returned on this thread.
    pub fn alloc_error(&self, status: bfc_status_t) -> CallError {
        self.library.error(if self.stream_ordered { "bfc_alloc_async" } else { "bfc_alloc" }, status)
    }

    /// The message for a status that `free` has just returned on this thread.
    pub fn free_error(&self, status: bfc_status_t) -> CallError {
        self.library.error(if self.stream_ordered { "bfc_free_async" } else { "bfc_free" }, status)
    }

    /// The bytes of the chunk at `address`.
    pub fn allocated_size(&self, address: usize) -> Result<u64, CallError> {
        let mut out = 0;
        let pointer = ptr::with_exposed_provenance::<c_void>(address);
        // SAFETY: the out-pointer is valid for a write; the library checks the address.
        let status = unsafe { (self.library.api.bfc_allocated_size)(self.ordinal, pointer, &raw mut out) };
        checked(self.library, "bfc_allocated_size", status)?;
        Ok(out as u64)
    }

    /// The pool's statistics.
    pub fn stats(&self) -> Result<bfc_stats_t, CallError> {
        let mut stats = bfc_stats_t { struct_size: size_of::<bfc_stats_t>(), ..bfc_stats_t::default() };
        // SAFETY: a valid struct that says its own size.
        let status = unsafe { (self.library.api.bfc_stats)(self.ordinal, &raw mut stats) };
        checked(self.library, "bfc_stats", status)?;
        Ok(stats)
    }

    /// Sets counters to 0, and peaks to the current values.
    pub fn reset_stats(&self) -> Result<(), CallError> {
        // SAFETY: takes any ordinal.
        let status = unsafe { (self.library.api.bfc_reset_stats)(self.ordinal) };
        checked(self.library, "bfc_reset_stats", status)
    }

    /// The pool as 100 columns.
    pub fn occupancy(&self) -> Result<String, CallError> {
        self.text("bfc_occupancy", self.library.api.bfc_occupancy)
    }

    /// The pool's memory map, JSON.
    pub fn memory_map(&self) -> Result<String, CallError> {
        self.text("bfc_memory_map", self.library.api.bfc_memory_map)
    }

    /// The human report.
    pub fn report(&self) -> Result<String, CallError> {
        self.text("bfc_report", self.library.api.bfc_report)
    }

    /// Destroys the pool, which must have no live allocations, and checks that it used the simulated device correctly.
    pub fn destroy(mut self) -> Result<()> {
        // SAFETY: no call on this pool is under way, `self` is owned.
        let status = unsafe { (self.library.api.bfc_destroy)(self.ordinal) };
        checked(self.library, "bfc_destroy", status)?;
        self.live = false;
        match &self.simulated {
            Some(simulated) => simulated.finish().map_err(|fault| anyhow!(fault)),
            None => Ok(()),
        }
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(i32, *mut c_char, usize, *mut usize) -> bfc_status_t,
    ) -> Result<String, CallError> {
        // SAFETY: `Library::text` passes a buffer and an out-pointer that are valid for writing.
        self.library
            .text(call, |data, capacity, length| unsafe { function(self.ordinal, data, capacity, length) })
    }
}

impl Drop for Device<'_> {
    /// After an error: live allocations end with the pool, before the data of its callbacks does.
    fn drop(&mut self) {
        if self.live {
            // SAFETY: no call on this pool is under way, `self` is borrowed mutably.
            unsafe { (self.library.api.bfc_destroy_forced)(self.ordinal) };
        }
    }
}

/// Options that leave everything they do not name to the library.
fn options(backend: u32, flags: u32, memory_limit: u64) -> bfc_options_t {
    bfc_options_t {
        struct_size: size_of::<bfc_options_t>(),
        backend,
        flags,
        memory_limit,
        ..bfc_options_t::default()
    }
}

/// A token for the trace's `stream`. Stream 0 is the default stream; the others must not look like the
/// driver's special handles 0x1 and 0x2.
fn token(stream: u16) -> *mut c_void {
    ptr::without_provenance_mut(usize::from(stream) << 12)
}

/// Returns whether a pool of `backend` can be created on `ordinal` and serves a request, or the reason why not.
pub fn probe(library: &Library, backend: u32, ordinal: i32) -> Result<()> {
    /// Enough for a granule of every backend, and little enough to be available on a busy device.
    const LIMIT: u64 = 64 << 20;
    let simulated = (backend == bfc_sys::BFC_BACKEND_CUSTOM).then(|| SimulatedDevice::new(LIMIT));
    let device =
        Device::open(library, ordinal, options(backend, bfc_sys::BFC_ALLOW_GROWTH, LIMIT), simulated)?;
    // Creation may defer the work until the first allocation, so only an allocation shows that the backend works.
    let (status, address) = device.alloc(256, 0);
    if status != bfc_sys::BFC_OK {
        return Err(device.alloc_error(status).into());
    }
    let status = device.free(address, 0);
    if status != bfc_sys::BFC_OK {
        return Err(device.free_error(status).into());
    }
    device.destroy().context("after the first allocation")
}
