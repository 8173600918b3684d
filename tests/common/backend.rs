//! A sub-allocator that hands out addresses without memory, and records every call.

use super::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The position of the next region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Rising, with a gap of at least 2 MiB: regions are never adjacent. The golden traces were made with this layout.
    Apart,
    /// Rising, each beginning at the end of the previous one.
    Adjacent,
    /// Falling, each just below the one before, like `mmap`.
    Falling,
}

/// The answer of a script: base and bytes, or nothing.
pub type Answer = Option<(u64, u64)>;
/// Decides about a request of (alignment, bytes) instead of the layout.
pub type Script = Box<dyn FnMut(&mut Books, u64, u64) -> Answer + Send>;

/// The granted regions and the requests.
#[derive(Default)]
pub struct Books {
    /// Base and bytes of the granted regions.
    pub out: BTreeMap<u64, u64>,
    /// Their sum and its highest value.
    pub held: u64,
    /// The highest `held`.
    pub peak: u64,
    /// The size of each request, refused ones too.
    pub asked: Vec<u64>,
    /// Base and bytes of all freed regions.
    pub returned: Vec<(u64, u64)>,
    next: u64,
    /// The library's violations of the contract.
    broken: Vec<String>,
}

/// A gate that a test closes to keep a thread inside the sub-allocator.
#[derive(Default)]
pub struct Gate {
    /// Whether it is closed, and the number of threads waiting at it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    /// Waits while it is closed.
    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    /// Closes the gate: later callers wait.
    pub fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    /// Waits until a thread waits at the closed gate.
    pub fn wait_for_somebody(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.1 == 0).unwrap());
    }
}

/// The sub-allocator. Change its fields before the pool is created.
pub struct Backend {
    /// The address of its first region.
    pub first: u64,
    /// Requests that would exceed this are refused.
    pub capacity: u64,
    /// The layout of regions.
    pub layout: Layout,
    /// Whether it declares that adjacent regions may be merged.
    pub coalesces: bool,
    /// Bytes granted in addition to those requested.
    pub extra: u64,
    /// The duration of each request.
    pub delay: Duration,
    /// If closed, requests wait.
    pub gate: Gate,
    /// Whether the end of the pool checks that everything was freed. Not for scripts that violate the contract.
    pub strict: bool,
    script: Mutex<Option<Script>>,
    on_return: OnReturn,
    books: Mutex<Books>,
}

/// Called at each return of a region, possibly by several threads at once.
type OnReturn = Option<Box<dyn Fn() + Send + Sync>>;

/// The address at which the recording of the golden traces began.
pub const RECORDED_FIRST: u64 = 1 << 40;

impl Backend {
    /// Grants up to `capacity` bytes in regions that are never adjacent, at addresses that no other backend of the
    /// process uses, so that `bfc_owner` has one answer.
    pub fn new(capacity: u64) -> Backend {
        static BACKENDS: AtomicU64 = AtomicU64::new(1);
        Backend::starting_at(RECORDED_FIRST + (BACKENDS.fetch_add(1, Relaxed) << 44), capacity)
    }

    /// Like [`Backend::new`], with the first region at the given address.
    pub fn starting_at(first: u64, capacity: u64) -> Backend {
        Backend {
            first,
            capacity,
            layout: Layout::Apart,
            coalesces: false,
            extra: 0,
            delay: Duration::ZERO,
            gate: Gate::default(),
            strict: true,
            script: Mutex::new(None),
            on_return: None,
            books: Mutex::new(Books { next: first, ..Books::default() }),
        }
    }

    /// Creates a backend whose requests are answered by a script.
    pub fn scripted(script: impl FnMut(&mut Books, u64, u64) -> Answer + Send + 'static) -> Backend {
        let backend = Backend::new(u64::MAX);
        *backend.script.lock().unwrap() = Some(Box::new(script));
        backend
    }

    /// Marks it as violating the contract, so that the frees at the end are not checked.
    pub fn cheating(mut self) -> Backend {
        self.strict = false;
        self
    }

    /// Calls `act` at the beginning of each return of a region.
    pub fn on_return(mut self, act: impl Fn() + Send + Sync + 'static) -> Backend {
        self.on_return = Some(Box::new(act));
        self
    }

    /// Sets another layout.
    pub fn layout(mut self, layout: Layout) -> Backend {
        self.layout = layout;
        self
    }

    /// Makes regions adjacent, and lets them be merged.
    pub fn coalescing(mut self) -> Backend {
        (self.layout, self.coalesces) = (Layout::Adjacent, true);
        self
    }

