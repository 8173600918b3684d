//! A posted receive: work on a communication stream that ends only after work that is queued later on another stream.
//!
//! NCCL's receives are such work. Whatever is placed between the receive and its send, in a stream or in the host,
//! is a deadlock on a device. Here it is found and the program goes on: the receive waits for an item of a stream of
//! its own (the network), which a blocking call of the simulated driver runs only if it waits for the receive.

use super::gpu::Gpu;
use super::pointer;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// How far a receive and its send are.
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
    /// Posts one on a stream of the current context. What is queued there from now on comes after it.
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

    /// Whether the send was executed.
    pub fn is_sent(&self) -> bool {
        self.state.is_sent.load(SeqCst)
    }

    /// Whether a call has blocked until the receive was done, before its send was. On a device it blocks forever.
    pub fn is_forced(&self) -> bool {
        self.state.is_forced.load(SeqCst)
    }

    /// Delivers, and ends the network.
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
    // SAFETY: `launch` gave it up to this call, which is the only one.
    unsafe { Arc::from_raw(state.cast::<State>()) }.is_sent.store(true, SeqCst);
}

unsafe extern "C" fn arrive(state: *mut c_void) {
    // SAFETY: as above.
    let state = unsafe { Arc::from_raw(state.cast::<State>()) };
    if !state.is_sent.load(SeqCst) {
        state.is_forced.store(true, SeqCst);
    }
}
