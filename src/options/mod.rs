//! The settings of a new allocator: the caller's options, then the environment, then the defaults.

mod environment;
mod history;
mod limit;
mod plan;
mod resolution;
mod types;
mod values;
mod variables;

pub(crate) use self::history::start_as_set as start_history_as_set;
pub(crate) use self::history::with_stacks_as_set as with_history_stacks;
pub(crate) use self::limit::{Limit, share_of};
pub(crate) use self::resolution::{Resolution, SetVariable};
pub use self::types::{
    ALLOW_GROWTH, BackendKind, GARBAGE_COLLECTION, GrowthPolicy, HOST_DEVICE, Options, PINNED_DEVICE,
    QUARANTINE, SPLIT_ALWAYS, SubAllocator, TIMESTAMPS, TWO_ENDS,
};
pub(crate) use self::types::{DEFAULT_FLAGS, LAST_CUDA_DEVICE};

use self::environment::{Warnings, guard_wanted, setting, trim_after};
use self::values::switch;
use self::variables as names;
use crate::backend::{AnyBackend, Backend, Cuda, CudaVmm, Custom, Host, HostVmm, Owned, open_preferring_vmm};
use crate::core::arena::{RegionGrowth, Settings};
use crate::core::plan::PlacementPlan;
use crate::error::{Error, fail};
use crate::log::{self, Level};
use crate::sys::random;
use std::time::Duration;

/// The resolved and checked settings of an allocator.
pub(crate) struct Resolved {
    pub(crate) settings: Settings,
    pub(crate) backend: Owned,
    pub(crate) retry: Duration,
    /// After which time of rest free memory is given back.
    pub(crate) trim_after: Option<Duration>,
    pub(crate) report_failures: bool,
    pub(crate) name: String,
    /// Whether the debug mode is on.
    pub(crate) guard: bool,
    pub(crate) plan: Option<Box<PlacementPlan>>,
    /// Whether it is learnt which sizes are short-lived.
    pub(crate) two_ends: bool,
    /// The share of the backend's total memory that the limit follows, if it does.
    pub(crate) limit_share: Option<f64>,
}

#[cfg(test)]
impl Resolved {
    /// Returns settings without retry, trim, plan and debug mode.
    pub(crate) fn plain(settings: Settings, backend: Owned, name: &str) -> Self {
        let (retry, name) = (Duration::ZERO, name.to_owned());
        let (report_failures, guard) = (false, false);
        Resolved {
            settings,
            backend,
            retry,
            trim_after: None,
            report_failures,
            name,
            guard,
            plan: None,
            two_ends: false,
            limit_share: None,
        }
    }
}

/// Returns whether the statistics of the process are published (`BFC_PUBLISH`).
#[inline(never)]
pub(crate) fn is_publishing_wanted() -> bool {
    setting(&names::PUBLISH, Warnings::Logged, switch).unwrap_or(false)
}

/// Returns a seed for the hashes of names in this process. A malformed `BFC_HASH_SEED` is reported with the first
/// allocator.
#[inline(never)]
pub(crate) fn hash_seed_of_process() -> u64 {
    hash_seed_as_set(Warnings::Silent)
}

fn hash_seed_as_set(warnings: Warnings) -> u64 {
    setting(&names::HASH_SEED, warnings, |text| text.parse().ok()).unwrap_or_else(random)
}

