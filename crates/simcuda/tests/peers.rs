//! Which device's work may touch which memory: plain memory by cuCtxEnablePeerAccess, virtual memory by cuMemSetAccess, the
//! memory of pools by cuMemPoolSetAccess.

mod common;
use common::*;

const GRANULE: u64 = 2 << 20;
const NON_BLOCKING: u32 = CU_STREAM_NON_BLOCKING;

impl Machine {
    fn can_access(&self, device: CUdevice, peer: CUdevice) -> bool {
        let function = self.driver.cuDeviceCanAccessPeer().unwrap();
        let mut can = 9;
        // SAFETY: the result lives.
        answer(unsafe { function(&raw mut can, device, peer) }).unwrap();
        can == 1
    }

    /// A granule that is mapped, of a device's memory; not accessible yet.
    fn granule(&self, device: CUdevice) -> CUdeviceptr {
        let at = self.address_reserve(GRANULE as usize, 0, 0, 0).unwrap();
        let handle = self.create(GRANULE as usize, &self.properties(device, 0), 0).unwrap();
        self.map(at, GRANULE as usize, 0, handle, 0).unwrap();
        at
    }

    fn disable_peer(&self, peer: CUcontext) -> Answer {
        let function = self.driver.cuCtxDisablePeerAccess().unwrap();
        // SAFETY: handles are checked.
        answer(unsafe { function(peer) })
    }

    fn copy_peer(&self, to: (u64, CUcontext), from: (u64, CUcontext), bytes: usize) -> Answer {
        let function = self.driver.cuMemcpyPeer().unwrap();
        // SAFETY: addresses and handles are checked.
        answer(unsafe { function(to.0, to.1, from.0, from.1, bytes) })
    }

    fn pool_access(&self, pool: CUmemoryPool, device: CUdevice, flags: CUmemAccess_flags) -> Answer {
        let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let function = self.driver.cuMemPoolSetAccess().unwrap();
        // SAFETY: one description that lives.
        answer(unsafe { function(pool, &CUmemAccessDesc { location, flags }, 1) })
    }

    /// Whether a kernel may touch 8 bytes there, on a fresh stream of the current context. After a refusal the context is
    /// reset, as the refusal is a sticky error.
    fn touches(&self, at: CUdeviceptr) -> bool {
        let before = self.steer.misuses();
        let stream = self.stream(NON_BLOCKING).unwrap();
        self.fill(stream, at, 8, 5).unwrap();
        let synchronized = self.stream_synchronize(stream);
        let is_refused = self.steer.misuses() > before;
        assert_eq!(synchronized.is_err(), is_refused);
        if is_refused {
            assert_eq!(synchronized, Err(CUDA_ERROR_ILLEGAL_ADDRESS));
        }
        !is_refused
    }
}

/// "Note that access granted by this call is unidirectional": by context, not by device.
#[test]
fn peer_access_is_of_a_context_and_one_way() {
    let machine = machine(2);
    let first = machine.enter(0);
    let here = machine.alloc(512).unwrap();
    let second = machine.enter(1);
    let there = machine.alloc(512).unwrap();
    // A second context of device 1, which has enabled nothing, and whose memory is not part of it either.
    let other = machine.context(0, 1).unwrap();
    let elsewhere = machine.alloc(512).unwrap();
    machine.set_current(second).unwrap();
    machine.enable_peer(first, 0).unwrap();
    assert!(machine.touches(here));
    machine.set_current(first).unwrap();
    machine.enable_peer(second, 0).unwrap();
    assert!(machine.touches(there));
    assert!(!machine.touches(elsewhere), "another context of a device whose primary one is a peer");
    machine.set_current(other).unwrap();
    assert!(!machine.touches(here), "another context has enabled it");
}

#[test]
fn the_other_way_is_not_enabled() {
    let machine = machine(2);
    let first = machine.enter(0);
    let second = machine.enter(1);
    let there = machine.alloc(512).unwrap();
    machine.enable_peer(first, 0).unwrap();
    machine.set_current(first).unwrap();
    assert!(!machine.touches(there));
    machine.set_current(second).unwrap();
    assert!(machine.touches(there));
}

