//! Peers that are compiled from native/ and loaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use libloading::Library;

use crate::peer::Peer;

/// The library of this process's peer.
static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Loads the library that [`Native`] opens.
pub fn load(path: &Path) -> Result<()> {
    // SAFETY: its initialisers are the peer's own.
    let library = unsafe { Library::new(path) }.with_context(|| format!("cannot load {}", path.display()))?;
    LIBRARY.set(library).ok().context("one peer is loaded already")
}

pub struct Native {
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize),
}

impl Peer for Native {
    type Piece = NonNull<c_void>;

    fn open(capacity: u64, touched: bool) -> Result<Self> {
        let library = LIBRARY.get().context("this peer has to be compiled: give --native")?;
        // SAFETY: the type is the one in peer.h, as are those below.
        let open = unsafe { library.get::<unsafe extern "C" fn(u64, c_int) -> *const c_char>(b"peer_open") }?;
        // SAFETY: it is called once.
        let why = unsafe { open(capacity, touched.into()) };
        if !why.is_null() {
            // SAFETY: a text that stays.
            bail!("{}", unsafe { CStr::from_ptr(why) }.to_string_lossy());
        }
        // SAFETY: as above.
        let alloc = *unsafe { library.get(b"peer_alloc") }?;
        // SAFETY: as above.
        let free = *unsafe { library.get(b"peer_free") }?;
        Ok(Self { alloc, free })
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<NonNull<c_void>> {
        // SAFETY: the allocator is open.
        NonNull::new(unsafe { (self.alloc)(bytes as usize) })
    }

    #[inline]
    fn free(&mut self, piece: NonNull<c_void>, bytes: u64) {
        // SAFETY: `alloc` returned it for so many bytes.
        unsafe { (self.free)(piece.as_ptr(), bytes as usize) };
    }

    fn addr(&self, piece: &NonNull<c_void>) -> u64 {
        piece.as_ptr() as u64
    }
}
