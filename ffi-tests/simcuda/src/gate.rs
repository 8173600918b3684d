//! What every call of the driver passes on its way in and out.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_sys::{
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_SUCCESS, CUresult,
};

use crate::abi::Answer;
use crate::options::Choice;
use crate::sim::{self, is_sticky};
use crate::system;

/// A function of the driver, or its twin for the per-thread default stream.
pub(crate) struct Function {
    /// What the library exports.
    pub(crate) symbol: &'static str,
    /// What `cuGetProcAddress` takes.
    pub(crate) name: &'static str,
    /// The first version of CUDA that has it.
    pub(crate) since: i32,
    /// Whether stream 0 is the calling thread's.
    pub(crate) per_thread: bool,
    pub(crate) address: Address,
    pub(crate) calls: AtomicU64,
}

impl Function {
    /// Whether a test means this one by a name: its symbol, or without the version, which means all versions.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.symbol || name == self.name
    }
}

/// Where a function is. It is only handed out.
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: an address of code, which never changes.
unsafe impl Sync for Address {}

thread_local! {
    /// Whether the driver's function that this thread is in is a twin.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread runs a host function or a simulated kernel.
    static RUNS_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program's whose turn has come. Until it returns, this thread may not call the driver.
pub(crate) fn run_work(function: impl FnOnce()) {
    let outer = RUNS_WORK.replace(true);
    function();
    RUNS_WORK.set(outer);
}

/// Whether stream 0 means the calling thread's default stream, in the call that this thread is in.
pub(crate) fn is_per_thread() -> bool {
    PER_THREAD.get()
}

/// These answer before `cuInit`.
const ALWAYS: [&str; 6] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuGetErrorName",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
];

/// Runs the body of a driver's function unless something forbids it.
///
/// A forked child of a process that had initialised the driver gets CUDA_ERROR_NOT_INITIALIZED from every
/// function; the manual only says that such use is undefined, and this is what drivers are believed to answer.
pub(crate) fn call(
    function: &'static Function,
    arguments: &[u64],
    body: impl FnOnce() -> Answer,
) -> CUresult {
    // The parent's other threads may have held the lock at the fork.
    if system::is_forked() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    function.calls.fetch_add(1, Ordering::Relaxed);
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
        if RUNS_WORK.get() {
            // cuLaunchHostFunc: "The host function must not make any CUDA API calls. Attempting to use a CUDA API may
            // result in CUDA_ERROR_NOT_PERMITTED, but this is not required." cuStreamAddCallback: "will result".
            sim.record.misuse(format!("a host function or simulated kernel calls {}", function.symbol));
            sim.record.end(sequence, CUDA_ERROR_NOT_PERMITTED);
            return CUDA_ERROR_NOT_PERMITTED;
        }
        if let Err(code) = admit(&mut sim, function) {
            sim.record.end(sequence, code);
            return code;
        }
    }
    let outer = PER_THREAD.replace(function.per_thread);
    let result = body().err().unwrap_or(CUDA_SUCCESS);
    PER_THREAD.set(outer);
    sim::lock().record.end(sequence, result);
    result
}

fn admit(sim: &mut sim::Sim, function: &Function) -> Answer {
    if sim.is_down {
        return Err(CUDA_ERROR_DEINITIALIZED);
    }
    if i64::from(function.since) > sim.options.get(Choice::DriverVersion) {
        // The symbol is there, for one library is every version; such a driver would not have it.
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if let Some(code) = sim.faults.strikes(function) {
        if is_sticky(code) {
            sim.make_sticky(code);
        }
        return Err(code);
    }
    if !sim.is_initialised && !ALWAYS.contains(&function.symbol) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    Ok(())
}
