//! Real devices, through the driver that this machine has. (Or the simulated one in its place: then it shows that this file
//! works, and nothing of a device.)

use super::places;
use crate::common::pointer;
use crate::common::simcuda::Simulation;
use cuda_sys::*;
use std::collections::HashMap;
use std::env;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Mutex;

pub struct Real {
    driver: Driver,
    /// The simulated driver in its place, which runs no kernel of ours.
    steered: Option<Simulation>,
    /// The kernel `gate`, once it was needed.
    kernel: Mutex<Option<u64>>,
    /// The flags of the kernels that occupy streams, by stream.
    gates: Mutex<HashMap<u64, Vec<u64>>>,
}

const KERNELS: &str = include_str!("../../ffi-tests/gpu/pack/kernels.ptx");

/// No test takes that long. A test that panics must not leave the device busy for longer.
const PATIENCE_NANOSECONDS: u64 = 60_000_000_000;

extern "C" fn pass(_: *mut c_void) {}

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
        let real = Real { driver, steered, kernel: Mutex::default(), gates: Mutex::default() };
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
        let flag = self.new_flag();
        self.launch_gate(stream, flag);
        self.gates.lock().unwrap().entry(stream).or_default().push(flag);
    }

    pub fn finish(&self, stream: u64) {
        if let Some(sim) = self.steered {
            assert_eq!(sim.release(pointer(stream)), 0);
        }
        let flags = self.gates.lock().unwrap().remove(&stream).unwrap_or_default();
        flags.iter().for_each(|&flag| open(flag));
        cu!(self, cuStreamSynchronize(stream as CUstream));
        for flag in flags {
            cu!(self, cuMemFreeHost(flag as *mut c_void));
        }
    }

    /// A gate that is closed, in memory that the device reads from the host.
    fn new_flag(&self) -> u64 {
        let mut flag = ptr::null_mut();
        cu!(self, cuMemHostAlloc(&mut flag, 4, 0));
        // SAFETY: the driver has just returned these four bytes.
        unsafe { flag.cast::<u32>().write_volatile(0) };
        flag as u64
    }

    /// Occupies a stream by a kernel. A host function would not do: those of several streams "may be serialized"
    /// (cuLaunchHostFunc), and then a test that occupies two streams waits for ever.
    fn launch_gate(&self, stream: u64, flag: u64) {
        let loaded = *self.kernel.lock().unwrap();
        let kernel = loaded.unwrap_or_else(|| self.load_gate());
        let (mut flag, mut nanoseconds) = (flag, PATIENCE_NANOSECONDS);
        let mut parameters = [(&raw mut flag).cast::<c_void>(), (&raw mut nanoseconds).cast()];
        let (stream, parameters) = (stream as CUstream, parameters.as_mut_ptr());
        cu!(
            self,
            cuLaunchKernel(kernel as CUfunction, 1, 1, 1, 1, 1, 1, 0, stream, parameters, ptr::null_mut())
        );
    }

    /// Loads the kernel and runs it once: the first launch of a kernel may wait for the device (CUDA_MODULE_LOADING), which
    /// must not happen while a stream is occupied.
    fn load_gate(&self) -> u64 {
        let text = CString::new(KERNELS).unwrap();
        let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
        cu!(self, cuModuleLoadData(&mut module, text.as_ptr().cast()));
        cu!(self, cuModuleGetFunction(&mut kernel, module, c"gate".as_ptr()));
        *self.kernel.lock().unwrap() = Some(kernel as u64);
        let (stream, flag) = (self.stream(), self.new_flag());
        open(flag);
        self.launch_gate(stream, flag);
        cu!(self, cuStreamSynchronize(stream as CUstream));
        self.end_stream(stream);
        cu!(self, cuMemFreeHost(flag as *mut c_void));
        kernel as u64
    }

    pub fn end_stream(&self, stream: u64) {
        cu!(self, cuStreamDestroy_v2(stream as CUstream));
    }
}

/// Lets the kernel end that waits for a flag.
fn open(flag: u64) {
    // SAFETY: `new_flag` made it; the device only reads it.
    unsafe { (flag as *mut u32).write_volatile(1) };
}
