//! Devices, contexts, and which is current to a thread.

use std::collections::{BTreeMap, BTreeSet};

use cuda_sys::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUcontext,
    CUdevice, CUresult,
};

use crate::abi::Answer;
use crate::handles::{self, Kind};
use crate::rules::streams::{Role, Stream};
use crate::sim::{self, Sim};
use crate::system;

/// A simulated device.
pub(crate) struct Device {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    /// How often the primary context was retained.
    pub(crate) retained: u64,
    pub(crate) flags: u32,
    /// The pool that cuMemAllocAsync takes from; 0 before any was asked for.
    pub(crate) default_pool: u64,
    pub(crate) current_pool: u64,
}

impl Device {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, retained: 0, flags: 0, default_pool: 0, current_pool: 0 }
    }
}

/// A live context.
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    pub(crate) flags: u32,
    /// The number of its legacy default stream.
    pub(crate) legacy: u64,
    /// Of its per-thread default streams, by thread.
    pub(crate) per_thread: BTreeMap<u64, u64>,
    /// The failure that it answers ever after.
    pub(crate) sticky: Option<CUresult>,
    /// Contexts whose memory its work may touch: "access granted by this call is unidirectional" (cuCtxEnablePeerAccess).
    pub(crate) peers: BTreeSet<u64>,
    pub(crate) unique: u64,
}

/// What the driver keeps of a thread.
#[derive(Default)]
pub(crate) struct Thread {
    /// Contexts, the current one last. A destroyed one stays if another thread destroyed it.
    pub(crate) stack: Vec<u64>,
    /// How its calls and captures get along: CU_STREAM_CAPTURE_MODE_GLOBAL is 0 and the default.
    pub(crate) capture_mode: u32,
}

/// The primary context's handle, which is the same each time it comes to life.
pub(crate) fn primary(device: CUdevice) -> u64 {
    handles::make(Kind::Context, 1 + device as u64)
}

impl Sim {
    pub(crate) fn device(&mut self, device: CUdevice) -> Answer<&mut Device> {
        let index = usize::try_from(device).ok();
        index.and_then(|index| self.devices.get_mut(index)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn this_thread(&mut self) -> &mut Thread {
        self.threads.entry(system::thread()).or_default()
    }

    /// The current context, whatever state it is in.
    pub(crate) fn current_handle(&mut self) -> Option<u64> {
        self.this_thread().stack.last().copied()
    }

    /// The current context, if work can be done there. Error handling in cuda.h: none is
    /// CUDA_ERROR_INVALID_CONTEXT, a destroyed or not initialised primary one CUDA_ERROR_CONTEXT_IS_DESTROYED.
    pub(crate) fn current(&mut self) -> Answer<u64> {
        let handle = self.current_handle().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.healthy(handle)?;
        Ok(handle)
    }

    fn healthy(&self, handle: u64) -> Answer {
        let context = self.contexts.get(&handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        context.sticky.map_or(Ok(()), Err)
    }

    /// The device of the current context.
    pub(crate) fn current_device(&mut self) -> Answer<CUdevice> {
        let handle = self.current()?;
        Ok(self.contexts[&handle].device)
    }

    /// A context that is named by its handle.
    pub(crate) fn context(&mut self, handle: CUcontext) -> Answer<u64> {
        let handle = handle.addr() as u64;
        if self.contexts.contains_key(&handle) {
            return Ok(handle);
        }
        // A primary context that is not active is a known handle, and using it no crash.
        let is_primary = (0..self.devices.len()).any(|device| primary(device as CUdevice) == handle);
        if is_primary {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        if handle != 0 {
            self.stale(Kind::Context, handle);
        }
        Err(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Brings a context to life.
    pub(crate) fn make_context(&mut self, handle: u64, device: CUdevice, flags: u32) {
        let legacy = self.add_stream(Stream::new(handle, device, Role::Legacy, 0, 0));
        let context = Context {
            device,
            flags,
            legacy,
            per_thread: BTreeMap::new(),
            sticky: None,
            peers: BTreeSet::new(),
            unique: self.number(),
        };
        self.contexts.insert(handle, context);
    }

    /// Ends a context with all that it owns. Work that was queued there never happens. Memory of
    /// cuMemCreate and cuMemAllocAsync stays: cuCtxDestroy in cuda.h.
    pub(crate) fn end_context(&mut self, handle: u64) {
        self.contexts.remove(&handle);
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.context == handle).map(|(id, _)| *id).collect();
        for stream in streams {
            self.drop_stream(stream);
        }
        let events = self.events.iter().filter(|(_, event)| event.context == handle);
        for event in events.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.events.remove(&event);
            self.retire(Kind::Event, event);
        }
        let owned = self.allocations.iter().filter(|(_, allocation)| allocation.context == handle);
        for at in owned.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.release(at);
        }
        for context in self.contexts.values_mut() {
            context.peers.remove(&handle);
        }
        sim::wake();
    }
}
