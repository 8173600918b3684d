//! The options that a caller gives, and the settings of an allocator.

use super::values::is_fraction;
use crate::backend::{AllocCallback, FreeCallback, HugePages};
use crate::error::{ErrorKind, fail};
use crate::sys::numa::Placement;
use std::ffi::c_void;
use std::path::Path;
use std::time::Duration;

bitflags::bitflags! {
    /// How an allocator places, grows and reuses. The bits are those of the C ABI.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u32 {
        /// Obtain regions on demand. Without this flag, one region of the whole limit is obtained at the first
        /// allocation.
        const ALLOW_GROWTH = 1 << 0;
        /// Release wholly free regions before a request fails.
        const GARBAGE_COLLECTION = 1 << 1;
        /// Stamp frees. See the safe frontier.
        const TIMESTAMPS = 1 << 2;
        /// Split off any remainder of 256 bytes or more.
        const SPLIT_ALWAYS = 1 << 3;
        /// With [`Flags::TIMESTAMPS`]: never hand out a chunk whose stamp is not safe.
        const QUARANTINE = 1 << 4;
        /// Learn which sizes are usually freed soon, and take these from the upper end of a free chunk. Includes
        /// [`Flags::SPLIT_ALWAYS`]. No effect with [`Flags::TIMESTAMPS`], on a virtual range, with a plan, and from
        /// the second stream on.
        const TWO_ENDS = 1 << 5;
    }
}

/// The flags of an allocator that is created without options, if the environment says nothing else. On the recorded
/// programs a pool that splits every remainder holds less (docs/algorithm.md, Growth), and callers without options do
/// not expect TensorFlow's placements.
pub(crate) const DEFAULT_FLAGS: Flags =
    Flags::ALLOW_GROWTH.union(Flags::GARBAGE_COLLECTION).union(Flags::SPLIT_ALWAYS);

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
    /// What `BFC_BACKEND` says. Without it `CudaVmm` where a program loses nothing by it, and otherwise `Cuda`. On the
    /// host's ordinal the same as `Auto`.
    PreferCudaVmm = 6,
}

impl BackendKind {
    /// Parses a backend's name, in any case, with `-` or `_`. The custom backend cannot be
    /// named.
    pub(super) fn named(text: &str) -> Option<Self> {
        use BackendKind::*;
        let same = |letter: u8| if letter == b'-' { b'_' } else { letter.to_ascii_lowercase() };
        [Auto, Host, Cuda, CudaVmm, HostVmm]
            .into_iter()
            .find(|kind| kind.name().bytes().eq(text.bytes().map(same)))
    }

    /// Returns the backend with a number of the C ABI.
    pub fn from_code(code: u32) -> Option<Self> {
        use BackendKind::*;
        [Auto, Host, Custom, Cuda, CudaVmm, HostVmm, PreferCudaVmm]
            .into_iter()
            .find(|kind| *kind as u32 == code)
    }

    /// Returns the name, as in the environment and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BackendKind::Auto => "auto",
            BackendKind::Host => "host",
            BackendKind::Custom => "custom",
            BackendKind::Cuda => "cuda",
            BackendKind::CudaVmm => "cuda_vmm",
            BackendKind::HostVmm => "host_vmm",
            BackendKind::PreferCudaVmm => "prefer_cuda_vmm",
        }
    }

    /// Returns the name in the C ABI.
    pub(super) fn c_name(self) -> &'static str {
        match self {
            BackendKind::Auto => "BFC_BACKEND_AUTO",
            BackendKind::Host => "BFC_BACKEND_HOST",
            BackendKind::Custom => "BFC_BACKEND_CUSTOM",
            BackendKind::Cuda => "BFC_BACKEND_CUDA",
            BackendKind::CudaVmm => "BFC_BACKEND_CUDA_VMM",
            BackendKind::HostVmm => "BFC_BACKEND_HOST_VMM",
            BackendKind::PreferCudaVmm => "BFC_BACKEND_PREFER_CUDA_VMM",
        }
    }

    /// Returns whether the environment may choose.
    pub(super) fn is_open(self) -> bool {
        matches!(self, BackendKind::Auto | BackendKind::PreferCudaVmm)
    }
}

