//! Devices, contexts, and the current context of each thread.

use cuda_sys::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUcontext,
    CUdevice,
};

use crate::abi::Answer;
use crate::handles::Kind;
use crate::sim::{self, Sim};
use crate::state::context::{Context, Device, Thread, primary};
use crate::state::stream::{Role, Stream};
use crate::system;

impl Sim {
    pub(crate) fn device(&mut self, device: CUdevice) -> Answer<&mut Device> {
        let index = usize::try_from(device).ok();
        index.and_then(|index| self.devices.get_mut(index)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn this_thread(&mut self) -> &mut Thread {
        self.threads.entry(system::thread()).or_default()
    }

    /// Returns the current context, in whatever state it is.
    pub(crate) fn current_handle(&mut self) -> Option<u64> {
        self.this_thread().current()
    }

    /// Returns the current context, if work can be done there. Error handling in cuda.h: no context is
    /// CUDA_ERROR_INVALID_CONTEXT. A destroyed context, or a primary one that is not initialized, is
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED.
    pub(crate) fn current(&mut self) -> Answer<u64> {
        let handle = self.current_handle().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.healthy(handle)?;
        Ok(handle)
    }

    /// Checks that a context exists and has not failed.
    pub(crate) fn healthy(&self, handle: u64) -> Answer {
        if !self.contexts.contains_key(&handle) {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        self.sticky(handle).map_or(Ok(()), Err)
    }

    /// Returns the context that owns what is created now: a green context's is the primary one.
    pub(crate) fn owner(&mut self) -> Answer<u64> {
        let handle = self.current()?;
        Ok(self.root(handle))
    }

    /// Returns the device of the current context.
    pub(crate) fn current_device(&mut self) -> Answer<CUdevice> {
        let handle = self.current()?;
        Ok(self.contexts[&handle].device())
    }

    /// Returns the context with a handle.
    pub(crate) fn context(&mut self, handle: CUcontext) -> Answer<u64> {
        let handle = handle.addr() as u64;
        if self.contexts.contains_key(&handle) {
            return Ok(handle);
        }
        // An inactive primary context has a known handle, so using it does not crash.
        let is_primary = (0..self.devices.len()).any(|device| primary(device as CUdevice) == handle);
        if is_primary {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        if handle != 0 {
            self.stale(Kind::Context, handle);
        }
        Err(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Creates a live context.
    pub(crate) fn make_context(&mut self, handle: u64, device: CUdevice, flags: u32) {
        let legacy = self.add_stream(Stream::new(handle, device, Role::Legacy, 0, 0));
        let unique = self.number();
        let context = Context::new(device, flags, legacy, unique);
        self.contexts.insert(handle, context);
    }

    /// Retains a primary context, which comes to life unless it is alive.
    pub(crate) fn retain_primary(&mut self, device: CUdevice) -> Answer {
        let flags = self.device(device)?.flags();
        if !self.contexts.contains_key(&primary(device)) {
            self.make_context(primary(device), device, flags);
        }
        self.device(device)?.retain();
        Ok(())
    }

    /// "The context is automatically reset once the last reference to it is released". It is not popped from any stack.
    pub(crate) fn release_primary(&mut self, device: CUdevice) -> Answer {
        let left = self.device(device)?.release().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if left == 0 {
            self.end_context(primary(device));
            self.end_virtual_memory(device);
        }
        Ok(())
    }

    /// Ends a context with everything that it owns, green contexts included. Work queued there is never done. Memory of
    /// cuMemCreate and cuMemAllocAsync stays (cuCtxDestroy in cuda.h).
    pub(crate) fn end_context(&mut self, handle: u64) {
        let green = self.contexts.iter().filter(|(_, context)| context.primary() == Some(handle));
        for green in green.map(|(green, _)| *green).collect::<Vec<_>>() {
            self.end_context(green);
        }
        self.contexts.remove(&handle);
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.context() == handle).map(|(id, _)| *id).collect();
        for stream in streams {
            self.drop_stream(stream);
        }
        let events = self.events.iter().filter(|(_, event)| event.context() == handle);
        for event in events.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.events.remove(&event);
            self.retire(Kind::Event, event);
        }
        let owned = self.allocations.iter().filter(|(_, allocation)| allocation.context == handle);
        for at in owned.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.release(at);
        }
        self.end_arrays(handle);
        for context in self.contexts.values_mut() {
            context.remove_peer(handle);
        }
        sim::wake();
    }
}
