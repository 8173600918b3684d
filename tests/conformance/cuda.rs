//! Shared by the fixtures of the CUDA backends: devices, their memory and their streams. They are simulated, unless
//! LIBBFC_TESTS_ON_DEVICE selects those of the installed driver.

use super::real::Real;
use super::*;
use crate::common::gpu::Gpu;
use crate::common::simcuda::simulated_with;
use crate::common::{child, guarded};
use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Devices, each used by one pool at a time.
pub struct Devices {
    machine: Machine,
    contexts: Vec<u64>,
    next: AtomicI32,
}

enum Machine {
    Simulated(Gpu),
    Real(Real),
}

impl Devices {
    /// Runs a test in a process of its own with four simulated devices, or the real ones.
    #[track_caller]
    pub fn run(test: &str, variables: &[(&str, &str)], body: impl FnOnce(Devices)) {
        let next = AtomicI32::new(0);
        if std::env::var_os("LIBBFC_TESTS_ON_DEVICE").is_some() {
            if !child::is_child(test) {
                let ended = child::expect_success(test, variables);
                // Bypasses libtest, which shows no output of a passing test, so that readers know that it did not run.
                if let Some(reason) = ended.text.lines().find_map(|line| line.split_once("skipped: ")) {
                    let line = format!("skipped: {}\n", reason.1);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
                return;
            }
            let real = Real::open();
            let contexts = real.enter_all();
            let devices = Devices { machine: Machine::Real(real), contexts, next };
            return body(devices);
        }
        let machine = [("SIMCUDA_DEVICES", "4"), ("SIMCUDA_MEMORY", "1073741824")];
        simulated_with(test, &[&machine, variables].concat(), |sim| {
            let gpu = Gpu::new(sim);
            let mut contexts: Vec<u64> = (0..4).rev().map(|device| gpu.enter(device)).collect();
            contexts.reverse();
            body(Devices { machine: Machine::Simulated(gpu), contexts, next });
            assert_eq!((sim.misuse_texts(), sim.mismatches()), (vec![], 0));
            (0..4).for_each(|device| gpu.leave(device));
            sim.assert_clean();
        });
    }

    /// The number of pools that can exist at the same time.
    pub fn count(&self) -> usize {
        self.contexts.len()
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
        let create = |device| Pool::create(device, &wanted, None);
        match &self.machine {
            // The first one is on device 0, where the streams are.
            Machine::Simulated(_) => create(self.next.fetch_add(1, Relaxed) % self.count() as i32),
            // There may be only one.
            Machine::Real(_) => (0..self.count() as i32)
                .map(create)
                .find(|made| !matches!(made, Err(BFC_ERROR_ALREADY_EXISTS)))
                .unwrap_or(Err(BFC_ERROR_ALREADY_EXISTS)),
        }
    }

    pub fn write(&self, address: u64, bytes: u64, pattern: u64) {
        match &self.machine {
            // The simulated device's memory is memory of this process.
            Machine::Simulated(_) => write_host(address, bytes, pattern),
            Machine::Real(real) if self.enter_device_of(real, address) => {
                real.write(address, bytes, pattern);
                self.enter_thread();
            }
            Machine::Real(_) => write_host(address, bytes, pattern),
        }
    }

    pub fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
        match &self.machine {
            Machine::Simulated(_) => host_holds(address, bytes, pattern),
            Machine::Real(real) if self.enter_device_of(real, address) => {
                let holds = real.holds(address, bytes, pattern);
                self.enter_thread();
                holds
            }
            Machine::Real(_) => host_holds(address, bytes, pattern),
        }
    }

    pub fn write_bytes(&self, address: u64, bytes: &[u8]) {
        match &self.machine {
            Machine::Simulated(_) => guarded::write(address, bytes),
            Machine::Real(real) => {
                assert!(self.enter_device_of(real, address), "memory of a device");
                real.write_bytes(address, bytes);
                self.enter_thread();
            }
        }
    }

    pub fn bytes(&self, address: u64, count: u64) -> Vec<u8> {
        match &self.machine {
            Machine::Simulated(_) => guarded::bytes(address, count).to_vec(),
            Machine::Real(real) => {
                assert!(self.enter_device_of(real, address), "memory of a device");
                let bytes = real.bytes(address, count);
                self.enter_thread();
                bytes
            }
        }
    }

    /// Enters the context of the device of the memory. Returns false for host memory.
    fn enter_device_of(&self, real: &Real, address: u64) -> bool {
        let Some(device) = real.device_of(address) else { return false };
        real.set_current(self.contexts[device as usize]);
        true
    }

    /// Other processes may use memory of a real device too.
    pub fn held(&self) -> Option<u64> {
        match &self.machine {
            Machine::Simulated(gpu) => Some((0..4).map(|device| gpu.sim.used(device)).sum()),
            Machine::Real(_) => None,
        }
    }

    /// Device 0's.
    pub fn enter_thread(&self) {
        match &self.machine {
            Machine::Simulated(gpu) => gpu.set_current(self.contexts[0]),
            Machine::Real(real) => real.set_current(self.contexts[0]),
        }
    }

    pub fn stream(&self) -> u64 {
        match &self.machine {
            Machine::Simulated(gpu) => gpu.stream(false),
            Machine::Real(real) => real.stream(),
        }
    }

    /// Work that takes as long as the test wants.
    pub fn occupy(&self, stream: u64) {
        extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        match &self.machine {
            Machine::Simulated(gpu) => {
                gpu.hold(stream);
                assert_eq!(gpu.sim.launch(pointer(stream), nothing, std::ptr::null_mut()), 0);
            }
            Machine::Real(real) => real.occupy(stream),
        }
    }

    pub fn finish(&self, stream: u64) {
        match &self.machine {
            Machine::Simulated(gpu) => {
                assert_eq!(gpu.sim.release(pointer(stream)), 0);
                gpu.synchronize(stream);
            }
            Machine::Real(real) => real.finish(stream),
        }
    }

    pub fn end_stream(&self, stream: u64) {
        match &self.machine {
            Machine::Simulated(gpu) => gpu.destroy_stream(stream),
            Machine::Real(real) => real.end_stream(stream),
        }
    }
}
