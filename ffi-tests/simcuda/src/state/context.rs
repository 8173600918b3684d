//! Devices, contexts, and what is current to a thread.

use std::collections::{BTreeMap, BTreeSet};

use cuda_sys::{CUdevice, CUresult};

use crate::handles::{self, Kind};

/// A simulated device.
pub(crate) struct Device {
    capacity: u64,
    used: u64,
    /// How often the primary context was retained.
    retained: u64,
    flags: u32,
    /// The pool that cuMemAllocAsync takes from; 0 before any was asked for.
    default_pool: u64,
    current_pool: u64,
}

impl Device {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, retained: 0, flags: 0, default_pool: 0, current_pool: 0 }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    /// Counts memory as used.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.used += bytes;
    }

    pub(crate) fn uncharge(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    /// How often the primary context was retained.
    pub(crate) fn retained(&self) -> u64 {
        self.retained
    }

    pub(crate) fn retain(&mut self) {
        self.retained += 1;
    }

    /// Ends a reference to the primary context; how many are left, or None if there was none.
    pub(crate) fn release(&mut self) -> Option<u64> {
        self.retained = self.retained.checked_sub(1)?;
        Some(self.retained)
    }

    /// Of the primary context.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn set_flags(&mut self, flags: u32) {
        self.flags = flags;
    }

    /// The handle of its default pool, if that was asked for.
    pub(crate) fn default_pool(&self) -> Option<u64> {
        (self.default_pool != 0).then_some(self.default_pool)
    }

    /// The default pool, which is the current one at first.
    pub(crate) fn set_default_pool(&mut self, handle: u64) {
        (self.default_pool, self.current_pool) = (handle, handle);
    }

    /// The pool that cuMemAllocAsync takes from.
    pub(crate) fn current_pool(&self) -> u64 {
        self.current_pool
    }

    pub(crate) fn set_current_pool(&mut self, handle: u64) {
        self.current_pool = handle;
    }

    /// A pool is destroyed: if it is the current one, the default one is that again.
    pub(crate) fn forget_pool(&mut self, handle: u64) {
        if self.current_pool == handle {
            self.current_pool = self.default_pool;
        }
    }
}

/// A live context.
pub(crate) struct Context {
    device: CUdevice,
    flags: u32,
    /// The number of its legacy default stream.
    legacy: u64,
    /// Of its per-thread default streams, by thread.
    per_thread: BTreeMap<u64, u64>,
    /// The failure that it answers ever after.
    sticky: Option<CUresult>,
    /// Contexts whose memory its work may touch: "access granted by this call is unidirectional" (cuCtxEnablePeerAccess).
    peers: BTreeSet<u64>,
    unique: u64,
}

impl Context {
    pub(crate) fn new(device: CUdevice, flags: u32, legacy: u64, unique: u64) -> Self {
        let (per_thread, sticky, peers) = (BTreeMap::new(), None, BTreeSet::new());
        Self { device, flags, legacy, per_thread, sticky, peers, unique }
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// The number of its legacy default stream.
    pub(crate) fn legacy(&self) -> u64 {
        self.legacy
    }

    /// The number of a thread's default stream, if it has one.
    pub(crate) fn per_thread(&self, thread: u64) -> Option<u64> {
        self.per_thread.get(&thread).copied()
    }

    pub(crate) fn add_per_thread(&mut self, thread: u64, stream: u64) {
        self.per_thread.insert(thread, stream);
    }

    /// The failure that it answers ever after.
    pub(crate) fn sticky(&self) -> Option<CUresult> {
        self.sticky
    }

    /// It fails for good; the first failure stays.
    pub(crate) fn fail(&mut self, code: CUresult) {
        self.sticky.get_or_insert(code);
    }

    /// Whether its work may touch another context's memory.
    pub(crate) fn may_touch(&self, peer: u64) -> bool {
        self.peers.contains(&peer)
    }

    /// False if it was a peer already.
    pub(crate) fn add_peer(&mut self, peer: u64) -> bool {
        self.peers.insert(peer)
    }

    /// False if it was no peer.
    pub(crate) fn remove_peer(&mut self, peer: u64) -> bool {
        self.peers.remove(&peer)
    }
}

/// What the driver keeps of a thread.
#[derive(Default)]
pub(crate) struct Thread {
    /// Contexts, the current one last. A destroyed one stays if another thread destroyed it.
    stack: Vec<u64>,
    /// How its calls and captures get along: CU_STREAM_CAPTURE_MODE_GLOBAL is 0 and the default.
    capture_mode: u32,
}

impl Thread {
    /// The current context, whatever state it is in.
    pub(crate) fn current(&self) -> Option<u64> {
        self.stack.last().copied()
    }

    pub(crate) fn push(&mut self, context: u64) {
        self.stack.push(context);
    }

    pub(crate) fn pop(&mut self) -> Option<u64> {
        self.stack.pop()
    }

    pub(crate) fn capture_mode(&self) -> u32 {
        self.capture_mode
    }

    /// Sets the mode and gives the one before.
    pub(crate) fn exchange_capture_mode(&mut self, mode: u32) -> u32 {
        std::mem::replace(&mut self.capture_mode, mode)
    }
}

/// A context, and its device, whose work touches memory.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) context: u64,
    pub(crate) device: CUdevice,
}

/// The primary context's handle, which is the same each time it comes to life.
pub(crate) fn primary(device: CUdevice) -> u64 {
    handles::make(Kind::Context, 1 + device as u64)
}
