//! The dynamic linker, bypassing interposers.
//!
//! An interposer in the same process exports `dlsym` and the driver's names, to see what the program allocates.
//! It must not see the calls of this crate: the program's allocator would be entered from its own backend. The C
//! library's `dlsym` is therefore taken from the C library by `dlvsym`, and every name is looked up in a handle, never
//! in the process.

use crate::error::{Error, Words};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Dlsym = unsafe extern "C" fn(handle: *mut c_void, name: *const c_char) -> *mut c_void;

/// The library with `dlsym`: since glibc 2.34 the C library, before that a library of its own.
const HOMES: [&CStr; 2] = [c"libc.so.6", c"libdl.so.2"];

/// The versions of the C library's `dlsym`, for callers that bypass an interposer's: the current one,
/// the older one on 64-bit ARM, the older one on x86-64.
pub const DLSYM_VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];

/// The C library's `dlsym`.
#[derive(Clone, Copy)]
pub(crate) struct Linker {
    dlsym: Dlsym,
}

impl Linker {
    pub(crate) fn find() -> Result<Self, Error> {
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let mut found = FOUND.load(Relaxed);
        if found.is_null() {
            // Concurrent threads find the same address.
            found = real_dlsym().ok_or(Error::NoLinker)?.as_ptr();
            FOUND.store(found, Relaxed);
        }
        // SAFETY: it is the C library's function of that name, which has that type.
        let dlsym = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(found) };
        Ok(Linker { dlsym })
    }

    /// Opens a library and keeps it open.
    pub(crate) fn open(self, name: &CStr) -> Result<Library, Error> {
        // SAFETY: the name is NUL-terminated. The library's constructors are the driver's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { linker: self, handle }),
            None => Err(Error::NoDriver(linker_s_words())),
        }
    }

    /// A library that this crate has opened.
    pub(crate) fn library(self, handle: NonNull<c_void>) -> Library {
        Library { linker: self, handle }
    }
}

/// An open library.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    linker: Linker,
    handle: NonNull<c_void>,
}

impl Library {
    pub(crate) fn handle(self) -> NonNull<c_void> {
        self.handle
    }

    /// Returns the address of a symbol of the library or of its dependencies, or NULL.
    pub(crate) fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is of an open library, and the name is NUL-terminated.
        unsafe { (self.linker.dlsym)(self.handle.as_ptr(), name.as_ptr()) }
    }

    /// Closes a library of which nothing is used.
    pub(crate) fn close(self) {
        // SAFETY: the handle is of an open library; no address of it was kept.
        unsafe { libc::dlclose(self.handle.as_ptr()) };
    }
}

/// RTLD_DEFAULT and RTLD_NEXT are not used: the `dlsym` of a library without any versions matches every version.
fn real_dlsym() -> Option<NonNull<c_void>> {
    let loaded_already: c_int = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    HOMES.iter().find_map(|home| {
        // SAFETY: the name is NUL-terminated.
        let handle = NonNull::new(unsafe { libc::dlopen(home.as_ptr(), loaded_already) })?;
        let found = DLSYM_VERSIONS.iter().find_map(|version| {
            // SAFETY: the handle is of an open library, the names are NUL-terminated.
            let found = unsafe { libc::dlvsym(handle.as_ptr(), c"dlsym".as_ptr(), version.as_ptr()) };
            NonNull::new(found)
        });
        // SAFETY: the handle was opened above. The C library itself stays.
        unsafe { libc::dlclose(handle.as_ptr()) };
        found
    })
}

fn linker_s_words() -> Words {
    // SAFETY: it returns NULL or a text that is valid until this thread's next call of the linker.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return Words::new(c"libcuda.so.1 cannot be opened");
    }
    // SAFETY: not NULL, so a NUL-terminated text, which is copied here.
    Words::new(unsafe { CStr::from_ptr(words) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_finds_symbols_and_says_what_it_does_not_open() {
        let linker = Linker::find().unwrap();
        let libc = linker.open(c"libc.so.6").unwrap();
        assert!(!libc.symbol(c"malloc").is_null());
        assert!(libc.symbol(c"cuMemAlloc_v2").is_null());
        libc.close();
        let Err(Error::NoDriver(words)) = linker.open(c"libno-such-library.so") else { panic!("it opened") };
        assert!(words.as_str().contains("libno-such-library.so"), "{}", words.as_str());
    }
}
