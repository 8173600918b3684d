//! The hooks as a table: their names, our functions, and the driver's own.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cuda_sys::{Driver, FUNCTIONS, NEWEST_HEADERS};

use crate::hook_list::Fate;
use crate::hooks::async_alloc::*;
use crate::hooks::context::*;
use crate::hooks::device::*;
use crate::hooks::pinned::*;
use crate::hooks::pointers::*;
use crate::hooks::unanalyzed::*;
use crate::resolve::dlsym::{cuGetProcAddress, cuGetProcAddress_v2};
use crate::state::captures::*;
use crate::state::relations::*;
use crate::state::user_contexts::*;
use crate::unanalyzed_list;

/// A function that we stand before.
pub(crate) struct Hook {
    pub(crate) symbol: &'static CStr,
    /// The function of cuda-sys's list that it is, or is the twin of; of one that is not analysed what `cuGetProcAddress` takes.
    of: &'static str,
    /// The version from which on `cuGetProcAddress` gives one that is not analysed.
    since: c_int,
    pub(crate) ours: *const c_void,
    pub(crate) fate: Fate,
    real: AtomicPtr<c_void>,
    /// It was called, for who watches.
    pub(crate) called: AtomicBool,
    /// It was found by dlsym, and by cuGetProcAddress.
    pub(crate) looked_up: [AtomicBool; 2],
}

// SAFETY: the pointers are of functions, which any thread may call.
unsafe impl Sync for Hook {}

macro_rules! table {
    ($($symbol:ident: $of:ident, $fate:ident, $why:literal;)*) => {
        #[derive(Clone, Copy)]
        enum Place {
            $($symbol,)*
        }

        const COUNT: usize = [$(stringify!($symbol)),*].len();

        pub(crate) static HOOKS: [Hook; COUNT] = [$(Hook {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            of: stringify!($of),
            since: 0,
            ours: $symbol as *const c_void,
            fate: Fate::$fate,
            real: AtomicPtr::new(ptr::null_mut()),
            called: AtomicBool::new(false),
            looked_up: [const { AtomicBool::new(false) }; 2],
        },)*];

        /// The driver's own functions behind the hooks; `None` where there is no driver, or it does not have them.
        pub(crate) mod real {
            use cuda_sys::fns;
            use std::ffi::c_void;

            $(#[inline]
            pub(crate) fn $symbol() -> Option<fns::$of> {
                let address = super::real(super::Place::$symbol as usize)?.as_ptr();
                // SAFETY: the driver exports it by that name, so it has the type that cuda-sys's list says.
                Some(unsafe { std::mem::transmute::<*mut c_void, fns::$of>(address) })
            })*
        }
    };
}
crate::hook_list::hooks!(table);

macro_rules! unanalysed_table {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        /// The hooks of functions that are not analysed.
        static UNANALYSED: [Hook; [$($since),*].len()] = [$(Hook {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            of: $name,
            since: $since,
            ours: $symbol as *const c_void,
            fate: Fate::Watched,
            real: AtomicPtr::new(ptr::null_mut()),
            called: AtomicBool::new(false),
            looked_up: [const { AtomicBool::new(false) }; 2],
        },)*];
    };
}
crate::unanalyzed_list::unanalysed!(unanalysed_table);

/// Every hook.
fn all() -> impl Iterator<Item = &'static Hook> {
    HOOKS.iter().chain(&UNANALYSED)
}

#[inline]
fn real(place: usize) -> Option<ptr::NonNull<c_void>> {
    real_of(HOOKS.get(place)?)
}

/// The driver's own function behind a hook of one that is not analysed.
pub(crate) fn real_unanalysed(place: usize) -> Option<ptr::NonNull<c_void>> {
    real_of(UNANALYSED.get(place)?)
}

#[inline]
fn real_of(hook: &Hook) -> Option<ptr::NonNull<c_void>> {
    if !hook.called.load(Ordering::Relaxed) {
        crate::diagnostics::check_log::called(hook);
    }
    ptr::NonNull::new(hook.real.load(Ordering::Relaxed)).or_else(|| load_real(hook))
}

#[cold]
fn load_real(hook: &Hook) -> Option<ptr::NonNull<c_void>> {
    let driver = load()?;
    if hook.real.load(Ordering::Relaxed).is_null() {
        hook.real.store(driver.symbol(hook.symbol), Ordering::Relaxed);
    }
    ptr::NonNull::new(hook.real.load(Ordering::Relaxed))
}

