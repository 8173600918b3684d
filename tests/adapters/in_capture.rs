//! Clients that name no stream (ONNX Runtime, CuPy with `streams=False`, Numba) while a stream is captured, on the
//! simulated driver (a simulation, and no device): their memory may become part of a graph, and then stays with the
//! graph.

use crate::common::adapters::*;
use crate::common::gpu::Gpu;
use crate::common::simcuda::simulated;
use crate::common::*;

const NAMELESS: [Adapter; 3] = [CUPY, ORT, ORT_ON_STREAM];

/// Device 0 has this much memory for the allocator.
fn limited(bytes: u64) {
    let mut wanted = options();
    (wanted.flags, wanted.memory_limit, wanted.initial_region_bytes) = (GROWING, bytes, 64 * KIB);
    assert_eq!(create(0, Some(&wanted)), BFC_OK, "{}", last_error());
}

/// The memory that other sessions get, up to the limit.
fn others(gpu: Gpu, adapter: Adapter, stream: u64) -> Vec<u64> {
    let mut live = Vec::new();
    loop {
        let address = (adapter.alloc)(MIB, stream);
        if address == 0 {
            return live;
        }
        gpu.fill(stream, address, MIB, 9);
        live.push(address);
    }
}

fn held() -> u64 {
    stats_of(0).pool_bytes
}

/// Like ONNX Runtime's CUDA provider with `enable_cuda_graph`: a run warms up, the next is captured, scratch is
/// requested and freed in it, and the graph is launched while other sessions run.
#[test]
fn scratch_of_a_captured_run_stays_the_graphs() {
    simulated("scratch_of_a_captured_run_stays_the_graphs", |sim| {
        for (adapter, blocking) in
            NAMELESS.into_iter().flat_map(|adapter| [(adapter, true), (adapter, false)])
        {
            let Adapter { name, alloc, free } = adapter;
            let gpu = Gpu::new(sim);
            gpu.enter(0);
            limited(32 * MIB);
            let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
            // The library cannot see the capture of a non-blocking stream that it was not notified of, or that has no
            // memory in use.
            let told = !blocking && name != ORT_ON_STREAM.name;
            let in_use = told.then(|| (TORCH.alloc)(256, captured));
            let warm = alloc(4 * MIB, captured);
            gpu.fill(captured, warm, 4 * MIB, 1);
            free(warm, captured);
            gpu.synchronize(captured);
            gpu.begin_capture(captured);
            let scratch = [alloc(MIB, captured), alloc(3 * MIB, captured)];
            for address in scratch {
                assert_ne!(address, 0, "{name}: {}", last_error());
                gpu.fill(captured, address, MIB, 2);
                gpu.expect(captured, address, MIB, 2);
            }
            scratch.into_iter().for_each(|address| free(address, captured));
            // In the capture its kernels may be on several branches.
            let again = alloc(MIB, captured);
            assert!(!scratch.contains(&again), "{name}");
            free(again, captured);
            // It ends as a graph, and is not invalid.
            let graph = gpu.end_capture(captured);
            gpu.launch(graph, captured);
            gpu.synchronize(captured);
            let live = others(gpu, adapter, other);
            assert!(live.len() > 16, "{name}: {}", live.len());
            for address in &live {
                assert!(
                    scratch.iter().all(|start| !(*start..start + MIB).contains(address)),
                    "{name}: a graph's"
                );
            }
            gpu.launch(graph, captured);
            gpu.synchronize(captured);
            live.iter().for_each(|&address| gpu.expect(other, address, MIB, 9));
            gpu.synchronize(other);
            assert_eq!(sim.mismatches(), 0, "{name}, blocking {blocking}");
            live.into_iter().for_each(|address| free(address, other));
            // Until the program declares that the graph no longer exists.
            gpu.destroy_graph(graph);
            assert_eq!(bfc_pool_release(0, BFC_POOL_OF_CAPTURES), BFC_OK, "{}", last_error());
            in_use.into_iter().for_each(|address| (TORCH.free)(address, captured));
            gpu.synchronize(captured);
            let (all, mut released) = (held(), 0);
            // SAFETY: the pointer is valid for writing.
            assert_eq!(unsafe { bfc_trim(0, 0, &mut released) }, BFC_OK, "{}", last_error());
            assert_eq!(released, all, "{name}");
            end(0);
            [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
            gpu.leave(0);
        }
        sim.assert_clean();
    });
}

/// Outside a capture nothing is kept apart, however many captures there were before.
#[test]
fn behind_a_capture_memory_is_reused() {
    simulated("behind_a_capture_memory_is_reused", |sim| {
        for Adapter { name, alloc, free } in NAMELESS {
            let gpu = Gpu::new(sim);
            gpu.enter(0);
            let captured = gpu.stream(true);
            free(alloc(MIB, captured), captured);
            for _ in 0..3 {
                gpu.begin_capture(captured);
                gpu.destroy_graph(gpu.end_capture(captured));
            }
            let before = held();
            for _ in 0..100 {
                free(alloc(MIB, captured), captured);
                gpu.synchronize(captured);
            }
            assert!(held() <= before.max(64 * MIB), "{name}: {before} and {}", held());
            assert_eq!(
                bfc_pool_release(0, BFC_POOL_OF_CAPTURES),
                BFC_ERROR_INVALID_ARGUMENT,
                "{name}: none began"
            );
            end(0);
            gpu.destroy_stream(captured);
            gpu.leave(0);
        }
        sim.assert_clean();
    });
}
