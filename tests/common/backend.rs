//! A sub-allocator that hands out addresses nobody ever touches, and keeps books on who gives back what.

use super::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Where the next region lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Rising, with a gap of at least 2 MiB: regions never touch. The golden traces were made so.
    Apart,
    /// Rising, each where the one before ends.
    Adjacent,
    /// Falling, each just below the one before, as `mmap` does it.
    Falling,
}

/// What a script answers: base and bytes, or nothing.
pub type Answer = Option<(u64, u64)>;
/// Decides about a request of (alignment, bytes) instead of the layout.
pub type Script = Box<dyn FnMut(&mut Books, u64, u64) -> Answer + Send>;

/// What is out, and what was asked for.
#[derive(Default)]
pub struct Books {
    /// Base and bytes of what is out.
    pub out: BTreeMap<u64, u64>,
    /// Their sum and its highest value.
    pub held: u64,
    /// The highest `held`.
    pub peak: u64,
    /// The size of each request, refused ones too.
    pub asked: Vec<u64>,
    /// Base and bytes of everything that came back.
    pub returned: Vec<(u64, u64)>,
    next: u64,
    /// What the library did against the contract.
    broken: Vec<String>,
}

/// A gate that a test closes, to have a thread inside of the sub-allocator for as long as it wants.
#[derive(Default)]
pub struct Gate {
    /// Whether it is closed, and how many wait at it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    /// Whoever comes waits from now on.
    pub fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    /// Lets everybody pass.
    pub fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    /// Waits until somebody stands at the closed gate.
    pub fn wait_for_somebody(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.1 == 0).unwrap());
    }
}

/// The sub-allocator. Change its fields before the pool is created.
pub struct Backend {
    /// Where its first region is.
    pub first: u64,
    /// Refuses what would exceed this.
    pub capacity: u64,
    /// Where regions lie.
    pub layout: Layout,
    /// Whether it says that touching regions may be merged.
    pub coalesces: bool,
    /// Bytes given beyond those asked for.
    pub extra: u64,
    /// How long each request takes.
    pub delay: Duration,
    /// Closed, it keeps requests waiting.
    pub gate: Gate,
    /// Whether the end of the pool checks that everything came back; not for scripts that cheat.
    pub strict: bool,
    script: Mutex<Option<Script>>,
    books: Mutex<Books>,
}

/// Where the recording of the golden traces began.
pub const RECORDED_FIRST: u64 = 1 << 40;

impl Backend {
    /// Gives up to `capacity` bytes in regions that never touch, where no other backend of the process has
    /// its own: then `bfc_owner` has one answer.
    pub fn new(capacity: u64) -> Backend {
        static BACKENDS: AtomicU64 = AtomicU64::new(1);
        Backend::starting_at(RECORDED_FIRST + (BACKENDS.fetch_add(1, Relaxed) << 44), capacity)
    }

    /// As [`Backend::new`], with the first region at an address of the test's choice.
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
            books: Mutex::new(Books { next: first, ..Books::default() }),
        }
    }

    /// A script decides what each request gets.
    pub fn scripted(script: impl FnMut(&mut Books, u64, u64) -> Answer + Send + 'static) -> Backend {
        let backend = Backend::new(u64::MAX);
        *backend.script.lock().unwrap() = Some(Box::new(script));
        backend
    }

    /// It cheats: what comes back at the end says nothing.
    pub fn cheating(mut self) -> Backend {
        self.strict = false;
        self
    }

    /// With another layout.
    pub fn layout(mut self, layout: Layout) -> Backend {
        self.layout = layout;
        self
    }

    /// Touching regions may be merged, and do touch.
    pub fn coalescing(mut self) -> Backend {
        (self.layout, self.coalesces) = (Layout::Adjacent, true);
        self
    }

    /// The struct that C programs fill; valid as long as the backend stays where it is.
    pub fn functions(&self) -> bfc_suballocator_t {
        functions(self, Some(alloc_region), Some(free_region), self.coalesces)
    }

    /// Looks at the books.
    pub fn books<T>(&self, read: impl FnOnce(&Books) -> T) -> T {
        read(&self.books.lock().unwrap())
    }

    /// Bytes that are out.
    pub fn held(&self) -> u64 {
        self.books(|books| books.held)
    }

    /// How often it was asked.
    pub fn requests(&self) -> usize {
        self.books(|books| books.asked.len())
    }

    /// Everything came back, and nothing that was not out.
    pub fn assert_all_returned(&self) {
        if !self.strict {
            return;
        }
        self.assert_sound();
        self.books(|books| assert!(books.out.is_empty(), "not given back: {:x?}", books.out));
    }

    /// The library kept to the contract so far.
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
        let mut books = self.books.lock().unwrap();
        books.returned.push((base, bytes));
        books.held = books.held.saturating_sub(bytes);
        // One region, or with coalescing several that touch.
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

/// What C programs fill, with a backend of a test's, which stays where it is, as the pointer that comes along.
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
