//! Graphs that are made node by node.

mod common;
use common::*;

use std::ffi::CStr;
use std::ptr::null;

const FILL: &CStr =
    c".version 8.0 .target sm_90 .entry fill(.param .u64 at, .param .u32 words, .param .u32 value) { }";

fn fill(machine: &Machine) -> CUfunction {
    let module = machine.module(FILL.as_ptr().cast()).unwrap();
    machine.function(module, c"fill".as_ptr()).unwrap()
}

fn set(at: CUdeviceptr, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 512, value, elementSize: 4, width: 2, height: 2 }
}

#[test]
fn nodes_are_run_in_the_order_of_their_dependencies() {
    let machine = machine(1);
    let context = machine.enter(0);
    let (stream, memory) = (stream(&machine), machine.alloc(2048).unwrap());
    let graph = machine.graph(0).unwrap();
    let first = machine.set_node(graph, null(), 0, &set(memory, 7), context).unwrap();
    let join = machine.empty_node(graph, &raw const first, 1).unwrap();
    let copy = CUDA_MEMCPY3D {
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcDevice: memory + 512,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstDevice: memory + 1024,
        WidthInBytes: 8,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let copied = machine.copy_node(graph, &raw const join, 1, &raw const copy, context).unwrap();
    let (mut at, mut words, mut value) = (memory, 1_u32, 9_u32);
    let mut arguments = [(&raw mut at).cast(), (&raw mut words).cast(), (&raw mut value).cast()];
    let launch = CUDA_KERNEL_NODE_PARAMS {
        func: fill(&machine),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: arguments.as_mut_ptr(),
        ..CUDA_KERNEL_NODE_PARAMS::default()
    };
    machine.kernel_node(graph, &raw const copied, 1, &raw const launch).unwrap();
    let twice = [first, first];
    assert_eq!(machine.empty_node(graph, twice.as_ptr(), 2), Err(CUDA_ERROR_INVALID_VALUE));
    let executable = machine.instantiate(graph, 0).unwrap();
    assert_eq!(machine.byte(memory), 0, "\"a graph is not run before it is launched\"");
    machine.graph_launch(executable, stream).unwrap();
    machine.stream_synchronize(stream).unwrap();
    let bytes = [0, 4, 512, 1024, 1028].map(|offset| machine.byte(memory + offset));
    assert_eq!(bytes, [9, 7, 7, 7, 7]);
    machine.was_well_used();
}

/// "Each launch of the graph will record event to capture execution of the node's dependencies" and "will wait for all
/// work captured in event".
#[test]
fn event_nodes_record_and_wait_at_each_launch() {
    let machine = ready();
    let (before, launched) = (stream(&machine), stream(&machine));
    let [awaited, recorded] = [(); 2].map(|()| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let memory = machine.alloc(512).unwrap();
    let graph = machine.graph(0).unwrap();
    let wait = machine.wait_node(graph, null(), 0, awaited).unwrap();
    machine.record_node(graph, &raw const wait, 1, recorded).unwrap();
    let executable = machine.instantiate(graph, 0).unwrap();
    for _ in 0..2 {
        machine.hold(before);
        machine.fill(before, memory, 8, 1).unwrap();
        machine.record(awaited, before).unwrap();
        machine.graph_launch(executable, launched).unwrap();
        assert_eq!(machine.event_query(recorded), Err(CUDA_ERROR_NOT_READY));
        machine.release(before);
        assert_eq!(machine.event_query(recorded), Ok(()));
    }
    machine.was_well_used();
}

/// "When cuGraphAddMemAllocNode creates an allocation node, it returns the address of the allocation in nodeParams.dptr";
/// the memory counts since the first launch.
#[test]
fn memory_nodes_own_their_memory() {
    let machine = machine(1);
    let context = machine.enter(0);
    let stream = stream(&machine);
    let graph = machine.graph(0).unwrap();
    let mut wanted =
        CUDA_MEM_ALLOC_NODE_PARAMS { bytesize: 1 << 20, ..CUDA_MEM_ALLOC_NODE_PARAMS::default() };
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let allocated = machine.alloc_node(graph, null(), 0, &raw mut wanted).unwrap();
    let filled = machine.set_node(graph, &raw const allocated, 1, &set(wanted.dptr, 1), context).unwrap();
    machine.free_node(graph, &raw const filled, 1, wanted.dptr).unwrap();
    assert_eq!(machine.free_node(graph, &raw const filled, 1, wanted.dptr), Err(CUDA_ERROR_INVALID_VALUE));
    let executable = machine.instantiate(graph, 0).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.graph_launch(executable, stream).unwrap();
    machine.graph_launch(executable, stream).unwrap();
    assert_eq!(machine.steer.used(0), MIB);
    machine.executable_destroy(executable).unwrap();
    machine.graph_destroy(graph).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.was_well_used();
}
