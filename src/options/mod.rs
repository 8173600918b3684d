//! The settings of a new allocator: the caller's options, then the environment, then the defaults.

mod chosen;
mod environment;
mod history;
mod limit;
mod plan;
mod resolution;
mod table;
mod types;
mod values;
mod variables;

pub(crate) use self::history::start_as_set as start_history_as_set;
pub(crate) use self::history::with_stacks_as_set as with_history_stacks;
pub(crate) use self::limit::{Limit, share_of};
pub(crate) use self::resolution::{Resolution, SetVariable};
pub(crate) use self::table::Value;
pub use self::types::{BackendKind, Flags, GrowthPolicy, HOST_DEVICE, Options, PINNED_DEVICE, SubAllocator};
pub(crate) use self::types::{Chosen, DEFAULT_FLAGS, LAST_CUDA_DEVICE};

use self::chosen::{Dropped, reason};
use self::environment::{Warnings, ignored, setting};
use self::values::switch;
use self::variables as names;
use crate::backend::{AnyBackend, Cuda, CudaVmm, Custom, Host, HostVmm, Owned, open_preferring_vmm};
use crate::error::{ErrorKind, fail};
use crate::log::{self, Level};
use crate::sys::random;
use bfc_core::arena::{Placement, RegionGrowth, Reuse, Settings};
use bfc_core::lifetimes::Lifetimes;
use bfc_core::plan::PlacementPlan;
use bfc_hostmem::{HostMemoryExhausted, try_box_with};
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
    pub(crate) placement: Placement,
    /// The share of the backend's total memory that the limit follows, if it does.
    pub(crate) limit_share: Option<f64>,
}

#[cfg(test)]
impl Resolved {
    /// Returns settings without retry, trim, plan and debug mode.
    pub(crate) fn with_settings(settings: Settings, backend: Owned, name: &str) -> Self {
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
            placement: Placement::BestFit,
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

/// Out of line, because the compiler may build the table on the stack.
#[inline(never)]
fn new_lifetimes() -> Result<Box<Lifetimes>, HostMemoryExhausted> {
    try_box_with(Lifetimes::new)
}

impl Options<'_> {
    /// Fills in the settings that the options leave open. The options must have been checked. `default_flags` apply
    /// where neither the options nor the environment set anything.
    #[inline(never)]
    pub(crate) fn resolve(&self, device: i32, default_flags: Flags) -> Result<Resolved, ErrorKind> {
        let chosen = self.choose(default_flags, Warnings::Logged);
        chosen.check(self)?;
        let name = self.name.unwrap_or("bfc");
        let mut owned = String::new();
        owned.try_reserve_exact(name.len()).map_err(HostMemoryExhausted::from)?;
        owned.push_str(name);
        let (backend, kind) = chosen.open_backend(device)?;
        let Limit { bytes: mut limit, share } = chosen.options.choose_limit(backend.get())?;
        if let Some(granules) = backend.get().granules() {
            // Only whole granules are mapped, and never more than allowed.
            limit -= limit % granules.range().granule;
        }
        let (chosen, plan) = chosen.in_force(self, kind)?;
        let Chosen { options, guard, report_on_failure: report_failures, trim_after, .. } = chosen;
        Ok(Resolved {
            guard: guard.0,
            placement: match plan {
                Some(plan) => Placement::Plan(plan),
                None if chosen.has(Flags::TWO_ENDS) => Placement::TwoEnds(new_lifetimes()?),
                None => Placement::BestFit,
            },
            // Without growth the pool has the memory of its first region.
            limit_share: share.filter(|_| chosen.has(Flags::ALLOW_GROWTH)),
            settings: Settings {
                limit,
                growth: match options.growth_policy {
                    _ if !chosen.has(Flags::ALLOW_GROWTH) => RegionGrowth::Whole,
                    GrowthPolicy::TensorFlow => RegionGrowth::Doubling,
                    _ => RegionGrowth::ByNeed,
                },
                garbage_collection: chosen.has(Flags::GARBAGE_COLLECTION),
                split_always: chosen.has(Flags::SPLIT_ALWAYS),
                fragmentation_fraction: options.fragmentation_fraction,
                initial_region: options.initial_region_bytes,
                reuse: match chosen.has(Flags::TIMESTAMPS) {
                    false => Reuse::Streams,
                    true if chosen.has(Flags::QUARANTINE) => Reuse::Quarantine,
                    true => Reuse::Stamps,
                },
                coalesce_regions: backend.get().coalesces(),
                events: backend.get().order().is_some(),
                releases_at_once: !backend.get().may_synchronize(),
                seed: hash_seed_as_set(Warnings::Logged),
            },
            backend,
            retry: Duration::from_millis(options.retry_timeout_ms.into()),
            trim_after: (!trim_after.is_zero()).then_some(trim_after),
            report_failures,
            name: owned,
        })
    }

    /// Returns the backend of the caller's own functions.
    fn custom(&self) -> Result<Custom, ErrorKind> {
        let missing = || fail!(ErrorKind::InvalidArgument, "{} needs a suballocator", self.backend.c_name());
        let functions = self.suballocator.ok_or_else(missing)?;
        Ok(Custom {
            user_data: functions.user_data,
            alloc: functions.alloc,
            free: functions.free,
            coalesces: functions.supports_coalescing,
        })
    }
}

impl<'a> Chosen<'a> {
    /// Opens the backend. Returns which one it is, where the device decides.
    #[inline(never)]
    fn open_backend(&self, device: i32) -> Result<(Owned, BackendKind), ErrorKind> {
        let options = &self.options;
        let kind = options.kind_on(device)?;
        let backend = match kind {
            BackendKind::Host => {
                AnyBackend::Host(Host::open(self.huge_pages, self.numa).populating(self.populate))
            }
            // The range depends on the limit.
            BackendKind::HostVmm => AnyBackend::HostVmm(HostVmm::open(options.bytes_on(&Host::default())?)?),
            BackendKind::Cuda => AnyBackend::Cuda(Cuda::open(device)?),
            BackendKind::CudaVmm => {
                AnyBackend::CudaVmm(CudaVmm::open(device, |cuda| options.bytes_on(cuda))?)
            }
            BackendKind::PreferCudaVmm => open_preferring_vmm(device, |cuda| options.bytes_on(cuda))?,
            BackendKind::Custom => AnyBackend::Custom(options.custom()?),
            // It was rejected before.
            BackendKind::Auto => {
                return Err(fail!(
                    ErrorKind::InvalidArgument,
                    "cannot resolve {} to a backend",
                    kind.c_name()
                ));
            }
        };
        let kind = match backend {
            AnyBackend::Cuda(_) => BackendKind::Cuda,
            AnyBackend::CudaVmm(_) => BackendKind::CudaVmm,
            _ => kind,
        };
        Ok((Owned::new(backend), kind))
    }

