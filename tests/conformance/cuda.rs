//! What the fixtures of the CUDA backends share: the simulated driver, its memory and its streams.

use super::*;
use crate::common::gpu::Gpu;
use crate::common::simcuda::simulated_with;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Simulated devices, each for one pool at a time.
pub struct Devices {
    gpu: Gpu,
    contexts: [u64; 4],
    next: AtomicI32,
}

impl Devices {
    /// Runs a test in a process of its own with four devices.
    pub fn run(test: &str, body: impl FnOnce(Devices)) {
        let variables = [("SIMCUDA_DEVICES", "4"), ("SIMCUDA_MEMORY", "1073741824")];
        simulated_with(test, &variables, |sim| {
            let gpu = Gpu::new(sim);
            let contexts = [3, 2, 1, 0].map(|device| gpu.enter(device));
            body(Devices { gpu, contexts, next: AtomicI32::new(0) });
            assert_eq!((sim.misuse_texts(), sim.mismatches()), (vec![], 0));
            (0..4).for_each(|device| gpu.leave(device));
            sim.assert_clean();
        });
    }

    pub fn try_pool(
        &self,
        backend: u32,
        limit: u64,
        change: &dyn Fn(&mut bfc_options_t),
    ) -> Result<Pool, Status> {
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (backend, limit);
        change(&mut wanted);
        // The first one is on device 0, where the streams are.
        Pool::create(self.next.fetch_add(1, Relaxed) % 4, &wanted, None)
    }

    /// The simulated device's memory is memory of this process.
    pub fn write(&self, address: u64, bytes: u64, pattern: u64) {
        write_host(address, bytes, pattern);
    }

    pub fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
        host_holds(address, bytes, pattern)
    }

    pub fn held(&self) -> u64 {
        (0..4).map(|device| self.gpu.sim.used(device)).sum()
    }

    /// Device 0's.
    pub fn enter_thread(&self) {
        self.gpu.set_current(self.contexts[3]);
    }

    pub fn stream(&self) -> u64 {
        self.gpu.stream(false)
    }

    /// Something that takes as long as the test wants.
    pub fn occupy(&self, stream: u64) {
        extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        self.gpu.hold(stream);
        assert_eq!(self.gpu.sim.launch(pointer(stream), nothing, std::ptr::null_mut()), 0);
    }

    pub fn finish(&self, stream: u64) {
        assert_eq!(self.gpu.sim.release(pointer(stream)), 0);
        self.gpu.synchronize(stream);
    }

    pub fn end_stream(&self, stream: u64) {
        self.gpu.destroy_stream(stream);
    }
}
