//! Real devices, by the driver that this machine has. (Or the simulated one in its place: then it shows that this file
//! works, and nothing of a device.)

use super::places;
use crate::common::pointer;
use crate::common::simcuda::Simulation;
use cuda_sys::*;
use std::collections::HashMap;
use std::env;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub struct Real {
    driver: Driver,
    /// The simulated driver in its place: a host function that waits would stop all of it.
    steered: Option<Simulation>,
    /// What occupies streams, by their handles.
    gates: Mutex<HashMap<u64, Arc<Gate>>>,
}

/// Work that ends when the test says so.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

extern "C" fn pass(_: *mut c_void) {}

/// No test takes that long; whoever panics must not leave the driver waiting for ever.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! cu {
    ($real:expr, $function:ident($($argument:expr),*)) => {{
        let call = $real.driver.$function().unwrap_or_else(|error| panic!("{error:?}"));
        // SAFETY: the arguments are what the driver's manual asks for.
        let code = unsafe { call($($argument),*) };
        assert_eq!(code, CUDA_SUCCESS, "{}", stringify!($function));
    }};
}

impl Real {
    pub fn open() -> Real {
        let steered = env::var_os("SIMCUDA_LIBRARY").map(|_| Simulation::load());
        let driver = Driver::load().unwrap_or_else(|error| panic!("there is no driver: {error:?}"));
        let real = Real { driver, steered, gates: Mutex::default() };
        cu!(real, cuInit(0));
        real
    }

    /// The primary contexts of all devices; that of the first is current.
    pub fn enter_all(&self) -> Vec<u64> {
        let mut count = 0;
        cu!(self, cuDeviceGetCount(&mut count));
        assert!(count > 0, "there is no device");
        let contexts: Vec<u64> = (0..count)
            .map(|device| {
                let mut context = ptr::null_mut();
                cu!(self, cuDevicePrimaryCtxRetain(&mut context, device));
                context as u64
            })
            .collect();
        self.set_current(contexts[0]);
        contexts
    }

    pub fn set_current(&self, context: u64) {
        cu!(self, cuCtxSetCurrent(context as CUcontext));
    }

    pub fn write(&self, address: u64, bytes: u64, pattern: u64) {
        let mut all = vec![0u8; bytes as usize];
        for place in places(address, bytes) {
            let at = (place - address) as usize;
            all[at..at + 8].copy_from_slice(&(pattern ^ place).to_ne_bytes());
        }
        cu!(self, cuMemcpyHtoD_v2(address, all.as_ptr().cast(), all.len()));
    }

    pub fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
        let mut all = vec![0u8; bytes as usize];
        cu!(self, cuMemcpyDtoH_v2(all.as_mut_ptr().cast(), address, all.len()));
        places(address, bytes).all(|place| {
            let at = (place - address) as usize;
            all[at..at + 8] == (pattern ^ place).to_ne_bytes()
        })
    }

    /// None is the host's.
    pub fn device_of(&self, address: u64) -> Option<i32> {
        let mut ordinal = -1i32;
        let out = (&raw mut ordinal).cast::<c_void>();
        let ask = self.driver.cuPointerGetAttribute().unwrap();
        // SAFETY: the attribute is a number, for which there is room.
        let code = unsafe { ask(out, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) };
        (code == CUDA_SUCCESS).then_some(ordinal)
    }

    pub fn stream(&self) -> u64 {
        let mut stream = ptr::null_mut();
        cu!(self, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING));
        stream as u64
    }

    pub fn occupy(&self, stream: u64) {
        if let Some(sim) = self.steered {
            assert_eq!(sim.hold(pointer(stream)), 0);
            let nothing = ptr::null_mut();
            cu!(self, cuLaunchHostFunc(stream as CUstream, Some(pass), nothing));
            return;
        }
        extern "C" fn wait(gate: *mut c_void) {
            // SAFETY: it was made by `Arc::into_raw` for this call.
            let gate = unsafe { Arc::from_raw(gate.cast::<Gate>()) };
            let open = gate.open.lock().unwrap();
            drop(gate.opened.wait_timeout_while(open, PATIENCE, |open| !*open));
        }
        let gate = Arc::clone(self.gates.lock().unwrap().entry(stream).or_default());
        cu!(self, cuLaunchHostFunc(stream as CUstream, Some(wait), Arc::into_raw(gate).cast_mut().cast()));
    }

    pub fn finish(&self, stream: u64) {
        if let Some(sim) = self.steered {
            assert_eq!(sim.release(pointer(stream)), 0);
        }
        if let Some(gate) = self.gates.lock().unwrap().remove(&stream) {
            *gate.open.lock().unwrap() = true;
            gate.opened.notify_all();
        }
        cu!(self, cuStreamSynchronize(stream as CUstream));
    }

    pub fn end_stream(&self, stream: u64) {
        cu!(self, cuStreamDestroy_v2(stream as CUstream));
    }
}
