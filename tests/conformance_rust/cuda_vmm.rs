//! The conformance suite over `BFC_BACKEND_CUDA_VMM`, on the simulated driver (a simulation, and no device).

use crate::common::*;
use crate::conformance::{Fixture, cuda::Devices};

struct CudaVmm(Devices);

impl Fixture for CudaVmm {
    const GRANULE: u64 = 2 * MIB;
    const ONE_REGION: bool = true;

    devices!(CudaVmm, BFC_BACKEND_CUDA_VMM);
}

conformance!(CudaVmm);
guard_conformance!(CudaVmm);
