//! Memory of a private pool in a capture with two branches: memory that one branch still uses is not given to the
//! other. The simulated driver launches the branches in the order of the capture and in the reverse one.

use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::simulated_with;
use crate::common::*;

/// How the first branch frees its chunk while the second one uses it.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The use is recorded, and the stream of the allocation frees.
    Recorded,
    /// The stream that has used it frees.
    FreedThere,
}

fn branches(order: &str, test: &str) {
    simulated_with(test, &[("SIMCUDA_GRAPH_ORDER", order)], |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            for way in [Way::Recorded, Way::FreedThere] {
                let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
                let (a, b) = (gpu.stream(false), gpu.stream(false));
                for stream in [a, b] {
                    assert_eq!(pool.begin_private(1, stream), BFC_OK);
                }
                gpu.begin_capture(a);
                let shared = pool.get_on(unit, a);
                gpu.fill(a, shared, unit, 1);
                gpu.order(a, b);
                gpu.expect(b, shared, unit, 1);
                match way {
                    Way::Recorded => {
                        assert_eq!(pool.record(shared, b), BFC_OK);
                        pool.put_on(shared, a);
                    }
                    Way::FreedThere => pool.put_on(shared, b),
                }
                // The first branch continues with memory of its own.
                let mut own = Vec::new();
                for pattern in 2..5 {
                    let chunk = pool.get_on(unit, a);
                    gpu.fill(a, chunk, unit, pattern);
                    gpu.expect(a, chunk, unit, pattern);
                    own.push(chunk);
                }
                gpu.order(b, a);
                for chunk in own {
                    pool.put_on(chunk, a);
                }
                let graph = gpu.end_capture(a);
                for stream in [a, b] {
                    assert_eq!(pool.end_private(1, stream), BFC_OK);
                }
                for _ in 0..2 {
                    gpu.launch(graph, a);
                    assert_eq!(sim.mismatches(), 0, "{way:?}: {:?}", sim.misuse_texts());
                }
                gpu.destroy_graph(graph);
                assert_eq!(pool.release_private(1), BFC_OK);
                pool.check();
                drop(pool);
                [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
            }
        }
        gpu.leave(0);
        assert_eq!(sim.misuse_texts(), [""; 0]);
    });
}

#[test]
fn branches_share_no_memory() {
    branches("0", "branches_share_no_memory");
}

#[test]
fn branches_share_no_memory_in_the_reverse_order() {
    branches("1", "branches_share_no_memory_in_the_reverse_order");
}
