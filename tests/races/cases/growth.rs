//! A pool that can grow waits for no device work: that work may itself wait for the requesting thread's next action.

use super::{pairs, variants_with};
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::receive::Receive;
use crate::common::*;

/// The pool's calls that wait for the device, or may wait.
fn waits(gpu: Gpu) -> [u64; 3] {
    ["cuCtxSynchronize", "cuMemFree_v2", "cuMemUnmap"].map(|function| gpu.sim.calls(function))
}

/// Idle memory is in pieces that together are sufficient for a request, while a receive is pending whose send comes
/// next. The pool grows then. If nothing is pending it makes room from the pieces.
#[test]
fn a_request_that_could_reuse_idle_memory_grows_instead() {
    reuse_or_growth("13050", true);
}

/// Drivers before CUDA 12.5 cannot report whether work is pending.
#[test]
fn a_request_grows_where_the_driver_cannot_be_asked() {
    reuse_or_growth("12040", false);
}

fn reuse_or_growth(version: &str, may_reuse: bool) {
    let variables = [("SIMCUDA_DRIVER_VERSION", version)];
    variants_with(&variables, pairs(BACKENDS, [false, true]), |gpu, ((backend, unit), is_busy)| {
        gpu.enter(0);
        let (comm, compute, bytes) = (gpu.stream(false), gpu.stream(false), 64 * unit);
        let pool = Pool::on_device(0, |options| {
            (options.backend, options.memory_limit) = (backend, 1024 * bytes);
            (options.growth_policy, options.initial_region_bytes) = (BFC_GROWTH_NEED, 2 * bytes);
        });
        let chunks = [(); 6].map(|()| pool.get_on(2 * bytes, compute));
        chunks.iter().step_by(2).for_each(|&chunk| pool.put_on(chunk, compute));
        gpu.synchronize_context();
        let receive = is_busy.then(|| Receive::post(gpu, comm));
        let before = waits(gpu);
        let got = pool.get_on(5 * bytes, compute);
        let is_forced = receive.as_ref().is_some_and(Receive::is_forced);
        let has_waited = waits(gpu) != before;
        if let Some(receive) = receive {
            receive.send(gpu, compute);
            receive.deliver(gpu);
        }
        pool.put_on(got, compute);
        chunks.iter().skip(1).step_by(2).for_each(|&chunk| pool.put_on(chunk, compute));
        drop(pool);
        gpu.leave(0);
        if is_forced || has_waited != (may_reuse && !is_busy) {
            return Err(format!("forced: {is_forced}, synchronized: {has_waited}"));
        }
        Ok(())
    });
}
