//! The log that `bfc run --check` reads: whether the program reached the interposer, and how its requests were handled.
//! Each line is written when the event happens, so that it is there even if the program crashes.

use os::variables;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_sys::NEWEST_HEADERS;

use crate::settings;
use crate::sys::{process, text};
use hook_list::HookKind;

/// The way in which a function was looked up.
#[derive(Clone, Copy)]
pub(crate) enum LookupMethod {
    Dlsym,
    ProcAddress,
}

/// The reason why an allocation went to the driver.
#[derive(Clone, Copy)]
pub(crate) enum PassReason {
    Size,
    Context,
    NoContext,
    Capture,
    OwnPool,
    Full,
    Pool,
}

/// The events already logged for a hook.
pub(crate) struct Seen {
    called: AtomicBool,
    /// Indexed by [`LookupMethod`].
    looked_up: [AtomicBool; 2],
}

impl Seen {
    pub(crate) const fn new() -> Self {
        Seen { called: AtomicBool::new(false), looked_up: [const { AtomicBool::new(false) }; 2] }
    }

    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }
}

const CHECK: &CStr = c"BFC_PRELOAD_CHECK";

fn say(what: fmt::Arguments<'_>) {
    if let Some(path) = variables::value(CHECK) {
        text::append(path, format_args!("{} {what}", process::id()));
    }
}

/// Sets a flag. Returns whether it was not set before.
fn is_first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

pub(crate) fn loaded() {
    if variables::value(CHECK).is_none() {
        return;
    }
    let mut path = [0_u8; 4096];
    // SAFETY: the name is NUL-terminated and the buffer as long as it says.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    let path = usize::try_from(length).ok().and_then(|length| path.get(..length)).unwrap_or_default();
    say(format_args!("loaded {}", std::str::from_utf8(path).unwrap_or("?")));
}

/// Logs that a lookup returned a hook: once for each hook and method.
pub(crate) fn looked_up(by: LookupMethod, seen: &Seen, symbol: &CStr) {
    let way = match by {
        LookupMethod::Dlsym => "dlsym",
        LookupMethod::ProcAddress => "cuGetProcAddress",
    };
    if seen.looked_up.get(by as usize).is_some_and(is_first) {
        say(format_args!("looked-up {way} {}", symbol.to_str().unwrap_or("?")));
    }
}

/// Logs that a lookup of a hooked name returned the driver's own function. The requested version of CUDA is later than
/// the headers known here, so the function may have another type.
#[cold]
pub(crate) fn too_new(name: &CStr, version: c_int) {
    let name = name.to_str().unwrap_or("?");
    say(format_args!("too-new {version} {name}"));
    settings::warn(format_args!(
        "cuGetProcAddress: {name} of CUDA {}.{} is not interposed: libbfc knows the functions up to CUDA {}.{}",
        version / 1000,
        version % 1000 / 10,
        NEWEST_HEADERS / 1000,
        NEWEST_HEADERS % 1000 / 10,
    ));
}

/// Logs the first call of a hook, before it reaches the driver or the pool.
#[cold]
pub(crate) fn called(seen: &Seen, kind: HookKind, symbol: &CStr) {
    let gives = matches!(kind, HookKind::Pooled | HookKind::Optional | HookKind::Passed);
    if is_first(&seen.called) && gives {
        say(format_args!("called {}", symbol.to_str().unwrap_or("?")));
    }
}

#[inline]
pub(crate) fn served(bytes: usize) {
    static SERVED: AtomicBool = AtomicBool::new(false);
    if is_first(&SERVED) {
        say_served(bytes);
    }
}

#[cold]
#[inline(never)]
fn say_served(bytes: usize) {
    say(format_args!("served {bytes}"));
}

#[cold]
#[inline(never)]
pub(crate) fn passed(why: PassReason) {
    static FLAGS: [AtomicBool; 7] = [const { AtomicBool::new(false) }; 7];
    if !FLAGS.get(why as usize).is_some_and(is_first) {
        return;
    }
    match why {
        PassReason::Size => say(format_args!("passed size")),
        PassReason::Context => say(format_args!("passed context")),
        PassReason::NoContext => say(format_args!("passed no-context")),
        PassReason::Capture => say(format_args!("passed capture")),
        PassReason::OwnPool => say(format_args!("passed own-pool")),
        PassReason::Full => say(format_args!("passed full")),
        PassReason::Pool => say(format_args!("passed pool {}", crate::bfc::LastError)),
    }
}

/// Logs the end of the process.
pub(crate) fn exit(is_driver_mapped: bool) {
    say(format_args!("exit driver={}", if is_driver_mapped { "mapped" } else { "absent" }));
}

/// Returns whether this process has loaded a libcuda.so.1.
pub(crate) fn is_driver_mapped() -> bool {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: valid during the call, by the linker's contract.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: not NULL, so a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libcuda.so") {
            // SAFETY: it was made from a bool below.
            unsafe { found.cast::<bool>().write(true) };
        }
        0
    }
    let mut found = false;
    // SAFETY: the function follows the linker's contract, and the pointer is to the local variable.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
