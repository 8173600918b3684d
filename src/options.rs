//! The settings of a new allocator: the caller's options, then the environment, then the defaults.

mod environment;
mod limit;

use self::environment::{
    backend_named, environment_flags, flag, fraction, guard_wanted, is_fraction, setting, size,
};
use crate::backend::{
    AllocCallback, AnyBackend, Backend, Cuda, CudaVmm, Custom, FreeCallback, Host, HostVmm, Owned,
};
use crate::core::arena::Settings;
use crate::error::{Error, fail};
use crate::log::{self, Level};
use crate::sys::random;
use std::ffi::c_void;
use std::time::Duration;

/// Obtain regions on demand. Without this flag, one region of the whole limit is obtained at the first allocation.
pub const ALLOW_GROWTH: u32 = 1 << 0;
/// Release wholly free regions before a request fails.
pub const GARBAGE_COLLECTION: u32 = 1 << 1;
/// Stamp frees. See the safe frontier.
pub const TIMESTAMPS: u32 = 1 << 2;
/// Split off any remainder of 256 bytes or more.
pub const SPLIT_ALWAYS: u32 = 1 << 3;
/// With [`TIMESTAMPS`]: never hand out a chunk whose stamp is not safe.
pub const QUARANTINE: u32 = 1 << 4;

const ALL_FLAGS: u32 = ALLOW_GROWTH | GARBAGE_COLLECTION | TIMESTAMPS | SPLIT_ALWAYS | QUARANTINE;

/// The last ordinal of a CUDA device. The first is 0.
pub(crate) const LAST_CUDA_DEVICE: i32 = 255;

/// The source of regions. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum BackendKind {
    /// CUDA on device ordinals, host memory on the host's. A device never silently gets host memory.
    #[default]
    Auto = 0,
    /// Host memory from `mmap`.
    Host = 1,
    /// The caller's own functions.
    Custom = 2,
    /// Device memory from `cuMemAlloc`.
    Cuda = 3,
    /// Device memory in one growing virtual range.
    CudaVmm = 4,
    /// Host memory in one growing virtual range.
    HostVmm = 5,
}

impl BackendKind {
    /// Returns the backend with a number of the C ABI.
    pub fn from_code(code: u32) -> Option<Self> {
        use BackendKind::*;
        [Auto, Host, Custom, Cuda, CudaVmm, HostVmm].into_iter().find(|kind| *kind as u32 == code)
    }

    /// Returns the name in the C ABI.
    fn c_name(self) -> &'static str {
        match self {
            BackendKind::Auto => "BFC_BACKEND_AUTO",
            BackendKind::Host => "BFC_BACKEND_HOST",
            BackendKind::Custom => "BFC_BACKEND_CUSTOM",
            BackendKind::Cuda => "BFC_BACKEND_CUDA",
            BackendKind::CudaVmm => "BFC_BACKEND_CUDA_VMM",
            BackendKind::HostVmm => "BFC_BACKEND_HOST_VMM",
        }
    }
}

/// The caller's functions for [`BackendKind::Custom`].
#[derive(Clone, Copy, Debug)]
pub struct SubAllocator {
    user_data: *mut c_void,
    alloc: AllocCallback,
    free: FreeCallback,
    supports_coalescing: bool,
}

impl SubAllocator {
    /// Creates a suballocator. Regions are obtained from `alloc`, where NULL means no memory, and released to `free`.
    /// Both get `user_data`. With `supports_coalescing`, adjacent regions may be merged into one and released as one.
    ///
    /// # Safety
    /// The functions do not unwind. They may be called with `user_data` from any thread, until no allocator uses them.
    pub const unsafe fn new(
        user_data: *mut c_void,
        alloc: AllocCallback,
        free: FreeCallback,
        supports_coalescing: bool,
    ) -> Self {
        SubAllocator { user_data, alloc, free, supports_coalescing }
    }
}

