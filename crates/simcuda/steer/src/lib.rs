//! `simcuda.h` for tests in Rust: the functions that steer the simulated driver, found in the library at run time.

#![allow(missing_docs)] // simcuda.h documents them.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

/// A simulated kernel.
pub type Kernel = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The simulated driver, loaded into this process. Every method is the function of `simcuda.h` with that
        /// name after `simcuda_`.
        #[derive(Clone, Copy)]
        pub struct Steer {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Steer {
            /// The names.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Loads the simulation: the library that SIMCUDA_LIBRARY names, else what cargo built beside this test,
            /// else `libcuda.so.1` on the loader's path. Every later open of `libcuda.so.1` in this process then
            /// returns the simulation, because that is its SONAME. The error says why it cannot be loaded.
            pub fn load() -> Result<Self, String> {
                let handle = open()?;
                Ok(Self {
                    $($name: {
                        let address = symbol(handle, concat!("simcuda_", stringify!($name)))?;
                        // SAFETY: simcuda.h declares the function so.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(
                                address,
                            )
                        }
                    },)*
                })
            }

            $(
                // Tests would consist of unsafe blocks.
                #[allow(clippy::not_unsafe_ptr_arg_deref)]
                pub fn $name(&self, $($argument: $type),*) $(-> $result)? {
                    // SAFETY: the function takes numbers, and pointers that it only follows if the test meant it.
                    unsafe { (self.$name)($($argument),*) }
                }
            )*
        }
    };
}

functions! {
    reset();
    configure(devices: c_int, memory: u64) -> c_int;
    shutdown();
    set(option: c_int, value: i64) -> c_int;
    get(option: c_int) -> i64;
    hold(stream: *mut c_void) -> c_int;
    step(stream: *mut c_void, n: u64) -> u64;
    release(stream: *mut c_void) -> c_int;
    release_all();
    pending(stream: *mut c_void) -> u64;
    launch(stream: *mut c_void, kernel: Kernel, argument: *mut c_void) -> c_int;
    fill(stream: *mut c_void, address: u64, bytes: u64, pattern: u64) -> c_int;
    expect(stream: *mut c_void, address: u64, bytes: u64, pattern: u64) -> c_int;
    send(stream: *mut c_void, channel: u64) -> c_int;
    receive(stream: *mut c_void, channel: u64) -> c_int;
    fail(function: *const c_char, nth: u64, code: c_int) -> c_int;
    struck() -> u64;
    delay(function: *const c_char, nanoseconds: u64);
    clear_faults();
    make_sticky(code: c_int);
    calls(function: *const c_char) -> u64;
    clear_log();
    log(buffer: *mut c_char, capacity: usize) -> usize;
    misuses() -> u64;
    misuse(index: u64, buffer: *mut c_char, capacity: usize) -> usize;
    stale(kind: c_int) -> u64;
    mismatches() -> u64;
    live(kind: c_int) -> u64;
    used(device: c_int) -> u64;
}

// `simcuda_option`.
pub const DRIVER_VERSION: c_int = 0;
pub const POISON: c_int = 1;
pub const REUSE_ADDRESSES: c_int = 2;
pub const SYNCHRONIZE_WAITS: c_int = 3;
pub const FREE_SYNCHRONIZES: c_int = 4;
pub const HOLD_NEW: c_int = 5;
pub const RECYCLE_HANDLES: c_int = 6;
pub const GRANULARITY: c_int = 7;
pub const VMM: c_int = 8;
pub const POOLS: c_int = 9;
pub const PEERS: c_int = 10;
pub const RESET_ENDS: c_int = 11;
pub const EVENTS_LIE: c_int = 12;
pub const STALE_ABORTS: c_int = 13;
pub const DEADLOCK_MILLISECONDS: c_int = 14;
pub const CAPTURED_STREAMS_HIDE: c_int = 15;
pub const GRAPH_ORDER: c_int = 16;
pub const STREAM_QUERIES_UNSAFE: c_int = 17;
pub const HOST_FUNCTIONS_CALL: c_int = 18;
pub const RACES: c_int = 19;

// `simcuda_kind`.
pub const CONTEXTS: c_int = 0;
pub const STREAMS: c_int = 1;
pub const EVENTS: c_int = 2;
pub const ALLOCATIONS: c_int = 3;
pub const PHYSICAL: c_int = 4;
pub const RESERVATIONS: c_int = 5;
pub const MAPPINGS: c_int = 6;
pub const GRAPHS: c_int = 7;
pub const CAPTURES: c_int = 8;
pub const RETAINS: c_int = 9;

impl Steer {
    /// The call log.
    pub fn log_text(&self) -> String {
        text(|buffer, capacity| self.log(buffer, capacity))
    }

    /// The words of the misuses, and of the mismatches.
    pub fn misuse_texts(&self) -> Vec<String> {
        let words = |index| text(|buffer, capacity| self.misuse(index, buffer, capacity));
        (0..).map(words).take_while(|words| !words.is_empty()).collect()
    }

    /// Calls of a function.
    pub fn calls_of(&self, function: &CStr) -> u64 {
        self.calls(function.as_ptr())
    }

    /// Calls of all functions.
    pub fn all_calls(&self) -> u64 {
        self.calls(std::ptr::null())
    }
}

/// A text whose length the library returns.
fn text(write: impl Fn(*mut c_char, usize) -> usize) -> String {
    let length = write(std::ptr::null_mut(), 0);
    let mut buffer = vec![0_u8; length + 1];
    let length = write(buffer.as_mut_ptr().cast(), buffer.len()).min(length);
    buffer.truncate(length);
    String::from_utf8_lossy(&buffer).into_owned()
}

fn open() -> Result<*mut c_void, String> {
    let mut places: Vec<PathBuf> = env::var_os("SIMCUDA_LIBRARY").map(PathBuf::from).into_iter().collect();
    if places.is_empty() {
        // target/<profile>/deps is where the test is.
        let exe = env::current_exe().ok();
        let deps = exe.as_ref().and_then(|exe| exe.parent()).map(PathBuf::from);
        places.extend(deps.map(|deps| deps.join("libsimcuda.so")));
        // Last, because it may be a real driver, which every later open of that name would then return.
        places.push("libcuda.so.1".into());
    }
    let mut why = String::new();
    for place in &places {
        let name = CString::new(place.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a C string; what the library does when it is loaded is nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            why = format!("{}: {}", place.display(), complaint());
        } else if symbol(handle, "simcuda_reset").is_ok() {
            return Ok(handle);
        } else {
            why = format!("{} is not the simulated driver", place.display());
        }
    }
    Err(why)
}

fn complaint() -> String {
    // SAFETY: it takes nothing.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return String::new();
    }
    // SAFETY: a C string that lives until the next call.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: an open library, and a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() { Err(complaint()) } else { Ok(address) }
}
