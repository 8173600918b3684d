//! What an allocator is created with: the caller's options, then the environment, then the defaults.

use crate::backend::{AllocCallback, AnyBackend, Custom, FreeCallback, Host, HostVmm, Owned};
use crate::core::arena::Settings;
use crate::core::units::round_down;
use crate::error::{Error, fail};
use crate::log::{self, Level};
use crate::sys::env;
use crate::sys::host::memory_total;
use std::ffi::{CStr, c_void};
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
}

impl Options<'_> {
    /// Growth and garbage collection on, everything else from the environment or the default.
    pub fn growing() -> Self {
        Options { flags: ALLOW_GROWTH | GARBAGE_COLLECTION, ..Options::default() }
    }

    /// Fills in what the options, which have been checked, leave open. `default_flags` apply where neither
    /// they nor the environment say anything.
    pub(crate) fn resolve(&self, device: i32, default_flags: u32) -> Result<Resolved, Error> {
        let options = self.with_environment(default_flags);
        let flags = options.flags;
        let backend = options.choose_backend(device)?;
        let mut limit = options.choose_limit(backend.get().total_memory())?;
        if let Some(granules) = backend.get().granules() {
            // Only whole granules are mapped, and never more than was allowed.
            limit -= limit % granules.range().granule;
        }
        let name = self.name.unwrap_or("bfc");
        let mut owned = String::new();
        owned.try_reserve_exact(name.len()).map_err(crate::sys::HostMemoryExhausted::from)?;
        owned.push_str(name);
        Ok(Resolved {
            settings: Settings {
                limit,
                growth: flags & ALLOW_GROWTH != 0,
                garbage_collection: flags & GARBAGE_COLLECTION != 0,
                split_always: flags & SPLIT_ALWAYS != 0 || options.splits_always_by_default(&backend),
                fragmentation_fraction: options.fragmentation_fraction,
                initial_region: options.initial_region_bytes,
                timestamps: flags & TIMESTAMPS != 0,
                quarantine: flags & QUARANTINE != 0,
                coalesce_regions: backend.get().coalesces(),
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

    fn choose_backend(&self, device: i32) -> Result<Owned, Error> {
        let kind = match (self.backend, device) {
            (BackendKind::Auto, 256) => BackendKind::Host,
            (BackendKind::Auto, 0..=255) => BackendKind::Cuda,
            (BackendKind::Auto, 257) => {
                return Err(fail!(
                    Error::BackendUnavailable,
                    "pinned host memory (ordinal 257) needs CUDA, which this version does not support yet; \
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
            (BackendKind::HostVmm, _) => {
                AnyBackend::HostVmm(HostVmm::open(self.choose_limit(Some(memory_total()))?)?)
            }
            (BackendKind::Custom, Some(functions)) => AnyBackend::Custom(Custom {
                user_data: functions.user_data,
                alloc: functions.alloc,
                free: functions.free,
                coalesces: functions.supports_coalescing,
            }),
            _ => {
                return Err(fail!(
                    Error::BackendUnavailable,
                    "{} is not in this version of libbfc; name BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM (or set \
                     BFC_BACKEND=host) to run without a device",
                    kind.c_name()
                ));
            }
        };
        Ok(Owned::new(backend))
    }

    /// `total` is how much there is, if the backend knows.
    fn choose_limit(&self, total: Option<u64>) -> Result<u64, Error> {
        if self.memory_limit != 0 {
            return Ok(self.memory_limit);
        }
        let growth = self.flags & ALLOW_GROWTH != 0;
        match total {
            Some(total) if self.memory_fraction > 0.0 => Ok((total as f64 * self.memory_fraction) as u64),
            Some(total) => Ok(total),
            None if self.memory_fraction > 0.0 => Err(fail!(
                Error::InvalidArgument,
                "memory_fraction: a custom backend does not know its total; give memory_limit"
            )),
            // The callbacks say when there is no more.
            None if growth => Ok(round_down(u64::MAX)),
            None => Err(fail!(
                Error::InvalidArgument,
                "a custom backend without BFC_ALLOW_GROWTH needs memory_limit: the first region is all of it"
            )),
        }
    }
}

fn environment_flags(default: u32) -> u32 {
    let mut flags = default;
    for (name, bit) in [
        (c"BFC_ALLOW_GROWTH", ALLOW_GROWTH),
        (c"BFC_GARBAGE_COLLECTION", GARBAGE_COLLECTION),
        (c"BFC_TIMESTAMPS", TIMESTAMPS),
        (c"BFC_SPLIT_ALWAYS", SPLIT_ALWAYS),
        (c"BFC_QUARANTINE", QUARANTINE),
    ] {
        match flag(name) {
            Some(true) => flags |= bit,
            Some(false) => flags &= !bit,
            None => {}
        }
    }
    if flags & QUARANTINE != 0 && flags & TIMESTAMPS == 0 {
        log::emit(Level::Warn, format_args!("BFC_QUARANTINE is ignored: it needs BFC_TIMESTAMPS=1"));
        flags &= !QUARANTINE;
    }
    flags
}

/// How many characters of a malformed value its warning shows.
const LONGEST_SHOWN: usize = 100;

/// A variable's value; a malformed one is ignored with a warning.
fn setting<T>(name: &CStr, wanted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    env::with(name, |text| {
        let parsed = parse(text.trim());
        if parsed.is_none() {
            let name = name.to_str().unwrap_or_default();
            // The advice must not be cut off behind a value without end.
            let dots = if text.chars().nth(LONGEST_SHOWN).is_some() { "..." } else { "" };
            log::emit(
                Level::Warn,
                format_args!("{name}={text:.LONGEST_SHOWN$}{dots} is ignored: it must be {wanted}"),
            );
        }
        parsed
    })?
}

fn flag(name: &CStr) -> Option<bool> {
    setting(name, "1 or 0 (or true, false, on, off, yes, no)", |text| {
        let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match () {
            () if is(&["1", "true", "on", "yes"]) => Some(true),
            () if is(&["0", "false", "off", "no"]) => Some(false),
            () => None,
        }
    })
}

/// The end of its name in the C ABI, in any case, with `-` or `_`. One with functions cannot be named.
fn backend_named(text: &str) -> Option<BackendKind> {
    use BackendKind::*;
    let same = |letter: u8| if letter == b'-' { b'_' } else { letter.to_ascii_uppercase() };
    [Auto, Host, Cuda, CudaVmm, HostVmm]
        .into_iter()
        .find(|kind| kind.c_name().bytes().skip("BFC_BACKEND_".len()).eq(text.bytes().map(same)))
}

fn is_fraction(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&value| is_fraction(value))
}

/// `8GiB`, `512 MB`, `1.5g`, `4096`: binary units with and without the `i`, as people write them.
fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let letters = unit.strip_suffix(['b', 'B']).unwrap_or(unit);
    let letters = letters.strip_suffix(['i', 'I']).unwrap_or(letters);
    let shift = ["", "k", "m", "g", "t"].iter().position(|name| letters.eq_ignore_ascii_case(name))? * 10;
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
            (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("8 gb", 8 << 30),
            ("512M", 512 << 20),
            ("1.5g", 3 << 29),
            ("2TiB", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "GiB", "8XiB", "-1", "1e9", "99999999999999999999", "20000000T", "1.2.3", "nan"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn auto_is_never_silently_host_memory() {
        let choose = |device| Options::default().choose_backend(device);
        assert!(matches!(choose(256).as_deref(), Ok(AnyBackend::Host(_))));
        for device in [0, 1, 255, 257] {
            assert!(matches!(choose(device), Err(Error::BackendUnavailable)), "{device}");
        }
        crate::error::with_last_error(|words| assert!(words.contains("pinned"), "{words}"));
        for device in [258, 1023] {
            assert!(matches!(choose(device), Err(Error::InvalidArgument)), "{device}");
        }
    }

    #[test]
    fn backends_by_name() {
        for (text, kind) in [
            ("host", Some(BackendKind::Host)),
            ("CUDA", Some(BackendKind::Cuda)),
            ("cuda-vmm", Some(BackendKind::CudaVmm)),
            ("Host_VMM", Some(BackendKind::HostVmm)),
            ("custom", None),
            ("cuda_", None),
            ("", None),
        ] {
            assert_eq!(backend_named(text), kind, "{text}");
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