/// The options of a new allocator. A field left 0 is taken from the environment, or else from the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The source of regions.
    pub backend: BackendKind,
    /// [`ALLOW_GROWTH`] and the other flags.
    pub flags: u32,
    /// The most bytes held from the backend. 0 stands for the available memory.
    pub memory_limit: u64,
    /// The limit as a fraction of the device's total memory, if `memory_limit` is 0.
    pub memory_fraction: f64,
    /// Split off a remainder of this fraction of the limit. 0 is the 128 MiB rule.
    pub fragmentation_fraction: f64,
    /// The size of the first region with growth. 0 is 2 MiB.
    pub initial_region_bytes: u64,
    /// How long to wait for another thread's free before failing.
    pub retry_timeout_ms: u32,
    /// The name in reports. `None` is "bfc".
    pub name: Option<&'a str>,
    /// Only for [`BackendKind::Custom`].
    pub suballocator: Option<SubAllocator>,
}

/// The resolved and checked settings of an allocator.
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    pub(crate) backend: Owned,
    pub(crate) retry: Duration,
    pub(crate) report_failures: bool,
    pub(crate) name: String,
    /// Whether the debug mode is on.
    pub(crate) guard: bool,
}

impl Options<'_> {
    /// Returns options with growth and garbage collection on, and everything else from the environment or the default.
    pub fn growing() -> Self {
        Options { flags: ALLOW_GROWTH | GARBAGE_COLLECTION, ..Options::default() }
    }

    /// Fills in the settings that the options leave open. The options must have been checked. `default_flags` apply
    /// where neither the options nor the environment set anything.
    #[inline(never)]
    pub(crate) fn resolve(&self, device: i32, default_flags: u32) -> Result<Resolved, Error> {
        let options = self.with_environment(default_flags);
        let flags = options.flags;
        let name = self.name.unwrap_or("bfc");
        let mut owned = String::new();
        owned.try_reserve_exact(name.len()).map_err(crate::sys::HostMemoryExhausted::from)?;
        owned.push_str(name);
        let backend = options.choose_backend(device)?;
        let mut limit = options.choose_limit(backend.get())?;
        if let Some(granules) = backend.get().granules() {
            // Only whole granules are mapped, and never more than allowed.
            limit -= limit % granules.range().granule;
        }
        let timestamps = flags & TIMESTAMPS != 0;
        Ok(Resolved {
            guard: guard_wanted() && can_guard(backend.get(), timestamps),
            settings: Settings {
                limit,
                growth: flags & ALLOW_GROWTH != 0,
                garbage_collection: flags & GARBAGE_COLLECTION != 0,
                split_always: flags & SPLIT_ALWAYS != 0 || options.splits_always_by_default(&backend),
                fragmentation_fraction: options.fragmentation_fraction,
                initial_region: options.initial_region_bytes,
                timestamps,
                quarantine: flags & QUARANTINE != 0,
                coalesce_regions: backend.get().coalesces(),
                events: backend.get().order().is_some(),
                seed: setting(c"BFC_HASH_SEED", "a whole number", |text| text.parse().ok())
                    .unwrap_or_else(random),
            },
            backend,
            retry: Duration::from_millis(options.retry_timeout_ms.into()),
            report_failures: flag(c"BFC_REPORT_ON_FAILURE").unwrap_or(false),
            name: owned,
        })
    }

    /// Granules can be moved to where a large piece is needed, so small free pieces do no harm, and slack inside chunks
    /// would be the only lost memory. A rule set explicitly is kept.
    fn splits_always_by_default(&self, backend: &AnyBackend) -> bool {
        backend.get().granules().is_some() && self.fragmentation_fraction == 0.0
    }

    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.flags & !ALL_FLAGS != 0 {
            let unknown = self.flags & !ALL_FLAGS;
            return Err(fail!(Error::InvalidArgument, "unknown flags {unknown:#x} in bfc_options_t"));
        }
        if self.flags & QUARANTINE != 0 && self.flags & TIMESTAMPS == 0 {
            return Err(fail!(Error::InvalidArgument, "BFC_QUARANTINE needs BFC_TIMESTAMPS"));
        }
        for (name, value) in [
            ("memory_fraction", self.memory_fraction),
            ("fragmentation_fraction", self.fragmentation_fraction),
        ] {
            if !is_fraction(value) {
                return Err(fail!(Error::InvalidArgument, "{name} is {value}: it must be from 0 to 1"));
            }
        }
        if self.suballocator.is_some() && self.backend != BackendKind::Custom {
            return Err(fail!(Error::InvalidArgument, "a suballocator goes with BFC_BACKEND_CUSTOM only"));
        }
        if self.backend == BackendKind::Custom && self.suballocator.is_none() {
            return Err(fail!(
                Error::InvalidArgument,
                "BFC_BACKEND_CUSTOM needs a suballocator with both functions"
            ));
        }
        Ok(())
    }

    /// Takes settings that the options leave 0 from the environment. Malformed values there are ignored.
    #[inline(never)]
    fn with_environment(&self, default_flags: u32) -> Self {
        let mut options = *self;
        if options.backend == BackendKind::Auto {
            options.backend =
                setting(c"BFC_BACKEND", "auto, host, cuda, cuda_vmm or host_vmm", backend_named)
                    .unwrap_or_default();
        }
        if options.memory_limit == 0 {
            options.memory_limit = setting(c"BFC_MEMORY_LIMIT", "a size like 8GiB", size).unwrap_or(0);
        }
        if options.memory_fraction == 0.0 {
            options.memory_fraction =
                setting(c"BFC_MEMORY_FRACTION", "a number from 0 to 1", fraction).unwrap_or(0.0);
        }
        if options.fragmentation_fraction == 0.0 {
            options.fragmentation_fraction =
                setting(c"BFC_FRAGMENTATION_FRACTION", "a number from 0 to 1", fraction).unwrap_or(0.0);
        }
        if options.initial_region_bytes == 0 {
            options.initial_region_bytes =
                setting(c"BFC_INITIAL_REGION_BYTES", "a size like 64MiB", size).unwrap_or(0);
        }
        if options.retry_timeout_ms == 0 {
            let wanted = "milliseconds as a whole number";
            options.retry_timeout_ms =
                setting(c"BFC_RETRY_TIMEOUT_MS", wanted, |text| text.parse().ok()).unwrap_or(0);
        }
        if options.flags == 0 {
            options.flags = environment_flags(default_flags);
        }
        match flag(c"BFC_FORCE_ALLOW_GROWTH") {
            Some(true) => options.flags |= ALLOW_GROWTH,
            Some(false) => options.flags &= !ALLOW_GROWTH,
            None => {}
        }
        options
    }

    /// Returns the same options under another name.
    pub(crate) fn named<'b>(self, name: Option<&'b str>) -> Options<'b> {
        let Self { backend, flags, memory_limit, memory_fraction, fragmentation_fraction, .. } = self;
        let Self { initial_region_bytes, retry_timeout_ms, suballocator, .. } = self;
        Options {
            backend,
            flags,
            memory_limit,
            memory_fraction,
            fragmentation_fraction,
            initial_region_bytes,
            retry_timeout_ms,
            name,
            suballocator,
        }
    }

    #[inline(never)]
    fn choose_backend(&self, device: i32) -> Result<Owned, Error> {
        let kind = match (self.backend, device) {
            (BackendKind::Auto, 256) => BackendKind::Host,
            (BackendKind::Auto, 0..=LAST_CUDA_DEVICE) => BackendKind::Cuda,
            (BackendKind::Auto, 257) => {
                return Err(fail!(
                    Error::BackendUnavailable,
                    "pinned host memory (ordinal 257) is not in this version of libbfc; \
                     name BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM"
                ));
            }
            (BackendKind::Auto, _) => {
                return Err(fail!(
                    Error::InvalidArgument,
                    "BFC_BACKEND_AUTO has no meaning on ordinal {device}, which is the caller's to use: name a backend"
                ));
            }
            (kind, _) => kind,
        };
        let backend = match (kind, self.suballocator) {
            (BackendKind::Host, _) => AnyBackend::Host(Host),
            // The range depends on the limit.
            (BackendKind::HostVmm, _) => AnyBackend::HostVmm(HostVmm::open(self.choose_limit(&Host)?)?),
            (BackendKind::Cuda | BackendKind::CudaVmm, _) if device > LAST_CUDA_DEVICE => {
                let name = kind.c_name();
                return Err(fail!(
                    Error::InvalidArgument,
                    "{name} on ordinal {device}: it goes with the ordinals 0 to {LAST_CUDA_DEVICE}, which are CUDA's devices; name \
                     BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM here"
                ));
            }
            (BackendKind::Cuda, _) => AnyBackend::Cuda(Cuda::open(device)?),
            (BackendKind::CudaVmm, _) => {
                AnyBackend::CudaVmm(CudaVmm::open(device, |cuda| self.choose_limit(cuda))?)
            }
            (BackendKind::Custom, Some(functions)) => AnyBackend::Custom(Custom {
                user_data: functions.user_data,
                alloc: functions.alloc,
                free: functions.free,
                coalesces: functions.supports_coalescing,
            }),
            // Both were rejected before.
            (BackendKind::Custom, None) | (BackendKind::Auto, _) => {
                return Err(fail!(Error::InvalidArgument, "{} comes to no backend", kind.c_name()));
            }
        };
        Ok(Owned::new(backend))
    }
}