/// By cuCtxDisablePeerAccess, by the end of the peer's context, and by that of the own one.
#[test]
fn peer_access_ends() {
    for way in 0..3 {
        let machine = machine(2);
        let first = machine.enter(0);
        let second = machine.enter(1);
        machine.enable_peer(first, 0).unwrap();
        match way {
            0 => {
                machine.disable_peer(first).unwrap();
                assert_eq!(machine.disable_peer(first), Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED));
            }
            1 => {
                machine.primary_reset(0).unwrap();
                assert_eq!(machine.enter(0), first, "the same handle");
            }
            _ => {
                machine.primary_reset(1).unwrap();
                assert_eq!(machine.enter(1), second, "the same handle");
            }
        }
        machine.set_current(first).unwrap();
        let here = machine.alloc(512).unwrap();
        machine.set_current(second).unwrap();
        assert!(!machine.touches(here), "{way}");
    }
}

/// "Returns CUDA_ERROR_INVALID_CONTEXT [...] if the current context is peerContext", and
/// "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if cuDeviceCanAccessPeer() indicates that the CUdevice of the current context cannot
/// directly access memory from the CUdevice of peerContext".
#[test]
fn what_cannot_be_enabled() {
    let machine = machine(3);
    let first = machine.enter(0);
    assert_eq!(machine.enable_peer(first, 0), Err(CUDA_ERROR_INVALID_CONTEXT));
    let own = machine.context(0, 0).unwrap();
    assert!(!machine.can_access(0, 0));
    assert_eq!(machine.enable_peer(first, 0), Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
    machine.context_destroy(own).unwrap();
    let second = machine.primary(1).unwrap();
    let third = machine.primary(2).unwrap();
    assert_eq!(machine.enable_peer(second, 1), Err(CUDA_ERROR_INVALID_VALUE));
    // Pairs: 0 and 1.
    machine.steer.set(steer::PEERS, 2);
    assert!(machine.can_access(0, 1) && machine.can_access(1, 0));
    assert!(!machine.can_access(0, 2) && !machine.can_access(2, 1));
    machine.enable_peer(second, 0).unwrap();
    assert_eq!(machine.enable_peer(third, 0), Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
    // Only those of lower ordinals.
    machine.steer.set(steer::PEERS, 3);
    assert!(machine.can_access(2, 0) && machine.can_access(2, 1) && machine.can_access(1, 0));
    assert!(!machine.can_access(0, 2) && !machine.can_access(0, 1) && !machine.can_access(1, 2));
    machine.steer.set(steer::PEERS, 0);
    assert!(!machine.can_access(2, 0));
}

/// "CUDA's virtual memory management APIs enable applications to explicitly protect their VA ranges": cuMemSetAccess alone
/// decides.
#[test]
fn virtual_memory_knows_no_peer_contexts() {
    let machine = machine(2);
    let first = machine.enter(0);
    let at = machine.granule(0);
    machine.allow(at, GRANULE, 0).unwrap();
    let second = machine.enter(1);
    machine.enable_peer(first, 0).unwrap();
    machine.set_current(first).unwrap();
    assert!(machine.touches(at));
    machine.set_current(second).unwrap();
    assert!(!machine.touches(at), "enabled, and not set");
    machine.primary_reset(1).unwrap();
    machine.enter(1);
    machine.allow(at, GRANULE, 1).unwrap();
    assert!(machine.touches(at), "set, and not enabled");
}

/// All descriptions are taken or none is; a device that cannot reach the memory is refused.
#[test]
fn access_of_several_devices_is_set_at_once() {
    let machine = machine(3);
    machine.enter(0);
    let at = machine.granule(1);
    let description = |device| CUmemAccessDesc {
        location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let all = [description(1), description(0), description(2)];
    let access = |device| {
        let function = machine.driver.cuMemGetAccess().unwrap();
        let mut flags = 9;
        // SAFETY: both live.
        answer(unsafe { function(&raw mut flags, &description(device).location, at) }).unwrap();
        flags
    };
    // Device 2 reaches devices 0 and 1, device 0 reaches none.
    machine.steer.set(steer::PEERS, 3);
    let refused = machine.set_access(at, GRANULE as usize, all.as_ptr(), 3);
    assert_eq!(refused, Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!([0, 1, 2].map(access), [0; 3]);
    let two = [all[0], all[2]];
    machine.set_access(at, GRANULE as usize, two.as_ptr(), 2).unwrap();
    assert_eq!([0, 1, 2].map(access), [0, 3, 3]);
}

/// A copy looks at the current context's access, at the call: cudaMemcpy and cudaMemcpyAsync with memory of cuMemMap or of a
/// pool fail where the current device has none. cudaMemcpyPeer names the contexts, and needs none.
#[test]
fn copies_of_memory_that_is_no_plain_memory() {
    let machine = machine(2);
    let first = machine.enter(0);
    let at = machine.granule(0);
    machine.allow(at, GRANULE, 0).unwrap();
    let from_pool = machine.alloc_async(512, LEGACY).unwrap();
    let plain = machine.alloc(512).unwrap();
    let second = machine.enter(1);
    let there = machine.alloc(512).unwrap();
    let stream = machine.stream(NON_BLOCKING).unwrap();
    let mut host = [0_u8; 64];
    let host = host.as_mut_ptr().addr() as u64;
    for (memory, refused) in [(at, true), (from_pool, true), (plain, false)] {
        let expected = if refused { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) };
        for other in [there, host] {
            for (to, from) in [(memory, other), (other, memory)] {
                assert_eq!(machine.copy(to, from, 64), expected, "{to:#x} {from:#x}");
                assert_eq!(machine.copy_async(to, from, 64, stream), expected, "{to:#x} {from:#x}");
                machine.set_current(first).unwrap();
                machine.copy(to, from, 64).unwrap();
                machine.set_current(second).unwrap();
            }
        }
        machine.copy_peer((memory, first), (there, second), 64).unwrap();
        machine.copy_peer((there, second), (memory, first), 64).unwrap();
        // Named wrongly.
        let wrong = machine.copy_peer((memory, second), (there, second), 64);
        assert_eq!(wrong, Err(CUDA_ERROR_INVALID_VALUE));
    }
    machine.synchronize().unwrap();
    machine.was_well_used();
    machine.allow(at, GRANULE, 1).unwrap();
    machine.copy(there, at, 64).unwrap();
    machine.synchronize().unwrap();
    machine.was_well_used();
    // The stream's device copies, and the current one's access is of no use to it.
    machine.set_current(first).unwrap();
    machine.primary_reset(1).unwrap();
    machine.enter(1);
    let stream = machine.stream(NON_BLOCKING).unwrap();
    machine.set_current(first).unwrap();
    let own = machine.granule(0);
    machine.allow(own, GRANULE, 0).unwrap();
    machine.copy_async(own, plain, 64, stream).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}

/// "memory pool allocation accessibility does not follow cudaDeviceEnablePeerAccess or cuCtxEnablePeerAccess".
#[test]
fn pools_know_no_peer_contexts() {
    let machine = machine(3);
    let first = machine.enter(0);
    let pool = machine.default_pool(0).unwrap();
    let memory = machine.alloc_async(512, LEGACY).unwrap();
    machine.synchronize().unwrap();
    machine.enter(1);
    machine.enable_peer(first, 0).unwrap();
    assert!(!machine.touches(memory));
    machine.primary_reset(1).unwrap();
    machine.enter(1);
    machine.steer.set(steer::PEERS, 2);
    let (none, all) = (CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_eq!(machine.pool_access(pool, 2, all), Err(CUDA_ERROR_INVALID_DEVICE), "no peer");
    assert_eq!(machine.pool_access(pool, 0, none), Err(CUDA_ERROR_INVALID_VALUE), "its own");
    // "cudaMemPoolSetAccess affects all allocations from the memory pool, not just future ones."
    machine.pool_access(pool, 1, all).unwrap();
    assert!(machine.touches(memory));
    machine.pool_access(pool, 1, none).unwrap();
    assert!(!machine.touches(memory));
}

/// "the allocation node records the peer accessibility of the allocating pool at the time of the capture".
#[test]
fn memory_of_a_graph_keeps_the_access_of_its_capture() {
    for before in [false, true] {
        let machine = machine(2);
        machine.enter(0);
        let pool = machine.default_pool(0).unwrap();
        let all = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if before {
            machine.pool_access(pool, 1, all).unwrap();
        }
        let stream = machine.stream(NON_BLOCKING).unwrap();
        machine.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let memory = machine.alloc_async(512, stream).unwrap();
        let graph = machine.end_capture(stream).unwrap();
        machine.pool_access(pool, 1, all).unwrap();
        let executable = machine.instantiate(graph, 0).unwrap();
        machine.graph_launch(executable, stream).unwrap();
        machine.stream_synchronize(stream).unwrap();
        machine.enter(1);
        assert_eq!(machine.touches(memory), before);
    }
}

/// What pointers say: the range is the reservation, and access is that of the current context's device.
#[test]
fn pointers_tell_who_may_access() {
    let machine = machine(2);
    machine.enter(0);
    let at = machine.address_reserve(4 * GRANULE as usize, 0, 0, 0).unwrap();
    let mut wanted = machine.properties(0, 0);
    wanted.allocFlags.gpuDirectRDMACapable = 1;
    let handle = machine.create(GRANULE as usize, &wanted, 0).unwrap();
    machine.map(at + GRANULE, GRANULE as usize, 0, handle, 0).unwrap();
    machine.allow(at + GRANULE, GRANULE, 0).unwrap();
    let tell = |attribute: CUpointer_attribute, address: u64| {
        let mut value = 0_u64;
        let function = machine.driver.cuPointerGetAttribute().unwrap();
        // SAFETY: no attribute here is longer than 8 bytes.
        answer(unsafe { function((&raw mut value).cast(), attribute, address) }).map(|()| value)
    };
    let inside = at + GRANULE + 512;
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), Ok(at));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), Ok(4 * GRANULE));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside), Ok(at + GRANULE));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside), Ok(GRANULE));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, inside), Ok(1));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), Ok(0));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), Ok(3));
    let plain = machine.alloc(512).unwrap();
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, plain), Ok(3));
    let first = machine.current().unwrap();
    machine.enter(1);
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), Ok(0));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, plain), Ok(0));
    machine.enable_peer(first, 0).unwrap();
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), Ok(0));
    assert_eq!(tell(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, plain), Ok(3));
}

