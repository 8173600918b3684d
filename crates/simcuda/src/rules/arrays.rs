//! Arrays. Their memory counts; nothing can be copied to it or from it.

use cuda_sys::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};

use crate::abi::Answer;
use crate::handles::{self, Kind};
use crate::sim::Sim;
use crate::state::arena::ALIGNMENT;
use crate::state::array::Array;
use crate::system::round_up;

impl Sim {
    /// Creates an array in the current context and returns its handle.
    pub(crate) fn make_array(&mut self, kind: Kind, bytes: u64) -> Answer<u64> {
        let context = self.owner()?;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.forbid_unsafe()?;
        let (device, bytes) = (self.contexts[&context].device(), round_up(bytes, ALIGNMENT));
        self.charge(device, bytes)?;
        let handle = self.handle(kind);
        self.arrays.insert(handle, Array { context, device, bytes });
        Ok(handle)
    }

    pub(crate) fn destroy_array(&mut self, kind: Kind, handle: u64) -> Answer {
        self.current()?;
        if handles::number(kind, handle).is_none() || !self.arrays.contains_key(&handle) {
            self.stale(kind, handle);
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        self.forbid_unsafe()?;
        self.end_array(handle);
        self.retire(kind, handle);
        Ok(())
    }

    fn end_array(&mut self, handle: u64) {
        let Some(Array { device, bytes, .. }) = self.arrays.remove(&handle) else { return };
        if let Ok(device) = self.device(device) {
            device.uncharge(bytes);
        }
    }

    /// Ends the arrays of a context, as its memory.
    pub(crate) fn end_arrays(&mut self, context: u64) {
        let own = self.arrays.iter().filter(|(_, array)| array.context == context);
        for handle in own.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.end_array(handle);
        }
    }
}
