//! The whole state of the simulated driver, behind one lock. No function of the program runs with the lock held:
//! simulated kernels and host functions are called with it open (`rules::streams::run_next`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_sys::{
    CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_MISALIGNED_ADDRESS, CUresult,
};

use crate::handles::{self, Kind};
use crate::options::{Choice, Options};
use crate::state::arena::Arena;
use crate::state::array::Array;
use crate::state::context::{Context, Device, Thread};
use crate::state::faults::Faults;
use crate::state::graph::{Capture, Executable, Graph};
use crate::state::graph_memory::GraphMemory;
use crate::state::green::{Green, Multiprocessors};
use crate::state::memory::Allocation;
use crate::state::memory::Ending;
use crate::state::memory::Living;
use crate::state::module::{Function, Module};
use crate::state::physical::{Mapping, Physical, Reservation, Store};
use crate::state::pool::Pool;
use crate::state::races::Races;
use crate::state::record::Record;
use crate::state::stream::{Event, Point, Stream};
use crate::system;

/// The locked state.
pub(crate) type Guard = MutexGuard<'static, Sim>;

/// The state of the simulated driver. Maps are by address, handle or number.
pub(crate) struct Sim {
    pub(crate) options: Options,
    pub(crate) is_initialised: bool,
    /// The driver has shut down with the process.
    pub(crate) is_down: bool,
    pub(crate) record: Record,
    pub(crate) faults: Faults,

    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) threads: BTreeMap<u64, Thread>,
    /// The points that a context's work waits for, by cuCtxWaitEvent.
    pub(crate) gates: Vec<(u64, Point)>,
    pub(crate) greens: BTreeMap<u64, Green>,
    pub(crate) descriptors: BTreeMap<u64, Multiprocessors>,

    /// By number. A destroyed stream exists until its work is done.
    pub(crate) streams: BTreeMap<u64, Stream>,
    /// From handle to number, for streams created by the program.
    pub(crate) stream_names: BTreeMap<u64, u64>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) executables: BTreeMap<u64, Executable>,

    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) functions: BTreeMap<u64, Function>,

    /// By device.
    pub(crate) arenas: Vec<Option<Arena>>,
    /// Live memory other than virtual memory, by address.
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) arrays: BTreeMap<u64, Array>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    /// Memory allocated from pools and graphs in the order of the work, by address.
    pub(crate) living: BTreeMap<u64, Living>,
    /// Memory that is freed but still live, by address.
    pub(crate) ending: BTreeMap<u64, Ending>,
    /// Memory of graphs, by address.
    pub(crate) graph_memory: BTreeMap<u64, GraphMemory>,
    /// Physical memory of each device.
    pub(crate) stores: Vec<Option<Store>>,
    pub(crate) physical: BTreeMap<u64, Physical>,
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,

    /// None unless races are looked for.
    pub(crate) races: Option<Box<Races>>,

    /// Messages that were sent and not received, by channel (`Work::Send`).
    pub(crate) messages: BTreeMap<u64, u64>,
    /// A blocking call has met a deadlock, so later ones need not wait for it again.
    pub(crate) is_deadlocked: bool,

    /// Simulated time in nanoseconds. It passes while the program waits.
    pub(crate) clock: u64,
    next: u64,
    /// Handles to be reused at a test's request, the last one first.
    retired: Vec<(Kind, u64)>,
}

static SIM: LazyLock<Mutex<Sim>> = LazyLock::new(|| Mutex::new(Sim::new(Options::from_environment())));
static MOVED: Condvar = Condvar::new();
/// The number of threads waiting for `MOVED`, written with the state locked. A wake-up without waiters would cost a
/// system call.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Numbers below are those of primary contexts.
const FIRST_NUMBER: u64 = 100;

/// Locks the state. After a panic elsewhere it is consistent enough for a simulation.
pub(crate) fn lock() -> Guard {
    SIM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the threads that wait for work to be done. The state must be locked.
pub(crate) fn wake() {
    if WAITING.load(Ordering::Relaxed) > 0 {
        MOVED.notify_all();
    }
}

/// Waits until work was queued or done, for at most `limit`. Returns whether anything happened.
pub(crate) fn wait(sim: Guard, limit: Duration) -> (Guard, bool) {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let (sim, timeout) = MOVED.wait_timeout(sim, limit).unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::Relaxed);
    (sim, !timeout.timed_out())
}