/// "Device supports specifying the GPUDirect RDMA flag with cuMemCreate": where it does not the flag is refused.
#[test]
fn the_flag_for_gpudirect_rdma() {
    let machine = ready();
    let mut wanted = machine.properties(0, 0);
    wanted.allocFlags.gpuDirectRDMACapable = 1;
    let attribute = || {
        let function = machine.driver.cuDeviceGetAttribute().unwrap();
        let mut value = 9;
        let which = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        // SAFETY: the result lives.
        answer(unsafe { function(&raw mut value, which, 0) }).map(|()| value)
    };
    assert_eq!(attribute(), Ok(1));
    let handle = machine.create(GRANULE as usize, &wanted, 0).unwrap();
    let function = machine.driver.cuMemGetAllocationPropertiesFromHandle().unwrap();
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the result lives.
    assert_eq!(unsafe { function(&raw mut properties, handle) }, CUDA_SUCCESS);
    assert_eq!(properties.allocFlags.gpuDirectRDMACapable, 1);
    machine.steer.set(steer::VMM, 2);
    assert_eq!(attribute(), Ok(0));
    assert_eq!(machine.create(GRANULE as usize, &wanted, 0), Err(CUDA_ERROR_INVALID_VALUE));
    machine.physical(GRANULE).unwrap();
}
