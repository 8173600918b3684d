//! The driver's own functions for the hooks, which the interposer calls.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cuda_sys::Driver;

use crate::diagnostics::check_log::{self, Seen};
use hook_list::HookKind;

/// A function of the driver that has a hook.
pub(crate) struct Function {
    pub(super) symbol: &'static CStr,
    /// The function of cuda-sys's list to which it corresponds, possibly as the twin for the per-thread default stream.
    /// For an unanalyzed function, the name that `cuGetProcAddress` takes.
    pub(super) of: &'static str,
    /// The first version for which `cuGetProcAddress` returns an unanalyzed function.
    pub(super) since: c_int,
    place: usize,
    kind: HookKind,
    address: AtomicPtr<c_void>,
    seen: Seen,
}

macro_rules! table {
    ($($symbol:ident: $of:ident, $kind:ident, $why:literal;)*) => {
        #[derive(Clone, Copy)]
        enum Place {
            $($symbol,)*
        }

        const COUNT: usize = [$(stringify!($symbol)),*].len();

        /// The functions in `hook_list`, in its order.
        pub(super) static ANALYZED: [Function; COUNT] = [$(Function {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            of: stringify!($of),
            since: 0,
            place: Place::$symbol as usize,
            kind: HookKind::$kind,
            address: AtomicPtr::new(ptr::null_mut()),
            seen: Seen::new(),
        },)*];

        /// The driver's own functions for the hooks. `None` if there is no driver, or it lacks the function.
        pub(crate) mod real {
            use cuda_sys::fns;
            use std::ffi::c_void;

            $(#[inline]
            pub(crate) fn $symbol() -> Option<fns::$of> {
                let address = super::real(super::Place::$symbol as usize)?.as_ptr();
                // SAFETY: the driver exports it by that name, so it has the type in cuda-sys's list.
                Some(unsafe { std::mem::transmute::<*mut c_void, fns::$of>(address) })
            })*
        }
    };
}
hook_list::hooks!(table);

macro_rules! unanalyzed_table {
    ($($symbol:ident as $name:literal since $since:literal, $why:literal;)*) => {
        #[derive(Clone, Copy)]
        enum UnanalyzedPlace {
            $($symbol,)*
        }

        /// The functions in `unanalyzed_list`, in its order.
        pub(super) static UNANALYZED: [Function; [$($since),*].len()] = [$(Function {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            of: $name,
            since: $since,
            place: COUNT + UnanalyzedPlace::$symbol as usize,
            kind: HookKind::Watched,
            address: AtomicPtr::new(ptr::null_mut()),
            seen: Seen::new(),
        },)*];
    };
}
crate::unanalyzed_list::unanalyzed!(unanalyzed_table);

/// Returns every function that has a hook.
pub(super) fn all() -> impl Iterator<Item = &'static Function> {
    ANALYZED.iter().chain(&UNANALYZED)
}

impl Function {
    /// Returns the name that libcuda.so.1 exports.
    pub(crate) fn symbol(&self) -> &'static CStr {
        self.symbol
    }

    /// Returns the position in `hook_list`, or after its entries that in `unanalyzed_list`.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Returns what was written to the check log about the function.
    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Records an address that the driver has returned, unless one is known.
    pub(crate) fn note_address(&self, address: *mut c_void) {
        let _ = self.address.compare_exchange(ptr::null_mut(), address, Ordering::Relaxed, Ordering::Relaxed);
    }

    #[inline]
    fn real(&self) -> Option<ptr::NonNull<c_void>> {
        if !self.seen.is_called() {
            check_log::called(&self.seen, self.kind, self.symbol);
        }
        ptr::NonNull::new(self.address.load(Ordering::Relaxed)).or_else(|| self.load())
    }

    #[cold]
    fn load(&self) -> Option<ptr::NonNull<c_void>> {
        let driver = load()?;
        if self.address.load(Ordering::Relaxed).is_null() {
            self.address.store(driver.symbol(self.symbol), Ordering::Relaxed);
        }
        ptr::NonNull::new(self.address.load(Ordering::Relaxed))
    }
}

#[inline]
fn real(place: usize) -> Option<ptr::NonNull<c_void>> {
    ANALYZED.get(place)?.real()
}

/// Returns the driver's own function at a position in `unanalyzed_list`.
pub(crate) fn real_unanalyzed(place: usize) -> Option<ptr::NonNull<c_void>> {
    UNANALYZED.get(place)?.real()
}

/// Returns the driver, and finds its functions for the hooks at the first call. Unanalyzed functions are found when
/// they are requested. A driver need not have them all, and a failing lookup stores a message, which the next
/// `dlsym` frees internally. A malloc that itself calls `dlsym` would then recurse endlessly.
#[inline]
pub(crate) fn load() -> Option<Driver> {
    let driver = Driver::load().ok()?;
    if !IS_LOADED.load(Ordering::Acquire) {
        find_hooked(driver);
    }
    Some(driver)
}

/// Set once the driver's functions for the hooks were looked up.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

#[cold]
fn find_hooked(driver: Driver) {
    for function in &ANALYZED {
        function.address.store(driver.symbol(function.symbol), Ordering::Relaxed);
    }
    IS_LOADED.store(true, Ordering::Release);
}

/// Returns the hooked function at an address that a lookup of `symbol` has returned.
pub(crate) fn at(address: *mut c_void, symbol: &CStr) -> Option<&'static Function> {
    load()?;
    if let Some(function) = UNANALYZED.iter().find(|function| function.symbol == symbol) {
        function.load();
    }
    all().find(|function| function.address.load(Ordering::Relaxed) == address)
}
