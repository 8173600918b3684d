//! Peers that are compiled from native/ and loaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use libloading::Library;

use crate::peer::Peer;
use crate::program::Program;

/// The library of this process's peer.
static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Loads the library that [`Native`] opens.
pub fn load(path: &Path) -> Result<()> {
    // SAFETY: its initialisers are the peer's own.
    let library = unsafe { Library::new(path) }.with_context(|| format!("cannot load {}", path.display()))?;
    LIBRARY.set(library).ok().context("one peer is loaded already")
}

/// Runs a program on the library's allocator as its users get it. Returns the most that it held.
pub fn held(program: &Program) -> Result<u64> {
    let library = LIBRARY.get().context("this peer has to be compiled: give --native")?;
    // SAFETY: the type is the one in peer.h, as is the one below.
    let open = unsafe { library.get::<unsafe extern "C" fn() -> *const c_char>(b"peer_open_on_demand") }?;
    // SAFETY: as above.
    let held = unsafe { library.get::<unsafe extern "C" fn() -> u64>(b"peer_held") }?;
    // SAFETY: it is called once.
    let mut peer = Native::opened(unsafe { open() })?;
    let mut live: Vec<Option<NonNull<c_void>>> = vec![None; program.slots as usize];
    let mut bytes = vec![0; live.len()];
    let mut most = 0;
    for op in &program.pass {
        let slot = op.slot as usize;
        if op.bytes == 0 {
            live[slot].take().into_iter().for_each(|piece| peer.free(piece, bytes[slot]));
            continue;
        }
        live[slot] = Some(peer.alloc(op.bytes).with_context(|| format!("no memory for {} bytes", op.bytes))?);
        bytes[slot] = op.bytes;
        // SAFETY: the allocator is open.
        most = most.max(unsafe { held() });
    }
    Ok(most)
}

pub struct Native {
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize),
}

impl Native {
    /// Returns the allocator that was opened, unless `why` says why it was not.
    fn opened(why: *const c_char) -> Result<Self> {
        if !why.is_null() {
            // SAFETY: a text that stays.
            bail!("{}", unsafe { CStr::from_ptr(why) }.to_string_lossy());
        }
        let library = LIBRARY.get().context("this peer has to be compiled: give --native")?;
        // SAFETY: the type is the one in peer.h.
        let alloc = *unsafe { library.get(b"peer_alloc") }?;
        // SAFETY: as above.
        let free = *unsafe { library.get(b"peer_free") }?;
        Ok(Self { alloc, free })
    }
}

impl Peer for Native {
    type Piece = NonNull<c_void>;

    fn open(capacity: u64, touched: bool) -> Result<Self> {
        let library = LIBRARY.get().context("this peer has to be compiled: give --native")?;
        // SAFETY: the type is the one in peer.h.
        let open = unsafe { library.get::<unsafe extern "C" fn(u64, c_int) -> *const c_char>(b"peer_open") }?;
        // SAFETY: it is called once.
        Self::opened(unsafe { open(capacity, touched.into()) })
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
