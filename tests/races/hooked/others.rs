//! Other resources that the program gets from the driver: physical memory, and arrays. If the driver has no room, the
//! pool releases its unused memory, without breaking a capture.

use crate::common::hooked::Hooked;
use crate::world::World;
use cuda_sys::*;

/// A granule of physical memory.
const GRANULE: u64 = 2 << 20;

/// An allocation, by its handle.
pub enum Other {
    Physical(u64),
    Array(u64),
}

impl World<Hooked> {
    /// Allocates something from the driver, or frees it.
    pub fn act_on_others(&mut self) {
        if self.others.len() > 2 || self.random.one_in(3) {
            return self.end_other();
        }
        let bytes = self.random.between(1, 4) * GRANULE;
        let physical = self.random.one_in(2);
        let got = self.at(0, move |gpu, _| match physical {
            true => gpu.create_physical(0, bytes).map(Other::Physical),
            false => gpu.create_array(bytes).map(Other::Array),
        });
        self.say(|| format!("{bytes} bytes of the driver's: {}", got.is_ok()));
        match got {
            Ok(other) => {
                self.seen.others += 1;
                self.others.push(other);
            }
            Err(CUDA_ERROR_OUT_OF_MEMORY) => self.seen.without_room += 1,
            Err(code) => panic!("{}\n{bytes} bytes of the driver's: {code}", self.log()),
        }
    }

    fn end_other(&mut self) {
        if self.others.is_empty() {
            return;
        }
        let index = self.random.index(self.others.len());
        let other = self.others.swap_remove(index);
        self.at(0, move |gpu, _| match other {
            Other::Physical(handle) => gpu.release_physical(handle),
            Other::Array(handle) => gpu.destroy_array(handle),
        });
    }

    pub fn end_others(&mut self) {
        while !self.others.is_empty() {
            self.end_other();
        }
    }

    /// At the end, when nothing is pending and nothing in use, the program can allocate all memory that counts as free.
    pub fn has_room(&mut self) {
        let bytes = self.gpu.free_memory() / GRANULE * GRANULE;
        let got = self.gpu.create_physical(0, bytes);
        let handle = got.unwrap_or_else(|code| panic!("{}\n{bytes} bytes are free: {code}", self.log()));
        self.gpu.release_physical(handle);
    }
}