/// Returns whether an error is sticky: the context returns nothing else afterwards ("any further CUDA work will return
/// the same error": comments in cuda.h).
pub(crate) fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
    )
}

impl Sim {
    fn new(options: Options) -> Self {
        let count = usize::try_from(options.devices).unwrap_or(0);
        Self {
            is_initialised: false,
            is_down: false,
            record: Record::default(),
            faults: Faults::default(),
            devices: (0..count).map(|_| Device::new(options.memory)).collect(),
            contexts: BTreeMap::new(),
            threads: BTreeMap::new(),
            gates: Vec::new(),
            greens: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            streams: BTreeMap::new(),
            stream_names: BTreeMap::new(),
            events: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            executables: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            arenas: Vec::new(),
            allocations: BTreeMap::new(),
            arrays: BTreeMap::new(),
            pools: BTreeMap::new(),
            living: BTreeMap::new(),
            ending: BTreeMap::new(),
            graph_memory: BTreeMap::new(),
            stores: Vec::new(),
            physical: BTreeMap::new(),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            races: options.is_on(Choice::Races).then(Box::default),
            messages: BTreeMap::new(),
            is_deadlocked: false,
            clock: 0,
            next: FIRST_NUMBER,
            retired: Vec::new(),
            options,
        }
    }

    /// Resets the state, except that numbers continue, so that old handles are known to be stale. Address ranges are
    /// kept too, because nothing in them is in use any more.
    pub(crate) fn begin_anew(&mut self, options: Options) {
        let next = self.next;
        let arenas = std::mem::take(&mut self.arenas);
        let stores = std::mem::take(&mut self.stores);
        *self = Self::new(options);
        self.next = next;
        self.arenas = arenas;
        self.stores = stores;
    }

    /// Returns a new unique number.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a new handle of a kind.
    pub(crate) fn handle(&mut self, kind: Kind) -> u64 {
        if self.options.is_on(Choice::RecycleHandles)
            && let Some(index) = self.retired.iter().rposition(|(of, _)| *of == kind)
        {
            return self.retired.remove(index).1;
        }
        let number = self.number();
        handles::make(kind, number)
    }

    /// Records that a handle is no longer in use.
    pub(crate) fn retire(&mut self, kind: Kind, handle: u64) {
        if self.options.is_on(Choice::RecycleHandles) {
            self.retired.push((kind, handle));
        }
    }

    /// Records the use of a handle that is not valid, or no longer. A real driver may crash.
    pub(crate) fn stale(&mut self, kind: Kind, handle: u64) {
        let was = match handles::number(kind, handle) {
            Some(number) if number <= self.next => "one that was destroyed",
            _ => "none of this driver",
        };
        let text = format!("{kind:?} {handle:#x} is {was}");
        if self.options.is_on(Choice::StaleAborts) {
            eprintln!("simcuda: {text}; SIMCUDA_STALE_ABORTS is set");
            std::process::abort();
        }
        self.record.stale(kind, text);
    }

    /// Makes the current context of the calling thread fail permanently.
    pub(crate) fn make_sticky(&mut self, code: CUresult) {
        let handle = self.threads.get(&system::thread()).and_then(Thread::current);
        let root = handle.map(|handle| self.root(handle));
        if let Some(context) = root.and_then(|root| self.contexts.get_mut(&root)) {
            context.fail(code);
        }
    }

    /// Returns the context that owns what a context creates: for a green context the primary one.
    pub(crate) fn root(&self, context: u64) -> u64 {
        self.contexts.get(&context).and_then(Context::primary).unwrap_or(context)
    }

    /// Returns the failure that a context returns permanently.
    pub(crate) fn sticky(&self, context: u64) -> Option<CUresult> {
        self.contexts.get(&self.root(context)).and_then(Context::sticky)
    }
}
