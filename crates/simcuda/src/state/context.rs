//! Devices, contexts, and the state of each thread.

use std::collections::{BTreeMap, BTreeSet};

use cuda_sys::{CUdevice, CUresult};

use crate::handles::{self, Kind};

/// A simulated device.
pub(crate) struct Device {
    capacity: u64,
    used: u64,
    /// How many times the primary context is retained.
    retained: u64,
    flags: u32,
    /// The pool of cuMemAllocAsync. 0 before one was requested.
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

    /// Returns how many times the primary context is retained.
    pub(crate) fn retained(&self) -> u64 {
        self.retained
    }

    pub(crate) fn retain(&mut self) {
        self.retained += 1;
    }

    /// Ends a reference to the primary context. Returns how many are left, or None if there was none.
    pub(crate) fn release(&mut self) -> Option<u64> {
        self.retained = self.retained.checked_sub(1)?;
        Some(self.retained)
    }

    /// Returns the flags of the primary context.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn set_flags(&mut self, flags: u32) {
        self.flags = flags;
    }

    /// Returns the handle of the default pool, if that was requested before.
    pub(crate) fn default_pool(&self) -> Option<u64> {
        (self.default_pool != 0).then_some(self.default_pool)
    }

    /// Sets the default pool, which is also the current one at first.
    pub(crate) fn set_default_pool(&mut self, handle: u64) {
        (self.default_pool, self.current_pool) = (handle, handle);
    }

    /// Returns the pool of cuMemAllocAsync.
    pub(crate) fn current_pool(&self) -> u64 {
        self.current_pool
    }

    pub(crate) fn set_current_pool(&mut self, handle: u64) {
        self.current_pool = handle;
    }

    /// Records that a pool is destroyed. If it was the current one, the default one becomes current again.
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
    /// The number of the context's legacy default stream.
    legacy: u64,
    /// The numbers of its per-thread default streams, by thread.
    per_thread: BTreeMap<u64, u64>,
    /// The failure that it returns permanently.
    sticky: Option<CUresult>,
    /// Contexts whose memory its work may access: "access granted by this call is unidirectional"
    /// (cuCtxEnablePeerAccess).
    peers: BTreeSet<u64>,
    unique: u64,
    /// The primary context that a green context belongs to.
    primary: Option<u64>,
    /// How often a created context was created and attached to, less how often it was detached from.
    uses: u64,
}

impl Context {
    pub(crate) fn new(device: CUdevice, flags: u32, legacy: u64, unique: u64) -> Self {
        let (per_thread, sticky, peers) = (BTreeMap::new(), None, BTreeSet::new());
        let (primary, uses) = (None, 1);
        Self { device, flags, legacy, per_thread, sticky, peers, unique, primary, uses }
    }

    /// Makes it a green context of a primary one.
    pub(crate) fn of_primary(self, primary: u64) -> Self {
        Self { primary: Some(primary), ..self }
    }

    /// Returns the primary context that a green context belongs to.
    pub(crate) fn primary(&self) -> Option<u64> {
        self.primary
    }

    /// Counts one more use (cuCtxAttach).
    pub(crate) fn attach(&mut self) {
        self.uses += 1;
    }

    /// Counts one use less (cuCtxDetach). Returns whether it was the last one.
    pub(crate) fn detach(&mut self) -> bool {
        self.uses = self.uses.saturating_sub(1);
        self.uses == 0
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

    /// Returns the number of the legacy default stream.
    pub(crate) fn legacy(&self) -> u64 {
        self.legacy
    }

    /// Returns the number of a thread's default stream, if it has one.
    pub(crate) fn per_thread(&self, thread: u64) -> Option<u64> {
        self.per_thread.get(&thread).copied()
    }

    pub(crate) fn add_per_thread(&mut self, thread: u64, stream: u64) {
        self.per_thread.insert(thread, stream);
    }

    /// Returns the failure that the context returns permanently.
    pub(crate) fn sticky(&self) -> Option<CUresult> {
        self.sticky
    }

    /// Makes the context fail permanently. The first failure stays.
    pub(crate) fn fail(&mut self, code: CUresult) {
        self.sticky.get_or_insert(code);
    }

    /// Returns whether the context's work may access another context's memory.
    pub(crate) fn may_touch(&self, peer: u64) -> bool {
        self.peers.contains(&peer)
    }

    /// Adds a peer. Returns false if it was one already.
    pub(crate) fn add_peer(&mut self, peer: u64) -> bool {
        self.peers.insert(peer)
    }

    /// Removes a peer. Returns false if it was none.
    pub(crate) fn remove_peer(&mut self, peer: u64) -> bool {
        self.peers.remove(&peer)
    }
}

/// The driver's data about a thread.
#[derive(Default)]
pub(crate) struct Thread {
    /// The context stack, with the current context last. A context stays there if another thread destroyed it.
    stack: Vec<u64>,
    /// How the thread's calls interact with captures. CU_STREAM_CAPTURE_MODE_GLOBAL is 0 and the default.
    capture_mode: u32,
}

impl Thread {
    /// Returns the current context, in whatever state it is.
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

    /// Sets the mode and returns the previous one.
    pub(crate) fn exchange_capture_mode(&mut self, mode: u32) -> u32 {
        std::mem::replace(&mut self.capture_mode, mode)
    }
}

/// A context whose work accesses memory, and its device.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) context: u64,
    pub(crate) device: CUdevice,
}

/// Returns the primary context's handle, which is the same in each of its lives.
pub(crate) fn primary(device: CUdevice) -> u64 {
    handles::make(Kind::Context, 1 + device as u64)
}
