//! The backend of an allocator that an adapter creates, on the simulated driver (a simulation, and no device):
//! `BFC_BACKEND_PREFER_CUDA_VMM`, its fallback, and the settings that override it.

use crate::common::adapters::*;
use crate::common::simcuda::steer::{ALLOCATIONS, PHYSICAL, RESERVATIONS, RETAINS};
use crate::common::simcuda::{Simulation, simulated, simulated_saying, simulated_with};
use crate::common::*;
use std::ptr::null;

/// The adapters of frameworks whose users do not share or register memory.
const MAPPED: [Adapter; 3] = [TORCH, ORT, ORT_ON_STREAM];

/// Creates device 0's allocator by an adapter's first request, and returns whether its memory is mapped.
#[track_caller]
fn is_mapped(sim: Simulation, adapter: Adapter) -> bool {
    let chunk = (adapter.alloc)(1000, 0);
    assert_ne!(chunk, 0, "{}: {}", adapter.name, last_error());
    let live = [PHYSICAL, ALLOCATIONS].map(|kind| sim.live(kind));
    assert!(live == [1, 0] || live == [0, 1], "{}: {live:?}", adapter.name);
    (adapter.free)(chunk, 0);
    end(0);
    assert_eq!([PHYSICAL, ALLOCATIONS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind)), [0; 4]);
    live == [1, 0]
}

/// Whether the memory is mapped if options with this backend are given.
#[track_caller]
fn is_mapped_with(sim: Simulation, backend: u32) -> bool {
    let mut given = options();
    (given.backend, given.flags, given.memory_limit) = (backend, GROWING, 64 * MIB);
    // SAFETY: options of this program.
    assert_eq!(unsafe { bfc_adapter_options(-1, &given) }, BFC_OK);
    let mapped = is_mapped(sim, TORCH);
    // SAFETY: NULL removes the options.
    assert_eq!(unsafe { bfc_adapter_options(-1, null()) }, BFC_OK);
    mapped
}

#[test]
fn memory_is_mapped_where_no_program_loses_by_it() {
    simulated_with("memory_is_mapped_where_no_program_loses_by_it", &[("SIMCUDA_DEVICES", "2")], |sim| {
        for adapter in ALL {
            let expected = MAPPED.iter().any(|mapped| mapped.name == adapter.name);
            assert_eq!(is_mapped(sim, adapter), expected, "{}", adapter.name);
        }
        bfc_torch_memory_fraction(0.5, 0);
        assert!(is_mapped(sim, TORCH), "with a share of the device");
        assert!(is_mapped_with(sim, BFC_BACKEND_PREFER_CUDA_VMM));
        assert!(!is_mapped_with(sim, BFC_BACKEND_AUTO), "as the contract says");
        sim.assert_clean();
    });
}

/// In a simulation with these variables an adapter's allocator uses `cuda`, and the log gives the reason.
#[track_caller]
fn falls_back(test: &str, variables: &[(&str, &str)], reason: &str) {
    let log = simulated_saying(test, &[variables, &[("BFC_LOG", "info")]].concat(), |sim| {
        assert!(!is_mapped(sim, TORCH));
        assert!(!is_mapped_with(sim, BFC_BACKEND_PREFER_CUDA_VMM));
        sim.assert_clean();
    });
    if !child::is_child(test) {
        let line = format!("device 0: cuda is used instead of cuda_vmm: {reason}");
        assert!(log.contains(&line) && log.contains("created an allocator: cuda backend"), "{log}");
    }
}

#[test]
fn a_device_without_virtual_memory_is_served_by_cuda() {
    falls_back(
        "a_device_without_virtual_memory_is_served_by_cuda",
        &[("SIMCUDA_VMM", "0")],
        "the device has no virtual memory management",
    );
}

/// `SIMCUDA_PEERS=0`: no device can access another's memory, and cudaMemcpy between them works with `cuda` only.
#[test]
fn devices_that_cannot_access_each_other_are_served_by_cuda() {
    falls_back(
        "devices_that_cannot_access_each_other_are_served_by_cuda",
        &[("SIMCUDA_DEVICES", "2"), ("SIMCUDA_PEERS", "0")],
        "not all devices can access its memory",
    );
}

#[test]
fn the_environment_decides_otherwise() {
    for value in ["cuda", "cuda_vmm", "auto", "lots"] {
        simulated_with("the_environment_decides_otherwise", &[("BFC_BACKEND", value)], |sim| {
            // The child runs this for each of the values, which may not be its own.
            let value = std::env::var("BFC_BACKEND").unwrap();
            assert_eq!(is_mapped(sim, TORCH), value != "cuda", "{value}");
            assert_eq!(is_mapped_with(sim, BFC_BACKEND_PREFER_CUDA_VMM), value != "cuda", "{value}");
            assert_eq!(is_mapped(sim, CUPY), value == "cuda_vmm", "{value}");
        });
    }
}

/// Without memory for the range the request fails, as with `cuda_vmm`: this does not select another backend.
#[test]
fn a_driver_that_fails_is_no_reason_for_cuda() {
    simulated("a_driver_that_fails_is_no_reason_for_cuda", |sim| {
        sim.fail(Some("cuMemAddressReserve"), 1, cuda_sys::CUDA_ERROR_UNKNOWN);
        assert_eq!((TORCH.alloc)(1000, 0), 0);
        assert!(last_error().contains("cuMemAddressReserve"), "{}", last_error());
        assert_eq!(sim.live(RETAINS), 0);
        assert!(is_mapped(sim, TORCH), "the next request tries again");
    });
}

#[test]
fn on_the_host_it_is_the_host() {
    let mut given = options();
    (given.backend, given.flags, given.memory_limit) = (BFC_BACKEND_PREFER_CUDA_VMM, GROWING, 64 * MIB);
    assert_eq!(create(256, Some(&given)), BFC_OK, "{}", last_error());
    assert!(alloc(256, 1000).is_ok());
    assert_eq!(bfc_destroy_forced(256), BFC_OK);
    assert_eq!(create(258, Some(&given)), BFC_ERROR_INVALID_ARGUMENT);
}