impl Options<'_> {
    /// Fills in the settings that the options leave open. The options must have been checked. `default_flags` apply
    /// where neither the options nor the environment set anything.
    #[inline(never)]
    pub(crate) fn resolve(&self, device: i32, default_flags: u32) -> Result<Resolved, Error> {
        let options = self.with_environment(default_flags, Warnings::Logged);
        let flags = options.flags;
        let name = self.name.unwrap_or("bfc");
        let mut owned = String::new();
        owned.try_reserve_exact(name.len()).map_err(crate::sys::HostMemoryExhausted::from)?;
        owned.push_str(name);
        let backend = options.choose_backend(device)?;
        let Limit { bytes: mut limit, share } = options.choose_limit(backend.get())?;
        if let Some(granules) = backend.get().granules() {
            // Only whole granules are mapped, and never more than allowed.
            limit -= limit % granules.range().granule;
        }
        let timestamps = flags & TIMESTAMPS != 0;
        let guard = guard_wanted(Warnings::Logged) && can_guard(backend.get(), timestamps);
        let plan = self.read_plan(timestamps, guard)?;
        let is_free_to_choose = !timestamps && plan.is_none() && backend.get().granules().is_none();
        Ok(Resolved {
            guard,
            plan,
            two_ends: flags & TWO_ENDS != 0 && is_free_to_choose,
            // Without growth the pool has the memory of its first region.
            limit_share: share.filter(|_| flags & ALLOW_GROWTH != 0),
            settings: Settings {
                limit,
                growth: match options.growth_policy {
                    _ if flags & ALLOW_GROWTH == 0 => RegionGrowth::Whole,
                    GrowthPolicy::TensorFlow => RegionGrowth::Doubling,
                    _ => RegionGrowth::ByNeed,
                },
                garbage_collection: flags & GARBAGE_COLLECTION != 0,
                split_always: flags & SPLIT_ALWAYS != 0 || options.splits_always_by_default(&backend),
                fragmentation_fraction: options.fragmentation_fraction,
                initial_region: options.initial_region_bytes,
                timestamps,
                quarantine: flags & QUARANTINE != 0,
                coalesce_regions: backend.get().coalesces(),
                events: backend.get().order().is_some(),
                seed: hash_seed_as_set(Warnings::Logged),
            },
            backend,
            retry: Duration::from_millis(options.retry_timeout_ms.into()),
            trim_after: trim_after(Warnings::Logged),
            report_failures: setting(&names::REPORT_ON_FAILURE, Warnings::Logged, switch).unwrap_or(false),
            name: owned,
        })
    }

    /// Granules can be moved to where a large piece is needed, so small free pieces do no harm, and slack inside chunks
    /// would be the only lost memory. A rule set explicitly is kept.
    fn splits_always_by_default(&self, backend: &AnyBackend) -> bool {
        backend.get().granules().is_some() && self.fragmentation_fraction == 0.0
    }

    #[inline(never)]
    fn choose_backend(&self, device: i32) -> Result<Owned, Error> {
        let kind = self.kind_on(device)?;
        let backend = match (kind, self.suballocator) {
            (BackendKind::Host, _) => AnyBackend::Host(environment::host(Warnings::Logged)),
            // The range depends on the limit.
            (BackendKind::HostVmm, _) => {
                AnyBackend::HostVmm(HostVmm::open(self.choose_limit(&Host::default())?.bytes)?)
            }
            (BackendKind::Cuda, _) => AnyBackend::Cuda(Cuda::open(device)?),
            (BackendKind::CudaVmm, _) => {
                AnyBackend::CudaVmm(CudaVmm::open(device, |cuda| self.bytes_on(cuda))?)
            }
            (BackendKind::PreferCudaVmm, _) => open_preferring_vmm(device, |cuda| self.bytes_on(cuda))?,
            (BackendKind::Custom, Some(functions)) => AnyBackend::Custom(Custom {
                user_data: functions.user_data,
                alloc: functions.alloc,
                free: functions.free,
                coalesces: functions.supports_coalescing,
            }),
            // Both were rejected before.
            (BackendKind::Custom, None) | (BackendKind::Auto, _) => {
                return Err(fail!(Error::InvalidArgument, "cannot resolve {} to a backend", kind.c_name()));
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
        "this backend cannot tell whether work still uses memory that was freed with BFC_TIMESTAMPS"
    } else {
        return true;
    };
    log::emit(Level::Warn, format_args!("BFC_DEBUG=guard is ignored for this allocator: {why}"));
    false
}

#[cfg(test)]
mod tests {
    use super::values::{fraction, is_fraction};
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
    fn the_recommended_options_are_those_of_an_allocator_without_options() {
        let settings = |options: Options<'_>, default_flags| {
            let resolved = options.resolve(HOST_DEVICE, default_flags).unwrap().settings;
            Settings { seed: 0, ..resolved }
        };
        let [recommended, without] =
            [settings(Options::recommended(), 0), settings(Options::default(), DEFAULT_FLAGS)];
        assert_eq!(format!("{recommended:?}"), format!("{without:?}"));
        assert_eq!((without.growth, without.split_always), (RegionGrowth::ByNeed, true));
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
