//! The entry and exit of every driver call.

use cuda_sys::{
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_SUCCESS, CUresult,
};

use crate::abi::Answer;
use crate::calling_thread;
use crate::options::Choice;
use crate::sim::{self, is_sticky};
use crate::state::function::Function;
use crate::system;

/// These functions work before `cuInit`.
const ALWAYS: [&str; 6] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuGetErrorName",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
];

/// Runs the body of a driver's function, unless something forbids the call.
///
/// A forked child of a process that had initialized the driver gets CUDA_ERROR_NOT_INITIALIZED from every function. The
/// manual only says that such use is undefined. This is the assumed behaviour of real drivers.
pub(crate) fn call(
    function: &'static Function,
    arguments: &[u64],
    body: impl FnOnce() -> Answer,
) -> CUresult {
    // The parent's other threads may have held the lock at the fork.
    if system::is_forked() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    function.count_call();
    let sequence;
    {
        let mut sim = sim::lock();
        sequence = sim.record.begin(system::thread(), function, arguments);
        let delay = sim.faults.delay_of(function);
        if !delay.is_zero() {
            drop(sim);
            std::thread::sleep(delay);
            sim = sim::lock();
        }
        if calling_thread::runs_work() && !sim.options.is_on(Choice::HostFunctionsCall) {
            // cuLaunchHostFunc: "The host function must not make any CUDA API calls. Attempting to use a CUDA API may
            // result in CUDA_ERROR_NOT_PERMITTED, but this is not required." cuStreamAddCallback: "will result".
            sim.record.misuse(format!("a host function or simulated kernel calls {}", function.symbol()));
            sim.record.end(sequence, CUDA_ERROR_NOT_PERMITTED);
            return CUDA_ERROR_NOT_PERMITTED;
        }
        if let Err(code) = admit(&mut sim, function) {
            sim.record.end(sequence, code);
            return code;
        }
    }
    let result = calling_thread::in_function(function.is_per_thread(), body).err().unwrap_or(CUDA_SUCCESS);
    sim::lock().record.end(sequence, result);
    result
}

fn admit(sim: &mut sim::Sim, function: &Function) -> Answer {
    if sim.is_down {
        return Err(CUDA_ERROR_DEINITIALIZED);
    }
    if i64::from(function.since()) > sim.options.get(Choice::DriverVersion) {
        // The symbol exists, because one library simulates every version. A driver of that version would not have it.
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if let Some(code) = sim.faults.strikes(function) {
        if is_sticky(code) {
            sim.make_sticky(code);
        }
        return Err(code);
    }
    if !sim.is_initialised && !ALWAYS.contains(&function.symbol()) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    Ok(())
}