    /// Returns the settings that have an effect on a backend, and the plan that they name. Warns of what is ignored that a
    /// program relies on.
    fn in_force(
        &self,
        given: &Options<'_>,
        backend: BackendKind,
    ) -> Result<(Chosen<'a>, Option<Box<PlacementPlan>>), ErrorKind> {
        let mut chosen = *self;
        let dropped = chosen.drop_ineffective(backend);
        warn_of_dropped(&dropped, self, given);
        let plan = chosen.read_plan(given)?;
        if plan.is_none() && chosen.options.plan.is_some() {
            // One that cannot be read excludes nothing.
            chosen = *self;
            chosen.options.plan = None;
            chosen.drop_ineffective(backend);
        }
        Ok((chosen, plan))
    }
}

fn warn_of_dropped(dropped: &Dropped, chosen: &Chosen<'_>, given: &Options<'_>) {
    if let Some(why) = reason(dropped, &names::QUARANTINE) {
        log::emit(Level::Warn, format_args!("BFC_QUARANTINE is ignored: {why}"));
    }
    if let Some(why) = reason(dropped, &names::DEBUG) {
        log::emit(Level::Warn, format_args!("BFC_DEBUG=guard is ignored for this allocator: {why}"));
    }
    if let (Some(why), Some(path)) = (reason(dropped, &names::PLAN), chosen.options.plan) {
        if given.plan.is_some() {
            log::emit(Level::Warn, format_args!("the plan {} is not followed: {why}", path.display()));
        } else {
            ignored(&names::PLAN, plan::text_of(path), Warnings::Logged, &format_args!(": {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::values::{fraction, is_fraction};
    use super::*;

    #[test]
    fn auto_is_never_silently_host_memory() {
        let open = |options: Options<'_>, device| {
            options.choose(Flags::empty(), Warnings::Silent).open_backend(device).map(|(backend, _)| backend)
        };
        let choose = |device| open(Options::default(), device);
        assert!(matches!(choose(256).as_deref(), Ok(AnyBackend::Host(_))));
        for device in [0, 1, LAST_CUDA_DEVICE, 257] {
            // On a machine with this device, the backend is CUDA.
            let chosen = choose(device);
            let fine =
                matches!(chosen.as_deref(), Err(ErrorKind::BackendUnavailable) | Ok(AnyBackend::Cuda(_)));
            assert!(fine, "{device}");
        }
        assert!(matches!(choose(257), Err(ErrorKind::BackendUnavailable)));
        crate::error::with_last_error(|words| assert!(words.contains("pinned"), "{words}"));
        for device in [258, 1023] {
            assert!(matches!(choose(device), Err(ErrorKind::InvalidArgument)), "{device}");
        }
        for device in [256, 257, 258, 1023] {
            let cuda = Options { backend: BackendKind::Cuda, ..Options::default() };
            assert!(matches!(open(cuda, device), Err(ErrorKind::InvalidArgument)), "{device}");
        }
    }

    #[test]
    fn the_recommended_options_are_those_of_an_allocator_without_options() {
        let settings = |options: Options<'_>, default_flags| {
            let resolved = options.resolve(HOST_DEVICE, default_flags).unwrap().settings;
            Settings { seed: 0, ..resolved }
        };
        let [recommended, without] =
            [settings(Options::recommended(), Flags::empty()), settings(Options::default(), DEFAULT_FLAGS)];
        assert_eq!(format!("{recommended:?}"), format!("{without:?}"));
        assert_eq!((without.growth, without.split_always), (RegionGrowth::ByNeed, true));
    }

    #[test]
    fn fractions_are_from_0_to_1() {
        for value in [f64::NAN, -0.1, 1.1, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_fraction(value));
            let options = Options { memory_fraction: value, memory_limit: 1, ..Options::default() };
            assert_eq!(options.check(), Err(ErrorKind::InvalidArgument));
        }
        assert_eq!((fraction("0.5"), fraction("nan"), fraction("2")), (Some(0.5), None, None));
    }
}
