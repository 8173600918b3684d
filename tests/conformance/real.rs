//! Real devices, through the machine's driver. (Or the simulated one in its place, which shows only that this file
//! works, and nothing about a device.)

use super::places;
use crate::common::pointer;
use crate::common::simcuda::Simulation;
use cuda_sys::*;
use std::collections::HashMap;
use std::env;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

pub struct Real {
    driver: Driver,
    /// The simulated driver in its place, which cannot run our kernel.
    steered: Option<Simulation>,
    /// The kernel `gate` and its flags, once it is needed.
    gate: Mutex<Option<Gate>>,
}

/// A kernel that occupies a stream until its flag is set.
struct Gate {
    kernel: u64,
    /// Pinned memory with a flag for each launch. It is obtained before the first launch and never freed, because either may
    /// wait for the device.
    flags: u64,
    launched: u64,
    /// The flags of the kernels that occupy streams, by stream.
    closed: HashMap<u64, Vec<u64>>,
}

const KERNELS: &str = include_str!("../../ffi-tests/gpu/pack/kernels.ptx");

/// How long a stream is occupied if the test does not end it: longer than the test's other work, and shorter than the
/// timeout of a test runner. A request that waits for the device, as a pool's first one across streams does, waits for
/// this.
const OCCUPIED: Duration = Duration::from_secs(1);

const PINNED_BYTES: u64 = 4096;

extern "C" fn pass(_: *mut c_void) {}

macro_rules! cu {
    ($real:expr, $function:ident($($argument:expr),*)) => {{
        let call = $real.driver.$function().unwrap_or_else(|error| panic!("{error:?}"));
        // SAFETY: the arguments are as the driver's manual requires.
        let code = unsafe { call($($argument),*) };
        assert_eq!(code, CUDA_SUCCESS, "{}", stringify!($function));
    }};
}

impl Real {
    pub fn open() -> Real {
        let steered = env::var_os("SIMCUDA_LIBRARY").map(|_| Simulation::load());
        let driver = Driver::load().unwrap_or_else(|error| panic!("there is no driver: {error:?}"));
        let real = Real { driver, steered, gate: Mutex::default() };
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
        self.write_bytes(address, &all);
    }

    pub fn write_bytes(&self, address: u64, bytes: &[u8]) {
        cu!(self, cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
    }

    pub fn bytes(&self, address: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; count as usize];
        cu!(self, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()));
        bytes
    }

    pub fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
        let all = self.bytes(address, bytes);
        places(address, bytes).all(|place| {
            let at = (place - address) as usize;
            all[at..at + 8] == (pattern ^ place).to_ne_bytes()
        })
    }

    /// None means host memory.
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
            // As on a device, a call that waits for the stream blocks until another thread releases it.
            if env::var_os("SIMCUDA_SYNCHRONIZE_WAITS").is_some() {
                thread::spawn(move || {
                    thread::sleep(OCCUPIED);
                    sim.release(pointer(stream));
                });
            }
            return;
        }
        let mut gate = self.gate.lock().unwrap();
        let gate = gate.get_or_insert_with(|| self.load_gate());
        let flag = self.launch_gate(gate, stream);
        gate.closed.entry(stream).or_default().push(flag);
    }

    pub fn finish(&self, stream: u64) {
        if let Some(sim) = self.steered {
            assert_eq!(sim.release(pointer(stream)), 0);
        }
        let mut gate = self.gate.lock().unwrap();
        let closed = gate.as_mut().and_then(|gate| gate.closed.remove(&stream));
        closed.unwrap_or_default().into_iter().for_each(open);
        drop(gate);
        cu!(self, cuStreamSynchronize(stream as CUstream));
    }

    /// Loads the kernel and runs it once: the first launch of a kernel may wait for the device (CUDA_MODULE_LOADING), which
    /// must not happen while a stream is occupied.
    fn load_gate(&self) -> Gate {
        let text = CString::new(KERNELS).unwrap();
        let (mut module, mut kernel, mut flags) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        cu!(self, cuModuleLoadData(&mut module, text.as_ptr().cast()));
        cu!(self, cuModuleGetFunction(&mut kernel, module, c"gate".as_ptr()));
        cu!(self, cuMemHostAlloc(&mut flags, PINNED_BYTES as usize, 0));
        // SAFETY: the driver has just returned these bytes.
        unsafe { flags.cast::<u8>().write_bytes(0, PINNED_BYTES as usize) };
        let (kernel, flags) = (kernel as u64, flags as u64);
        let mut gate = Gate { kernel, flags, launched: 0, closed: HashMap::new() };
        let stream = self.stream();
        open(self.launch_gate(&mut gate, stream));
        cu!(self, cuStreamSynchronize(stream as CUstream));
        self.end_stream(stream);
        gate
    }

    /// Occupies a stream, and returns the flag that ends it. A host function would not do: those of several streams "may be
    /// serialized" (cuLaunchHostFunc), so a test that occupies two streams would hang.
    fn launch_gate(&self, gate: &mut Gate, stream: u64) -> u64 {
        let flag = gate.flags + 4 * gate.launched;
        assert!(flag < gate.flags + PINNED_BYTES, "one process occupies streams too often");
        gate.launched += 1;
        let (mut argument, mut nanoseconds) = (flag, OCCUPIED.as_nanos() as u64);
        let mut parameters = [(&raw mut argument).cast::<c_void>(), (&raw mut nanoseconds).cast()];
        let (kernel, stream) = (gate.kernel as CUfunction, stream as CUstream);
        let parameters = parameters.as_mut_ptr();
        cu!(self, cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, ptr::null_mut()));
        flag
    }

    pub fn end_stream(&self, stream: u64) {
        cu!(self, cuStreamDestroy_v2(stream as CUstream));
    }
}

/// Ends the kernel that waits for a flag.
fn open(flag: u64) {
    // SAFETY: a word of the pinned memory; the device only reads it.
    unsafe { (flag as *mut u32).write_volatile(1) };
}
