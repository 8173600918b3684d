//! The NUMA nodes on which memory is placed, using `mbind`. The C library has no function for these calls.

use os::errno;

/// The node from which a page is taken when it is first touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    /// The node of the processor that touches it.
    Local,
    /// One node after the other.
    Interleave,
}

impl Placement {
    pub(crate) const ALL: [Self; 2] = [Self::Local, Self::Interleave];

    /// The name in the environment and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Local => "local",
            Placement::Interleave => "interleave",
        }
    }
}

/// `MPOL_INTERLEAVE`, `MPOL_LOCAL` and `MPOL_F_MEMS_ALLOWED` of `<linux/mempolicy.h>`.
const INTERLEAVE: libc::c_int = 3;
const LOCAL: libc::c_int = 4;
const ALLOWED: libc::c_ulong = 1 << 2;

/// Linux has at most 1024 nodes.
const WORDS: usize = 1024 / u64::BITS as usize;

/// Applies a placement to memory that was not touched yet. Returns the error number if the system refuses.
pub(crate) fn place(base: u64, bytes: u64, placement: Placement) -> Result<(), i32> {
    let mut nodes = [0_u64; WORDS];
    let (mode, count) = match placement {
        Placement::Local => (LOCAL, 0),
        Placement::Interleave => {
            allowed(&mut nodes)?;
            // The kernel subtracts one from this number.
            (INTERLEAVE, WORDS * 64 + 1)
        }
    };
    let mask = if count == 0 { std::ptr::null() } else { nodes.as_ptr() };
    // SAFETY: the mask has that many bits, and the call changes no contents.
    let refused = unsafe { libc::syscall(libc::SYS_mbind, base, bytes, mode, mask, count, 0) };
    if refused == 0 { Ok(()) } else { Err(errno()) }
}

/// Gets the nodes that this process may use.
fn allowed(nodes: &mut [u64; WORDS]) -> Result<(), i32> {
    let (mode, address) = (std::ptr::null_mut::<libc::c_int>(), 0_usize);
    // SAFETY: the kernel writes that many bits into the mask.
    let refused = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, mode, nodes.as_mut_ptr(), WORDS * 64, address, ALLOWED)
    };
    if refused == 0 { Ok(()) } else { Err(errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfc_hostmem::Mapping;

    #[test]
    fn memory_with_a_placement_works() {
        for placement in [Placement::Local, Placement::Interleave] {
            let mapping = Mapping::new(1 << 20, 4096).unwrap();
            match place(mapping.base() as u64, 1 << 20, placement) {
                // SAFETY: the mapping has that many bytes.
                Ok(()) => unsafe { mapping.base().write_bytes(1, 1 << 20) },
                // A kernel without NUMA, or a container that forbids the call.
                Err(errno) => assert!([libc::ENOSYS, libc::EPERM].contains(&errno), "{errno}"),
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        // Nothing is mapped at the lowest page.
        assert_eq!(place(0, 4096, Placement::Local), Err(libc::EFAULT));
    }
}
