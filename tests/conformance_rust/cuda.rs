//! The conformance suite over `BFC_BACKEND_CUDA`, on the simulated driver (a simulation, and no device).

use crate::common::*;
use crate::conformance::{Fixture, cuda::Devices};

struct Cuda(Devices);

impl Fixture for Cuda {
    const GRANULE: u64 = 256;
    const ONE_REGION: bool = false;

    devices!(Cuda, BFC_BACKEND_CUDA);
}

conformance!(Cuda);
guard_conformance!(Cuda);
