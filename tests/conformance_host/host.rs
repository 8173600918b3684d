//! The conformance suite over `BFC_BACKEND_HOST`.

use crate::common::*;
use crate::conformance::Fixture;

struct Host;

impl Fixture for Host {
    const GRANULE: u64 = 256;
    const ONE_REGION: bool = false;
    const SURVIVES_FORK: bool = true;
    const DEVICE: bool = false;
    const KNOWS_TOTAL: bool = true;

    fn run(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Self)) {
        crate::conformance::in_process_with(test, variables, || body(&Host));
    }

    fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status> {
        Pool::try_host(limit, change)
    }

    tokens!();
}

conformance!(Host);
guard_conformance!(Host);
