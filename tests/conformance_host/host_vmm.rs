//! The conformance suite over `BFC_BACKEND_HOST_VMM`.

use crate::common::*;
use crate::conformance::Fixture;

struct HostVmm;

impl Fixture for HostVmm {
    const GRANULE: u64 = 2 * MIB;
    const ONE_REGION: bool = true;
    const SURVIVES_FORK: bool = false;
    const DEVICE: bool = false;
    const KNOWS_TOTAL: bool = true;

    fn run(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Self)) {
        crate::conformance::in_process_with(test, variables, || body(&HostVmm));
    }

    fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status> {
        Pool::try_host(limit, |options| {
            options.backend = BFC_BACKEND_HOST_VMM;
            change(options);
        })
    }

    tokens!();
}

conformance!(HostVmm);
guard_conformance!(HostVmm);
