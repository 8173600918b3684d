//! What cuMemAllocAsync and cuMemFreeAsync become in a capture. The comments quote cuda.h of CUDA 13
//! (cuGraphAddMemAllocNode, cuGraphAddMemFreeNode, cuGraphInstantiate, cuGraphLaunch) and the CUDA Programming Guide
//! (Graph Memory Nodes).

mod common;
use common::*;

const GLOBAL: u32 = CU_STREAM_CAPTURE_MODE_GLOBAL;
const AUTO_FREE: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64;
const BYTES: usize = 10 << 20;

/// A graph whose memory is filled and read; freed by a node of its own, or not.
fn captured(machine: &Machine, stream: CUstream, pattern: u64, frees: bool) -> (CUgraph, CUdeviceptr) {
    machine.begin_capture(stream, GLOBAL).unwrap();
    let memory = machine.alloc_async(BYTES, stream).unwrap();
    machine.fill(stream, memory, BYTES as u64, pattern).unwrap();
    machine.expect(stream, memory, BYTES as u64, pattern).unwrap();
    if frees {
        machine.free_async(memory, stream).unwrap();
    }
    (machine.end_capture(stream).unwrap(), memory)
}

/// "The allocation's address remains fixed across instantiations and launches."
#[test]
fn the_address_is_fixed_and_the_memory_comes_with_the_launch() {
    let machine = ready();
    let stream = stream(&machine);
    let (graph, memory) = captured(&machine, stream, 1, true);
    assert_eq!(machine.steer.used(0), 0);
    let mut executable = machine.instantiate(graph, 0).unwrap();
    // "An attempt to instantiate a second executable graph before destroying the first [...] will result in an error."
    assert_eq!(machine.instantiate(graph, 0), Err(CUDA_ERROR_INVALID_VALUE));
    for _ in 0..2 {
        for _ in 0..3 {
            machine.graph_launch(executable, stream).unwrap();
        }
        machine.stream_synchronize(stream).unwrap();
        assert_eq!(machine.steer.used(0), BYTES as u64);
        machine.executable_destroy(executable).unwrap();
        executable = machine.instantiate(graph, 0).unwrap();
    }
    // "Blocks which are not in use by a graph [...] are freed back to the operating system."
    machine.graph_trim(0).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.graph_launch(executable, stream).unwrap();
    assert_eq!(machine.steer.used(0), BYTES as u64);
    machine.was_well_used();
    // "These allocations cannot be freed outside the owning graph".
    assert_eq!(machine.free_async(memory, stream), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
    machine.graph_destroy(graph).unwrap();
    assert_eq!(machine.steer.live(steer::ALLOCATIONS), 1, "the executable still has it");
    machine.executable_destroy(executable).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::ALLOCATIONS)), (0, 0));
}

/// "The allocation can be accessed by nodes ordered after the allocation node but before the free node."
#[test]
fn the_memory_lives_in_the_order_of_the_work() {
    let machine = ready();
    let (stream, other) = (stream(&machine), stream(&machine));
    let (graph, memory) = captured(&machine, stream, 1, true);
    let executable = machine.instantiate(graph, 0).unwrap();
    machine.hold(stream);
    machine.graph_launch(executable, stream).unwrap();
    // Scheduled to execute: nothing of it goes.
    machine.graph_trim(0).unwrap();
    assert_eq!(machine.steer.used(0), BYTES as u64);
    // Allocation, fill, expectation, free.
    machine.steer.step(stream.cast(), 1);
    machine.fill(other, memory, 8, 1).unwrap();
    machine.was_well_used();
    // A race with the graph's own work is seen.
    machine.steer.step(stream.cast(), 1);
    machine.fill(other, memory, 8, 9).unwrap();
    machine.steer.step(stream.cast(), 1);
    assert_eq!(machine.steer.mismatches(), 1);
    // Nor while it executes, and it could not be launched any more.
    machine.graph_trim(0).unwrap();
    machine.executable_destroy(executable).unwrap();
    machine.graph_destroy(graph).unwrap();
    assert_eq!(machine.steer.used(0), BYTES as u64);
    machine.steer.step(stream.cast(), 1);
    assert_eq!(machine.steer.used(0), 0);
    machine.fill(other, memory, 8, 1).unwrap();
    assert!(machine.steer.misuse_texts().iter().any(|words| words.contains("is not allocated")));
}