/// Returns whether the debug mode is possible. If not, a warning gives the reason.
fn can_guard(backend: &dyn Backend, timestamps: bool) -> bool {
    let why = if backend.memory().is_none() {
        "libbfc never reads or writes the memory of a suballocator"
    } else if timestamps && backend.order().is_none() {
        // Unlike on a device, it cannot wait for the work that the stamps are about.
        "on this backend nobody knows whether work still uses what was freed with BFC_TIMESTAMPS"
    } else {
        return true;
    };
    log::emit(Level::Warn, format_args!("BFC_DEBUG=guard is ignored for this allocator: {why}"));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_never_silently_host_memory() {
        let choose = |device| Options::default().choose_backend(device);
        assert!(matches!(choose(256).as_deref(), Ok(AnyBackend::Host(_))));
        for device in [0, 1, LAST_CUDA_DEVICE, 257] {
            // On a machine with this device, the backend is CUDA.
            let chosen = choose(device);
            let fine = matches!(chosen.as_deref(), Err(Error::BackendUnavailable) | Ok(AnyBackend::Cuda(_)));
            assert!(fine, "{device}");
        }
        assert!(matches!(choose(257), Err(Error::BackendUnavailable)));
        crate::error::with_last_error(|words| assert!(words.contains("pinned"), "{words}"));
        for device in [258, 1023] {
            assert!(matches!(choose(device), Err(Error::InvalidArgument)), "{device}");
        }
        for device in [256, 257, 258, 1023] {
            let cuda = Options { backend: BackendKind::Cuda, ..Options::default() };
            assert!(matches!(cuda.choose_backend(device), Err(Error::InvalidArgument)), "{device}");
        }
    }

    #[test]
    fn fractions_are_from_0_to_1() {
        for value in [f64::NAN, -0.1, 1.1, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_fraction(value));
            let options = Options { memory_fraction: value, memory_limit: 1, ..Options::default() };
            assert_eq!(options.check(), Err(Error::InvalidArgument));
        }
        assert_eq!((fraction("0.5"), fraction("nan"), fraction("2")), (Some(0.5), None, None));
    }
}
