//! The conformance suite over `BFC_BACKEND_CUSTOM`, with functions that provide real memory.

use crate::common::*;
use crate::conformance::Fixture;

struct Custom(Mapped);

impl Fixture for Custom {
    const GRANULE: u64 = 256;
    const ONE_REGION: bool = false;
    const SURVIVES_FORK: bool = false;
    const DEVICE: bool = false;
    const KNOWS_TOTAL: bool = false;

    fn run(_: &str, _: &[(&str, &str)], body: impl FnOnce(&Self)) {
        let custom = Custom(Mapped::default());
        body(&custom);
        assert_eq!(custom.0.held(), 0, "all came back");
    }

    fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status> {
        let (mut wanted, functions) = (options(), self.0.functions());
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUSTOM, limit);
        wanted.suballocator = &functions;
        change(&mut wanted);
        Pool::create(fresh_device(), &wanted, None)
    }

    fn held(&self) -> Option<u64> {
        Some(self.0.held())
    }

    tokens!();
}

conformance!(Custom);
