//! What an allocator is created with: the caller's options, then the environment, then the defaults.

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

/// Regions on demand; without it one region of the whole limit at the first allocation.
pub const ALLOW_GROWTH: u32 = 1 << 0;
/// Give wholly free regions back before failing.
pub const GARBAGE_COLLECTION: u32 = 1 << 1;
/// Stamp frees; see the safe frontier.
pub const TIMESTAMPS: u32 = 1 << 2;
/// Split off any remainder of 256 bytes or more.
pub const SPLIT_ALWAYS: u32 = 1 << 3;
/// With [`TIMESTAMPS`]: never hand out a chunk whose stamp is not safe.
pub const QUARANTINE: u32 = 1 << 4;

const ALL_FLAGS: u32 = ALLOW_GROWTH | GARBAGE_COLLECTION | TIMESTAMPS | SPLIT_ALWAYS | QUARANTINE;

/// CUDA's devices have the ordinals from 0 to this one.
pub(crate) const LAST_CUDA_DEVICE: i32 = 255;

/// Where regions come from. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum BackendKind {
    /// CUDA on device ordinals, host memory on the host's; never silently host memory for a device.
    #[default]
    Auto = 0,
    /// Host memory by `mmap`.
    Host = 1,
    /// The caller's own functions.
    Custom = 2,
    /// Device memory by `cuMemAlloc`.
    Cuda = 3,
    /// Device memory in one growing virtual range.
    CudaVmm = 4,
    /// Host memory in one growing virtual range.
    HostVmm = 5,
}

impl BackendKind {
    /// The backend with a number of the C ABI.
    pub fn from_code(code: u32) -> Option<Self> {
        use BackendKind::*;
        [Auto, Host, Custom, Cuda, CudaVmm, HostVmm].into_iter().find(|kind| *kind as u32 == code)
    }

    /// Its name in the C ABI.
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
    /// Regions come from `alloc`, where NULL is 'no memory', and go back to `free`; both get `user_data`.
    /// With `supports_coalescing` regions that touch may be merged into one, which goes back as one.
    ///
    /// # Safety
    /// The functions may be called with `user_data` from any thread, until no allocator has them any more,
    /// and do not unwind.
    pub const unsafe fn new(
        user_data: *mut c_void,
        alloc: AllocCallback,
        free: FreeCallback,
        supports_coalescing: bool,
    ) -> Self {
        SubAllocator { user_data, alloc, free, supports_coalescing }
    }
}

/// How an allocator is created. A field left 0 is taken from the environment, else from the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Where regions come from.
    pub backend: BackendKind,
    /// [`ALLOW_GROWTH`] and the others.
    pub flags: u32,
    /// Bytes held from the backend at most; 0 is what there is.
    pub memory_limit: u64,
    /// Of the device's total, if `memory_limit` is 0.
    pub memory_fraction: f64,
    /// Split off a remainder of this share of the limit; 0 is the 128 MiB rule.
    pub fragmentation_fraction: f64,
    /// The first region's size with growth; 0 is 2 MiB.
    pub initial_region_bytes: u64,
    /// How long to wait for another thread's free before failing.
    pub retry_timeout_ms: u32,
    /// For reports; `None` is "bfc".
    pub name: Option<&'a str>,
    /// Only for [`BackendKind::Custom`].
    pub suballocator: Option<SubAllocator>,
}

/// Everything an allocator needs to know, checked.
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    pub(crate) backend: Owned,
    pub(crate) retry: Duration,
    pub(crate) report_failures: bool,
    pub(crate) name: String,
    /// The debug mode.
    pub(crate) guard: bool,
}

impl Options<'_> {
    /// Growth and garbage collection on, everything else from the environment or the default.
    pub fn growing() -> Self {
        Options { flags: ALLOW_GROWTH | GARBAGE_COLLECTION, ..Options::default() }
    }

    /// Fills in what the options, which have been checked, leave open. `default_flags` apply where neither
    /// they nor the environment say anything.
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
            // Only whole granules are mapped, and never more than was allowed.
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

    /// Granules are moved to where a large piece is wanted, so that small ones are in nobody's way; slack inside a
    /// chunk is then the only memory that is lost. A rule that somebody asks for is kept.
    fn splits_always_by_default(&self, backend: &AnyBackend) -> bool {
        backend.get().granules().is_some() && self.fragmentation_fraction == 0.0
    }

    /// Whether they can mean anything at all.
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

    /// The environment counts for what the options leave 0; what is malformed there is ignored.
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

    /// The same under another name.
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
            // Its range is a matter of its limit.
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
            // Both were refused before.
            (BackendKind::Custom, None) | (BackendKind::Auto, _) => {
                return Err(fail!(Error::InvalidArgument, "{} comes to no backend", kind.c_name()));
            }
        };
        Ok(Owned::new(backend))
    }
}

/// Whether the debug mode is possible; if not a warning says why.
fn can_guard(backend: &dyn Backend, timestamps: bool) -> bool {
    let why = if backend.memory().is_none() {
        "libbfc never reads or writes the memory of a suballocator"
    } else if timestamps && backend.order().is_none() {
        // It cannot wait for the work that the stamps are about, as it does on a device.
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
            // Where the machine has the device it is that.
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