/// The driver; finds its functions behind the hooks at the first call. Those that are not analysed are found when they are
/// asked for: a driver need not have them all, and a lookup that fails leaves a message behind, which the next `dlsym` frees
/// from within. A malloc that itself calls `dlsym` never comes to an end then.
pub(crate) fn load() -> Option<Driver> {
    static LOADED: AtomicBool = AtomicBool::new(false);
    let driver = Driver::load().ok()?;
    if !LOADED.load(Ordering::Acquire) {
        for hook in &HOOKS {
            hook.real.store(driver.symbol(hook.symbol), Ordering::Relaxed);
        }
        LOADED.store(true, Ordering::Release);
    }
    Some(driver)
}

/// Whether there is a hook by a name that the driver exports.
pub(crate) fn is_one(symbol: &CStr) -> bool {
    all().any(|hook| hook.symbol == symbol)
}

/// The hook for a function of the driver, which was found by a name.
pub(crate) fn before(real: *mut c_void, name: &CStr) -> Option<&'static Hook> {
    load()?;
    if let Some(hook) = UNANALYSED.iter().find(|hook| hook.symbol == name) {
        load_real(hook);
    }
    all().find(|hook| hook.real.load(Ordering::Relaxed) == real)
}

impl Hook {
    /// The driver has given the address of its function.
    pub(crate) fn found(&self, real: *mut c_void) {
        let _ = self.real.compare_exchange(ptr::null_mut(), real, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether there is a hook by a name that `cuGetProcAddress` takes.
pub(crate) fn has_name(name: &CStr) -> bool {
    name.to_str().is_ok_and(has_name_of)
}

fn has_name_of(name: &str) -> bool {
    UNANALYSED.iter().any(|hook| hook.of == name)
        || FUNCTIONS
            .iter()
            .filter(|known| known.name == name)
            .any(|known| HOOKS.iter().any(|hook| hook.of == known.symbol))
}

/// Whether work may touch memory by what `cuGetProcAddress` gives for a name.
pub(crate) fn is_touching(name: &CStr) -> bool {
    name.to_str().is_ok_and(|name| {
        // The 32-bit functions have the names of others.
        unanalyzed_list::may_touch(name) && (has_name_of(name) || !unanalyzed_list::is_harmless(name))
    })
}

/// Whether work may touch memory by a function that no header has which was looked at, or that is not hooked for another
/// reason than being harmless.
pub(crate) fn may_touch_unseen(symbol: &CStr) -> bool {
    symbol.to_str().is_ok_and(|name| {
        unanalyzed_list::may_touch(name) && !unanalyzed_list::is_harmless(name) && !is_one(symbol)
    })
}

/// The hook for what `cuGetProcAddress` gives by a name, a version and flags, as its documentation says. A version later
/// than the headers that cuda-sys's list was compared with may have another function by that name, of another type.
pub(crate) fn by_version(name: &CStr, version: c_int, per_thread: bool) -> Option<&'static Hook> {
    if version > NEWEST_HEADERS {
        return None;
    }
    let name = name.to_str().ok()?;
    let is_twin =
        |hook: &Hook| [&b"_ptsz"[..], b"_ptds"].iter().any(|twin| hook.symbol.to_bytes().ends_with(twin));
    let unanalysed = UNANALYSED.iter().filter(|hook| hook.of == name && hook.since <= version);
    let is_wanted = |hook: &&Hook| is_twin(hook) == per_thread;
    // Not all have a twin.
    let newest = unanalysed.clone().filter(is_wanted).max_by_key(|hook| hook.since);
    if let Some(hook) = newest.or_else(|| unanalysed.max_by_key(|hook| hook.since)) {
        return Some(hook);
    }
    let known = FUNCTIONS.iter().filter(|known| known.name == name && known.since <= version);
    let function = known.max_by_key(|known| known.since)?;
    let twin = function.twin.filter(|_| per_thread && version >= 7000);
    let symbol = twin.unwrap_or(function.symbol);
    HOOKS.iter().find(|hook| hook.of == function.symbol && hook.symbol.to_bytes() == symbol.as_bytes())
}
