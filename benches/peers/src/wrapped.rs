//! What libbfc has and the crates have not, around one of them: a lock, and a map from addresses to pieces, so that a caller
//! keeps a pointer only.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use crate::peer::Peer;

/// An allocator behind a lock and a map.
pub struct Wrapped<P: Peer> {
    lock: AtomicBool,
    peer: P,
    pieces: HashMap<u64, P::Piece, BuildHasherDefault<Multiply>>,
}

/// One multiplication: addresses differ in their middle bits.
#[derive(Default)]
pub struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are numbers");
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key) * 0x9E37_79B9_7F4A_7C15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl<P: Peer> Wrapped<P> {
    #[inline]
    fn acquire(&self) {
        while self.lock.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn release(&self) {
        self.lock.store(false, Ordering::Release);
    }
}

impl<P: Peer> Peer for Wrapped<P> {
    type Piece = u64;

    fn open(capacity: u64, touched: bool) -> Result<Self> {
        let (lock, pieces) = (AtomicBool::new(false), HashMap::default());
        Ok(Self { lock, peer: P::open(capacity, touched)?, pieces })
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<u64> {
        self.acquire();
        let addr = self.peer.alloc(bytes).map(|piece| {
            let addr = self.peer.addr(&piece);
            self.pieces.insert(addr, piece);
            addr
        });
        self.release();
        addr
    }

    #[inline]
    fn free(&mut self, piece: u64, bytes: u64) {
        self.acquire();
        if let Some(piece) = self.pieces.remove(&piece) {
            self.peer.free(piece, bytes);
        }
        self.release();
    }

    fn addr(&self, piece: &u64) -> u64 {
        *piece
    }
}
