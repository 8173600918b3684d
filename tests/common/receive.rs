//! A posted receive: work on a communication stream that ends only after work queued later on another stream.
//!
//! NCCL's receives are such work. Anything that waits between the receive and its send, in a stream or in the host,
//! is a deadlock on a device. Here it is detected and the program continues: the receive waits for an item of a stream
//! of its own (the network), which a blocking call of the simulated driver runs only if it waits for the receive.

use super::gpu::Gpu;
use super::pointer;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The state of a receive and its send.
#[derive(Default)]
struct State {
    is_sent: AtomicBool,
    /// The network delivered before the send.
    is_forced: AtomicBool,
}

/// A receive whose send is still to come.
pub struct Receive {
    state: Arc<State>,
    network: u64,
}

impl Receive {
    /// Posts one on a stream of the current context. Work queued there later comes after it.
    pub fn post(gpu: Gpu, stream: u64) -> Receive {
        let (state, network) = (Arc::<State>::default(), gpu.stream(false));
        gpu.hold(network);
        launch(gpu, network, arrive, &state);
        gpu.order(network, stream);
        Receive { state, network }
    }

    /// Queues the send.
    pub fn send(&self, gpu: Gpu, stream: u64) {
        launch(gpu, stream, send, &self.state);
    }

    /// Returns whether the send was executed.
    pub fn is_sent(&self) -> bool {
        self.state.is_sent.load(SeqCst)
    }

    /// Returns whether a call has blocked until the receive ended, before its send was executed. On a device it blocks
    /// forever.
    pub fn is_forced(&self) -> bool {
        self.state.is_forced.load(SeqCst)
    }

    /// Delivers the message, and ends the network.
    pub fn deliver(self, gpu: Gpu) {
        gpu.step(self.network, u64::MAX);
        gpu.destroy_stream(self.network);
    }
}

fn launch(gpu: Gpu, stream: u64, kernel: unsafe extern "C" fn(*mut c_void), state: &Arc<State>) {
    let argument = Arc::into_raw(state.clone()).cast_mut().cast();
    assert_eq!(gpu.sim.launch(pointer(stream), kernel, argument), 0);
}

unsafe extern "C" fn send(state: *mut c_void) {
    // SAFETY: `launch` passed it to this call, which is the only one.
    unsafe { Arc::from_raw(state.cast::<State>()) }.is_sent.store(true, SeqCst);
}

unsafe extern "C" fn arrive(state: *mut c_void) {
    // SAFETY: as above.
    let state = unsafe { Arc::from_raw(state.cast::<State>()) };
    if !state.is_sent.load(SeqCst) {
        state.is_forced.store(true, SeqCst);
    }
}