/// How the sizes of regions are chosen with growth. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum GrowthPolicy {
    /// What `BFC_GROWTH` says. Without it `TensorFlow` where the caller set [`Flags::ALLOW_GROWTH`], and otherwise `Need`.
    #[default]
    Default = 0,
    /// Regions double, as in TensorFlow.
    TensorFlow = 1,
    /// Regions are as large as needed, with at most a sixteenth of the pool beyond it.
    Need = 2,
    /// What `BFC_GROWTH` says, and without it `Need`.
    PreferNeed = 3,
}

impl GrowthPolicy {
    /// Returns the policy with a number of the C ABI.
    pub fn from_code(code: u32) -> Option<Self> {
        use GrowthPolicy::*;
        [Default, TensorFlow, Need, PreferNeed].into_iter().find(|policy| *policy as u32 == code)
    }

    /// Parses a name, in any case.
    pub(super) fn named(text: &str) -> Option<Self> {
        use GrowthPolicy::*;
        [TensorFlow, Need].into_iter().find(|policy| text.eq_ignore_ascii_case(policy.name()))
    }

    /// Returns the name, as in the environment and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GrowthPolicy::Default => "default",
            GrowthPolicy::TensorFlow => "tensorflow",
            GrowthPolicy::Need | GrowthPolicy::PreferNeed => "need",
        }
    }

    /// Returns whether the environment may choose.
    pub(super) fn is_open(self) -> bool {
        matches!(self, GrowthPolicy::Default | GrowthPolicy::PreferNeed)
    }
}

/// The ordinal of host memory.
pub const HOST_DEVICE: i32 = 256;
/// The ordinal of pinned host memory.
pub const PINNED_DEVICE: i32 = 257;
/// The last ordinal of a CUDA device. The first is 0.
pub(crate) const LAST_CUDA_DEVICE: i32 = 255;

/// The caller's functions for [`BackendKind::Custom`].
#[derive(Clone, Copy, Debug)]
pub struct SubAllocator {
    pub(super) user_data: *mut c_void,
    pub(super) alloc: AllocCallback,
    pub(super) free: FreeCallback,
    pub(super) supports_coalescing: bool,
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

/// The options of a new allocator. A field left 0 is taken from the environment, or else from the default. Most programs
/// begin with [`Options::recommended`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options<'a> {
    /// The source of regions.
    pub backend: BackendKind,
    /// How it places, grows and reuses.
    pub flags: Flags,
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
    /// How the sizes of regions are chosen with growth.
    pub growth_policy: GrowthPolicy,
    /// The file with planned placements, as `bfc plan` writes it. An empty path is no plan, whatever the environment says.
    pub plan: Option<&'a Path>,
}