    /// The struct that C programs fill; valid as long as the backend stays where it is.
    pub fn functions(&self) -> bfc_suballocator_t {
        functions(self, Some(alloc_region), Some(free_region), self.coalesces)
    }

    /// Reads the records.
    pub fn books<T>(&self, read: impl FnOnce(&Books) -> T) -> T {
        read(&self.books.lock().unwrap())
    }

    /// Returns the granted bytes.
    pub fn held(&self) -> u64 {
        self.books(|books| books.held)
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> usize {
        self.books(|books| books.asked.len())
    }

    /// Checks that everything was freed, and nothing else.
    pub fn assert_all_returned(&self) {
        if !self.strict {
            return;
        }
        self.assert_sound();
        self.books(|books| assert!(books.out.is_empty(), "not given back: {:x?}", books.out));
    }

    /// Checks that the library has kept the contract so far.
    pub fn assert_sound(&self) {
        self.books(|books| assert!(books.broken.is_empty(), "{:#?}", books.broken));
    }

    fn give(&self, alignment: u64, bytes: u64) -> Answer {
        std::thread::sleep(self.delay);
        self.gate.pass();
        let mut books = self.books.lock().unwrap();
        books.asked.push(bytes);
        if !bytes.is_multiple_of(256) || bytes == 0 || !alignment.is_power_of_two() || alignment < 256 {
            books.broken.push(format!("asked for {bytes} bytes at {alignment}"));
        }
        let answer = match &mut *self.script.lock().unwrap() {
            Some(script) => script(&mut books, alignment, bytes),
            None => self.place(&mut books, bytes),
        };
        if let Some((base, bytes)) = answer {
            books.out.insert(base, bytes);
            books.held = books.held.saturating_add(bytes);
            books.peak = books.peak.max(books.held);
        }
        answer
    }

    fn place(&self, books: &mut Books, asked: u64) -> Answer {
        let bytes = asked.saturating_add(self.extra);
        if books.held.checked_add(bytes)? > self.capacity {
            return None;
        }
        const STEP: u64 = 2 << 20;
        let base = match self.layout {
            Layout::Apart => books.next,
            Layout::Adjacent => books.next,
            Layout::Falling => (books.next - bytes) & !255,
        };
        books.next = match self.layout {
            Layout::Apart => base + bytes.next_multiple_of(STEP) + STEP,
            Layout::Adjacent => base + bytes,
            Layout::Falling => base,
        };
        Some((base, bytes))
    }

    fn take_back(&self, base: u64, bytes: u64) {
        self.on_return.iter().for_each(|act| act());
        let mut books = self.books.lock().unwrap();
        books.returned.push((base, bytes));
        books.held = books.held.saturating_sub(bytes);
        // One region, or with coalescing several adjacent ones.
        let (mut at, end) = (base, base.saturating_add(bytes));
        let mut parts = 0;
        while at < end {
            let Some(part) = books.out.remove(&at) else {
                let out = format!("{:x?}", books.out);
                books.broken.push(format!("given back {base:#x} + {bytes:#x}, but out are {out}"));
                return;
            };
            (at, parts) = (at + part, parts + 1);
        }
        if at != end || parts > 1 && !self.coalesces {
            books.broken.push(format!("given back {base:#x} + {bytes:#x}: not what was given"));
        }
    }
}

/// The struct that C programs fill, with a test's backend, which does not move, as the user pointer.
pub fn functions<T>(
    of: &T,
    alloc: bfc_region_alloc_t,
    free: bfc_region_free_t,
    coalesces: bool,
) -> bfc_suballocator_t {
    let user_data = std::ptr::from_ref(of).cast_mut().cast();
    let struct_size = size_of::<bfc_suballocator_t>();
    bfc_suballocator_t {
        struct_size,
        user_data,
        alloc,
        free,
        supports_coalescing: coalesces.into(),
        reserved: 0,
    }
}

unsafe extern "C" fn alloc_region(
    user_data: *mut c_void,
    alignment: usize,
    bytes: usize,
    received: *mut usize,
) -> *mut c_void {
    // SAFETY: the pointer is to a backend that outlives its pool.
    let backend = unsafe { &*user_data.cast::<Backend>() };
    let Some((base, given)) = backend.give(alignment as u64, bytes as u64) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the library passes a valid out-pointer.
    unsafe { received.write(given as usize) };
    pointer(base)
}

unsafe extern "C" fn free_region(user_data: *mut c_void, base: *mut c_void, bytes: usize) {
    // SAFETY: the pointer is to a backend that outlives its pool.
    let backend = unsafe { &*user_data.cast::<Backend>() };
    backend.take_back(base as u64, bytes as u64);
}
