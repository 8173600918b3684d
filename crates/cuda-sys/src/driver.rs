//! The driver in this process: opened at first use, with every function looked up by its version.

use crate::constants::*;
use crate::error::{Error, Missing};
use crate::linker::{Library, Linker};
use crate::types::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// A function of the driver, as data; see [`driver_functions!`](crate::driver_functions).
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The symbol that libcuda.so.1 exports.
    pub symbol: &'static str,
    /// The name that `cuGetProcAddress` takes.
    pub name: &'static str,
    /// The first CUDA version whose `cuGetProcAddress` returns this function for that name.
    pub since: c_int,
    /// The symbol for the per-thread default stream.
    pub twin: Option<&'static str>,
    /// Names and types of the arguments, as written in Rust.
    pub arguments: &'static [(&'static str, &'static str)],
}

/// The data of a function that the loader needs.
struct Entry {
    symbol: &'static CStr,
    name: &'static CStr,
    since: c_int,
}

const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name with a NUL in it"),
    }
}

const fn only(twins: &[&'static str]) -> Option<&'static str> {
    match twins {
        [twin] => Some(twin),
        _ => None,
    }
}

macro_rules! table {
    ($(fn $symbol:ident as $name:literal since $since:literal $(twin $twin:ident)?
        ($($argument:ident: $type:ty),*);)*) => {
        /// The types of the driver's functions, by their symbols.
        pub mod fns {
            #![allow(missing_docs)] // NVIDIA's manual documents them.
            use crate::types::*;
            use std::ffi::*;

            $(pub type $symbol = unsafe extern "C" fn($($argument: $type),*) -> CUresult;)*
        }

        /// Every function of the list.
        pub const FUNCTIONS: &[Function] = &[$(Function {
            symbol: stringify!($symbol),
            name: $name,
            since: $since,
            twin: only(&[$(stringify!($twin))?]),
            arguments: &[$((stringify!($argument), stringify!($type)),)*],
        },)*];

        static ENTRIES: [Entry; FUNCTIONS.len()] = [$(Entry {
            symbol: terminated(concat!(stringify!($symbol), "\0")),
            name: terminated(concat!($name, "\0")),
            since: $since,
        },)*];

        /// The index of each function in the table.
        enum Place {
            $($symbol,)*
        }

        /// The functions, by their symbols. Each is an error with a message if this driver lacks it.
        #[allow(missing_docs)] // NVIDIA's manual documents them.
        impl Driver {
            $(
                #[inline]
                pub fn $symbol(self) -> Result<fns::$symbol, Missing> {
                    let address = self.address(Place::$symbol as usize)?;
                    // SAFETY: the driver returned it as the function of that name and version, which has that type.
                    Ok(unsafe { std::mem::transmute::<*mut c_void, fns::$symbol>(address) })
                }
            )*
        }
    };
}

crate::driver_functions!(table);

/// NULL if the driver has no such function. Written before `LOADED` is, and always with the same values.
static ADDRESSES: [AtomicPtr<c_void>; FUNCTIONS.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS.len()];

static VERSION: AtomicI32 = AtomicI32::new(0);

static LOADED: AtomicBool = AtomicBool::new(false);

/// The open library. Concurrent threads get the same handle.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The driver, open in this process. It is never closed.
#[derive(Clone, Copy, Debug)]
pub struct Driver(());

impl Driver {
    /// Returns the driver, which is opened at the first call. The caller must call `cuInit`. A failure is not
    /// remembered, because the driver may be available next time. Concurrent threads do the same work instead of
    /// waiting for each other, because after a fork the other thread may not exist.
    #[inline]
    pub fn load() -> Result<Self, Error> {
        if LOADED.load(Ordering::Acquire) { Ok(Driver(())) } else { Self::open() }
    }

    #[cold]
    #[inline(never)]
    fn open() -> Result<Self, Error> {
        let library = Linker::find()?.open(c"libcuda.so.1")?;
        if let Err(error) = fill(library) {
            library.close();
            return Err(error);
        }
        LIBRARY.store(library.handle().as_ptr(), Ordering::Relaxed);
        LOADED.store(true, Ordering::Release);
        Ok(Driver(()))
    }

    /// Returns the driver's export with that name, or NULL, even if the process has another function with that name
    /// before it.
    pub fn symbol(self, name: &CStr) -> *mut c_void {
        let handle = ptr::NonNull::new(LIBRARY.load(Ordering::Relaxed));
        match (Linker::find(), handle) {
            (Ok(linker), Some(handle)) => linker.library(handle).symbol(name),
            _ => ptr::null_mut(),
        }
    }

    /// The CUDA version that the driver supports: 1000 times the major and 10 times the minor number.
    pub fn version(self) -> c_int {
        VERSION.load(Ordering::Relaxed)
    }

    #[inline]
    fn address(self, place: usize) -> Result<*mut c_void, Missing> {
        let address = ADDRESSES[place].load(Ordering::Relaxed);
        if address.is_null() { Err(self.missing(place)) } else { Ok(address) }
    }

    #[cold]
    fn missing(self, place: usize) -> Missing {
        let Entry { symbol, since, .. } = ENTRIES[place];
        Missing { symbol: symbol.to_str().unwrap_or_default(), since, driver: self.version() }
    }
}

/// Looks up everything. If the library is not a driver it is closed again.
fn fill(library: Library) -> Result<(), Error> {
    let version = version_of(library)?;
    if library.symbol(c"cuInit").is_null() {
        return Err(Error::NotADriver { symbol: "cuInit" });
    }
    let resolver = Resolver::of(library);
    VERSION.store(version, Ordering::Relaxed);
    for (entry, address) in ENTRIES.iter().zip(&ADDRESSES) {
        // A symbol of a version later than the driver's own has no documented type.
        let found = if entry.since > version { ptr::null_mut() } else { resolver.find(library, entry) };
        address.store(found, Ordering::Relaxed);
    }
    Ok(())
}

fn version_of(library: Library) -> Result<c_int, Error> {
    let address = library.symbol(c"cuDriverGetVersion");
    if address.is_null() {
        return Err(Error::NotADriver { symbol: "cuDriverGetVersion" });
    }
    // SAFETY: the driver's function of that name has had this type since CUDA 2.2.
    let get = unsafe { std::mem::transmute::<*mut c_void, fns::cuDriverGetVersion>(address) };
    let mut version = 0;
    // SAFETY: the pointer is valid; the function needs no initialisation.
    match unsafe { get(&mut version) } {
        CUDA_SUCCESS if version > 0 => Ok(version),
        code => Err(Error::NoVersion { code }),
    }
}

/// The way in which the driver returns functions by name and version.
enum Resolver {
    /// Since CUDA 12.
    Five(fns::cuGetProcAddress_v2),
    /// Since CUDA 11.3.
    Four(fns::cuGetProcAddress),
    /// Earlier: by their symbols only.
    None,
}

impl Resolver {
    fn of(library: Library) -> Self {
        let five = library.symbol(c"cuGetProcAddress_v2");
        if !five.is_null() {
            // SAFETY: the driver's function of that symbol has that type.
            return Resolver::Five(unsafe {
                std::mem::transmute::<*mut c_void, fns::cuGetProcAddress_v2>(five)
            });
        }
        let four = library.symbol(c"cuGetProcAddress");
        if four.is_null() {
            return Resolver::None;
        }
        // SAFETY: the driver's function of that symbol has that type.
        Resolver::Four(unsafe { std::mem::transmute::<*mut c_void, fns::cuGetProcAddress>(four) })
    }

    /// Returns the function's address, or NULL. A function that the driver does not return by version is looked up by
    /// its symbol, which also names the version.
    fn find(&self, library: Library, entry: &Entry) -> *mut c_void {
        let mut address = ptr::null_mut();
        let (name, since, flags) =
            (entry.name.as_ptr(), entry.since, CU_GET_PROC_ADDRESS_LEGACY_STREAM.into());
        let mut how: CUdriverProcAddressQueryResult = CU_GET_PROC_ADDRESS_SUCCESS;
        let result = match self {
            // SAFETY: the name is NUL-terminated, and the pointers are valid.
            Resolver::Five(get) => unsafe { get(name, &mut address, since, flags, &mut how) },
            // SAFETY: as above.
            Resolver::Four(get) => unsafe { get(name, &mut address, since, flags) },
            Resolver::None => CUDA_ERROR_NOT_FOUND,
        };
        if result == CUDA_SUCCESS && how == CU_GET_PROC_ADDRESS_SUCCESS && !address.is_null() {
            return address;
        }
        library.symbol(entry.symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_unique_and_begin_with_their_names() {
        let mut symbols: Vec<_> = FUNCTIONS.iter().flat_map(|f| [Some(f.symbol), f.twin]).flatten().collect();
        let all = symbols.len();
        symbols.sort_unstable();
        symbols.dedup();
        assert_eq!(symbols.len(), all);
        for Function { symbol, name, since, twin, .. } in FUNCTIONS {
            let version = symbol.strip_prefix(name).unwrap();
            assert!(version.is_empty() || version.starts_with("_v"), "{symbol}");
            assert!((2000..14000).contains(since) && since % 10 == 0, "{symbol} since {since}");
            let suffix = twin.map(|twin| twin.strip_prefix(symbol).unwrap());
            assert!(suffix.is_none_or(|suffix| ["_ptsz", "_ptds"].contains(&suffix)), "{twin:?}");
        }
    }

    #[test]
    fn of_one_name_each_symbol_has_a_version_of_its_own() {
        let mut versions: Vec<_> = FUNCTIONS.iter().map(|f| (f.name, f.since)).collect();
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), FUNCTIONS.len());
    }
}