impl Options<'_> {
    /// Returns options for most programs, the same as those of an allocator without options: growth by need unless
    /// `BFC_GROWTH` says otherwise, garbage collection, and every remainder split off. `Options::default()` has no
    /// growth: the first allocation takes one region of the whole limit.
    pub fn recommended() -> Self {
        Options { flags: DEFAULT_FLAGS, growth_policy: GrowthPolicy::PreferNeed, ..Options::default() }
    }

    /// Returns options with growth and garbage collection on. Regions double and small remainders are not split off, as
    /// in TensorFlow: [`Options::recommended`] holds less.
    pub fn growing() -> Self {
        Options { flags: Flags::ALLOW_GROWTH | Flags::GARBAGE_COLLECTION, ..Options::default() }
    }

    /// Returns the backend that the options mean on a device.
    pub(super) fn kind_on(&self, device: i32) -> Result<BackendKind, ErrorKind> {
        let backend = match self.backend {
            BackendKind::PreferCudaVmm if device > LAST_CUDA_DEVICE => BackendKind::Auto,
            backend => backend,
        };
        Ok(match (backend, device) {
            (BackendKind::Auto, HOST_DEVICE) => BackendKind::Host,
            (BackendKind::Auto, 0..=LAST_CUDA_DEVICE) => BackendKind::Cuda,
            (BackendKind::Auto, PINNED_DEVICE) => {
                return Err(fail!(
                    ErrorKind::BackendUnavailable,
                    "pinned host memory (ordinal 257) is not in this version of libbfc; \
                     name BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM"
                ));
            }
            (BackendKind::Auto, _) => {
                return Err(fail!(
                    ErrorKind::InvalidArgument,
                    "BFC_BACKEND_AUTO has no meaning on ordinal {device}, which is the caller's to use: name a backend"
                ));
            }
            (kind @ (BackendKind::Cuda | BackendKind::CudaVmm), _) if device > LAST_CUDA_DEVICE => {
                let name = kind.c_name();
                return Err(fail!(
                    ErrorKind::InvalidArgument,
                    "{name} on ordinal {device}: it goes with the ordinals 0 to {LAST_CUDA_DEVICE}, which are CUDA's devices; name \
                     BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM here"
                ));
            }
            (kind, _) => kind,
        })
    }

    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), ErrorKind> {
        let unknown = self.flags.bits() & !Flags::all().bits();
        if unknown != 0 {
            return Err(fail!(
                ErrorKind::InvalidArgument,
                "unknown flags {unknown:#x} in bfc_options_t: use a newer libbfc, or leave them unset"
            ));
        }
        if self.flags.contains(Flags::QUARANTINE) && !self.flags.contains(Flags::TIMESTAMPS) {
            return Err(fail!(ErrorKind::InvalidArgument, "BFC_QUARANTINE needs BFC_TIMESTAMPS"));
        }
        for (name, value) in [
            ("memory_fraction", self.memory_fraction),
            ("fragmentation_fraction", self.fragmentation_fraction),
        ] {
            if !is_fraction(value) {
                return Err(fail!(ErrorKind::InvalidArgument, "{name} is {value}: it must be from 0 to 1"));
            }
        }
        if self.suballocator.is_some() && self.backend != BackendKind::Custom {
            return Err(fail!(
                ErrorKind::InvalidArgument,
                "a suballocator goes with BFC_BACKEND_CUSTOM only: name that backend, or leave suballocator NULL"
            ));
        }
        if self.backend == BackendKind::Custom && self.suballocator.is_none() {
            return Err(fail!(
                ErrorKind::InvalidArgument,
                "BFC_BACKEND_CUSTOM needs a suballocator: set it to a bfc_suballocator_t"
            ));
        }
        Ok(())
    }

    /// Returns the same options with another name and another plan.
    pub(crate) fn with_texts<'b>(self, name: Option<&'b str>, plan: Option<&'b Path>) -> Options<'b> {
        let Self { backend, flags, memory_limit, memory_fraction, fragmentation_fraction, .. } = self;
        let Self { initial_region_bytes, retry_timeout_ms, suballocator, growth_policy, .. } = self;
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
            growth_policy,
            plan,
        }
    }
}

/// The settings of an allocator: the options, and what only the environment sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen<'a> {
    pub(crate) options: Options<'a>,
    pub(super) guard: DebugMode,
    pub(super) report_on_failure: bool,
    /// After which time of rest free memory is given back. 0 is never.
    pub(super) trim_after: Duration,
    pub(super) huge_pages: HugePages,
    pub(super) numa: Option<Placement>,
    pub(super) populate: bool,
}

/// Whether `BFC_DEBUG` has the word `guard`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct DebugMode(pub(super) bool);

impl<'a> Chosen<'a> {
    /// Returns what the options choose alone.
    pub(super) fn of(options: &Options<'a>) -> Self {
        Chosen {
            options: *options,
            guard: DebugMode::default(),
            report_on_failure: false,
            trim_after: Duration::ZERO,
            huge_pages: HugePages::default(),
            numa: None,
            populate: false,
        }
    }

    pub(crate) fn has(&self, flag: Flags) -> bool {
        self.options.flags.contains(flag)
    }

    /// Returns whether that changes the flag.
    pub(super) fn set_flag(&mut self, flag: Flags, is_on: bool) -> bool {
        let before = self.has(flag);
        self.options.flags.set(flag, is_on);
        before != is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(BackendKind::named(text), kind, "{text}");
        }
    }
}
