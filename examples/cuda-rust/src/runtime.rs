//! Streams of cudarc's with memory of a pool, and tensors that are used on any of them.

use std::sync::Arc;

use bfc::{Block, Pool};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, PinnedHostSlice, SyncOnDrop,
};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A stream: as cudarc has it, to queue work, and as the pool has it, to allocate in its order.
pub struct Stream<'pool> {
    // Dropped in this order: the pool forgets the stream before cudarc destroys it.
    memory: bfc::Stream<'pool>,
    work: Arc<CudaStream>,
}

impl<'pool> Stream<'pool> {
    fn new(pool: &'pool Pool, context: &Arc<CudaContext>) -> Result<Self> {
        let work = context.new_stream()?;
        // SAFETY: the stream is new, of the pool's device, and outlives the guard beside it.
        let memory = unsafe { pool.stream(work.cu_stream().into()) };
        Ok(Stream { memory, work })
    }

    pub fn memory(&self) -> &bfc::Stream<'pool> {
        &self.memory
    }

    pub fn work(&self) -> &Arc<CudaStream> {
        &self.work
    }
}

/// A device with two streams.
pub struct Runtime<'pool> {
    pub compute: Stream<'pool>,
    pub copy: Stream<'pool>,
}

impl<'pool> Runtime<'pool> {
    /// The context is that of `CudaContext::new` for the pool's device: its primary context, in which the pool's memory is.
    pub fn new(pool: &'pool Pool, context: &Arc<CudaContext>) -> Result<Self> {
        Ok(Runtime { compute: Stream::new(pool, context)?, copy: Stream::new(pool, context)? })
    }

    /// Allocates a tensor in the order of a stream. Its contents are undefined.
    pub fn tensor<'a>(&'a self, stream: &'a Stream, len: usize) -> Result<Tensor<'a>> {
        let memory = stream.memory.alloc(len * size_of::<f32>())?;
        // Earlier work of the stream may still use that memory. The first use on another stream waits for it.
        let last_use = stream.work.record_event(None)?;
        Ok(Tensor { runtime: self, stream, memory, last_use, len })
    }

    /// Allocates pinned host memory, which is copied while the program goes on.
    pub fn buffer(&self, len: usize) -> Result<PinnedHostSlice<f32>> {
        // SAFETY: any bytes are numbers, and the memory is written before it is read.
        Ok(unsafe { self.copy.work.context().alloc_pinned(len) }?)
    }

    fn memory_of(&self, work: &CudaStream) -> &bfc::Stream<'pool> {
        let mut streams = [&self.compute, &self.copy].into_iter();
        &streams.find(|stream| *stream.work == *work).expect("a stream of the tensor's runtime").memory
    }
}

/// Numbers in memory of the pool, which cudarc's copies and libraries take like its own `CudaSlice`.
///
/// Work on any stream of the runtime is ordered behind the last use. Dropping a tensor never waits: the pool reuses the memory
/// once the work is done that is queued by then.
pub struct Tensor<'a> {
    runtime: &'a Runtime<'a>,
    stream: &'a Stream<'a>,
    memory: Block<'a>,
    last_use: CudaEvent,
    len: usize,
}

impl Tensor<'_> {
    /// Orders work on a stream behind the last use. Returns the address, and what records this use once the work is queued,
    /// unless the program has disabled cudarc's tracking of events.
    fn used_on<'b>(&'b self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        stream.context().record_err(stream.wait(&self.last_use)); // cudarc's next call returns the error
        self.memory.record_use(self.runtime.memory_of(stream)).expect("enough host memory");
        (self.memory.address(), SyncOnDrop::Record(Some((&self.last_use, stream))))
    }
}

impl DeviceSlice<f32> for Tensor<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream.work
    }
}

impl DevicePtr<f32> for Tensor<'_> {
    fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        self.used_on(stream)
    }
}

impl DevicePtrMut<f32> for Tensor<'_> {
    fn device_ptr_mut<'b>(&'b mut self, stream: &'b CudaStream) -> (CUdeviceptr, SyncOnDrop<'b>) {
        self.used_on(stream)
    }
}