/// "Allocations which are not freed in the same graph can be freed by: passing the allocation to cuMemFreeAsync or
/// cuMemFree; launching a graph with a free node for that allocation; or specifying
/// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH".
#[test]
fn what_the_graph_does_not_free_others_do() {
    let machine = ready();
    let stream = stream(&machine);
    let (graph, memory) = captured(&machine, stream, 1, false);
    let executable = machine.instantiate(graph, 0).unwrap();
    assert_eq!(machine.free_async(memory, stream), Err(CUDA_ERROR_INVALID_VALUE), "nothing is launched yet");
    machine.begin_capture(stream, GLOBAL).unwrap();
    machine.free_async(memory, stream).unwrap();
    let freeing = machine.end_capture(stream).unwrap();
    let freeing_executable = machine.instantiate(freeing, 0).unwrap();
    let frees: [&dyn Fn(); 3] =
        [&|| machine.free_async(memory, stream).unwrap(), &|| machine.free(memory).unwrap(), &|| {
            machine.graph_launch(freeing_executable, stream).unwrap()
        }];
    for free in frees {
        machine.graph_launch(executable, stream).unwrap();
        // "Also by stream operations ordered after the graph's execution but before the allocation is freed."
        machine.expect(stream, memory, BYTES as u64, 1).unwrap();
        // "If any allocations created by hGraphExec remain unfreed [...] the launch will fail".
        assert_eq!(machine.graph_launch(executable, stream), Err(CUDA_ERROR_INVALID_VALUE));
        machine.was_well_used();
        free();
        assert_eq!(machine.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
        machine.graph_trim(0).unwrap();
        assert_eq!(machine.steer.used(0), 0);
    }
    machine.executable_destroy(executable).unwrap();
    let executable = machine.instantiate(graph, AUTO_FREE).unwrap();
    for _ in 0..3 {
        machine.graph_launch(executable, stream).unwrap();
    }
    machine.expect(stream, memory, BYTES as u64, 1).unwrap();
    machine.was_well_used();
    // "Graph destruction does not automatically free any live graph-allocated memory".
    machine.executable_destroy(executable).unwrap();
    machine.graph_destroy(graph).unwrap();
    machine.expect(stream, memory, BYTES as u64, 1).unwrap();
    machine.was_well_used();
    machine.free_async(memory, stream).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::ALLOCATIONS)), (0, 0));
}

#[test]
fn what_must_not_be_captured() {
    let machine = ready();
    let stream = stream(&machine);
    let plain = machine.alloc(512).unwrap();
    let pooled = machine.alloc_async(512, stream).unwrap();
    let (own_graph, own) = captured(&machine, stream, 1, true);
    // "During stream capture, this function [...] must therefore be passed the address of a graph allocation", and
    // not twice in a graph, or in the owning graph and another.
    for address in [plain, pooled, own, own + 512, 0] {
        machine.begin_capture(stream, GLOBAL).unwrap();
        assert_eq!(machine.free_async(address, stream), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(machine.end_capture(stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    machine.begin_capture(stream, GLOBAL).unwrap();
    let memory = machine.alloc_async(512, stream).unwrap();
    machine.free_async(memory, stream).unwrap();
    assert_eq!(machine.free_async(memory, stream), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.alloc_async(512, stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(machine.end_capture(stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(machine.steer.live(steer::ALLOCATIONS), 3, "what a capture allocated ends with it");
    // "The graph cannot be cloned", nor be a part of another unless it is moved there.
    let executable = machine.instantiate(own_graph, 0).unwrap();
    machine.begin_capture(stream, GLOBAL).unwrap();
    assert_eq!(machine.graph_launch(executable, stream), Err(CUDA_ERROR_NOT_SUPPORTED));
    machine.end_capture(stream).unwrap();
}

/// A launch that finds no memory is none.
#[test]
fn a_launch_without_memory_changes_nothing() {
    let machine = ready();
    let stream = stream(&machine);
    machine.begin_capture(stream, GLOBAL).unwrap();
    let pieces = [0; 2].map(|_| machine.alloc_async(BYTES, stream).unwrap());
    pieces.iter().for_each(|at| machine.free_async(*at, stream).unwrap());
    let graph = machine.end_capture(stream).unwrap();
    let executable = machine.instantiate(graph, 0).unwrap();
    let rest = machine.alloc(256 * MIB as usize - BYTES).unwrap();
    let used = machine.steer.used(0);
    assert_eq!(machine.graph_launch(executable, stream), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(machine.steer.used(0), used);
    machine.free(rest).unwrap();
    machine.graph_launch(executable, stream).unwrap();
    assert_eq!(machine.steer.used(0), 2 * BYTES as u64);
}

/// "Each launch is ordered behind [...] any previous launches of hGraphExec."
#[test]
fn launches_of_a_graph_come_one_after_another() {
    let machine = ready();
    let (one, other) = (stream(&machine), stream(&machine));
    let (graph, _) = captured(&machine, one, 1, true);
    let executable = machine.instantiate(graph, 0).unwrap();
    machine.hold(one);
    machine.graph_launch(executable, one).unwrap();
    machine.graph_launch(executable, other).unwrap();
    assert_eq!(machine.steer.pending(other.cast()), 4);
    machine.release(one);
    assert_eq!(machine.steer.pending(other.cast()), 0);
    machine.was_well_used();
}
