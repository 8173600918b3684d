//! Modules and kernel launches. `modules` defines the simulated kernels.

use std::ffi::{CStr, c_char, c_uint, c_void};

use cuda_sys::*;

use crate::abi::{Answer, get, put, text};
use crate::handles::Kind;
use crate::rules::streams;
use crate::sim::{self, Sim};
use crate::state::module::{self, Function, Module};
use crate::state::work::Work;

/// The first bytes of a cubin (an ELF file) and of a fatbin.
const BINARIES: [[u8; 4]; 2] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba]];

/// "The image may be a cubin or fatbin as output by nvcc, or a NULL-terminated PTX". The simulation cannot run the
/// first two.
pub(crate) fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    if module.is_null() || image.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if BINARIES.iter().any(|magic| begins_with(image.cast(), magic)) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: an image that is not binary is a C string, as guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let entries = module::parse(&text.to_string_lossy()).ok_or(CUDA_ERROR_INVALID_PTX)?;
    let life = sim.contexts[&context].unique();
    let handle = sim.handle(Kind::Module);
    sim.modules.insert(handle, Module::new(context, life, entries));
    put(module, handle as CUmodule)
}

/// Reads no further than the first difference, because memory after the end of a text does not belong to the caller.
fn begins_with(image: *const u8, magic: &[u8]) -> bool {
    magic.iter().enumerate().all(|(index, byte)| get(image.wrapping_add(index)) == Ok(*byte))
}

/// Options are ignored, because there is no compiler.
pub(crate) fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    _: c_uint,
    _: *mut CUjit_option,
    _: *mut *mut c_void,
) -> Answer {
    cuModuleLoadData(module, image)
}

impl Sim {
    /// Returns a loaded module whose context is live.
    fn module(&mut self, handle: u64) -> Answer<&mut Module> {
        let context = self.modules.get(&handle).map(|module| (module.context(), module.life()));
        let lives = context.is_some_and(|(context, life)| {
            self.contexts.get(&context).is_some_and(|context| context.unique() == life)
        });
        if !lives {
            self.stale(Kind::Module, handle);
        }
        self.modules.get_mut(&handle).filter(|_| lives).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

pub(crate) fn cuModuleUnload(module: CUmodule) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let handle = module.addr() as u64;
    sim.module(handle)?;
    // The call "on the capturing thread invalidates the capture, which matches CUDA"
    // (github.com/ROCm/rocm-systems/issues/11698).
    sim.forbid_unsafe()?;
    sim.modules.remove(&handle);
    sim.functions.retain(|_, function| function.module != handle);
    sim.retire(Kind::Module, handle);
    Ok(())
}

/// "If no function of that name exists, cuModuleGetFunction() returns CUDA_ERROR_NOT_FOUND."
pub(crate) fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let (handle, name) = (module.addr() as u64, text(name)?);
    let there = sim.module(handle)?;
    if let Some(known) = there.function(&name) {
        return put(function, known as CUfunction);
    }
    let entry = there.entry(&name).cloned().ok_or(CUDA_ERROR_NOT_FOUND)?;
    let new = sim.handle(Kind::Function);
    sim.functions.insert(new, Function { module: handle, entry });
    sim.module(handle)?.add_function(name, new);
    put(function, new as CUfunction)
}

/// The largest block: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK of the simulated device.
const MOST_THREADS: u64 = 1024;

/// A kernel that is not simulated is NOT_SUPPORTED. "The error CUDA_ERROR_INVALID_VALUE will be returned if kernel
/// parameters are specified with both kernelParams and extra". `extra` alone is not simulated either.
#[allow(clippy::too_many_arguments)] // The driver's.
pub(crate) fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let launch = Launch {
        function,
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        parameters,
        extra,
    };
    let (context, work) = sim.kernel(&launch)?;
    // An assumption: a function cannot be used in another context's streams.
    if context != sim.root(sim.streams[&number].context()) {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    streams::submit(sim, number, work, Vec::new()).map(drop)
}

/// The arguments of a launch.
pub(super) struct Launch {
    pub(super) function: CUfunction,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) parameters: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
}

impl Sim {
    /// Returns the context of a kernel's module, and the work of a launch.
    pub(super) fn kernel(&mut self, launch: &Launch) -> Answer<(u64, Work)> {
        let handle = launch.function.addr() as u64;
        let Some((module, entry)) =
            self.functions.get(&handle).map(|function| (function.module, function.entry.clone()))
        else {
            self.stale(Kind::Function, handle);
            return Err(CUDA_ERROR_INVALID_HANDLE);
        };
        let context = self.module(module)?.context();
        let threads: u64 = launch.block.map(u64::from).iter().product();
        if launch.grid.contains(&0) || threads == 0 || threads > MOST_THREADS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Launch { parameters, extra, .. } = *launch;
        let is_missing = parameters.is_null() && !entry.parameters.is_empty();
        match extra.is_null() {
            false if !parameters.is_null() => return Err(CUDA_ERROR_INVALID_VALUE),
            false => return Err(CUDA_ERROR_NOT_SUPPORTED),
            true if is_missing => return Err(CUDA_ERROR_INVALID_VALUE),
            true => (),
        }
        let places = crate::abi::get_all(parameters.cast_const(), entry.parameters.len())?;
        let read = |(place, bytes): (&*mut c_void, &usize)| argument(*place, *bytes);
        let arguments = places.iter().zip(&entry.parameters).map(read).collect::<Answer<Vec<u64>>>()?;
        let work = entry.work(&arguments).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        Ok((context, work))
    }
}

/// Reads an argument of up to 8 bytes, "from which the actual kernel parameter will be copied".
fn argument(place: *mut c_void, bytes: usize) -> Answer<u64> {
    let mut word = [0; 8];
    for (index, byte) in word.iter_mut().take(bytes).enumerate() {
        *byte = get(place.cast::<u8>().cast_const().wrapping_add(index))?;
    }
    Ok(u64::from_le_bytes(word))
}
