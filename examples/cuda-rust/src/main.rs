//! A small runtime on two streams: cudarc queues the work, and libbfc provides the memory. Batches are uploaded on one stream
//! while the other one computes.
//!
//! On a GPU: `cargo run`. Without one, in the root of libbfc's sources:
//! `cargo xtask simulate -- cargo run --manifest-path examples/cuda-rust/Cargo.toml`

mod runtime;

use bfc::{Block, ErrorKind, Pool, Scope};
use cudarc::driver::CudaContext;
use runtime::{Result, Runtime, Stream, Tensor};

const BATCHES: usize = 6;
const ELEMENTS: usize = 1 << 20; // 4 MiB

fn main() -> Result<()> {
    let context = CudaContext::new(0)?;
    let pool = Pool::builder(0).memory_limit(64 << 20).name("cuda-rust").build()?;
    let runtime = Runtime::new(&pool, &context)?;
    double_buffered(&runtime)?;
    out_of_memory(&runtime.compute)?;
    drop(runtime); // before what it borrows

    let stats = pool.stats()?;
    println!("{} allocations, {} frees, {} failures", stats.num_allocs, stats.num_frees, stats.num_failures);
    println!("{} bytes in use, {} at the peak", stats.bytes_in_use, stats.peak_bytes_in_use);
    pool.check()?;
    Ok(pool.destroy()?) // an error if memory is still in use
}

/// Uploads batches from two buffers in turn, so that the host fills one while the other one is copied.
fn double_buffered(runtime: &Runtime) -> Result<()> {
    let (compute, copy) = (&runtime.compute, &runtime.copy);
    let mut buffers = [runtime.buffer(ELEMENTS)?, runtime.buffer(ELEMENTS)?];
    let mut outputs = Vec::new();
    for number in 0..BATCHES {
        let _scope = Scope::enter("batch", number as u64)?; // names this memory in reports
        let buffer = &mut buffers[number % 2];
        buffer.as_mut_slice()?.fill(number as f32); // waits for its last upload

        let mut batch = runtime.tensor(copy, ELEMENTS)?;
        copy.work().memcpy_htod(buffer, &mut batch)?;
        outputs.push(work_on(runtime, &batch)?);
        // Here `batch` is dropped. Its memory is reused once `compute` has read it.
    }
    compute.work().synchronize()?;
    compute.memory().synchronized()?; // what was freed there is reusable everywhere now

    for (number, output) in outputs.iter().enumerate() {
        let values = copy.work().clone_dtoh(output)?;
        assert!(values.iter().all(|value| *value == number as f32), "batch {number} is wrong");
    }
    println!("double-buffered: {BATCHES} batches");
    Ok(())
}

/// Stands for a model: two copies. cuBLAS and others in cudarc take a [`Tensor`] in the same way, and kernels its address.
fn work_on<'a>(runtime: &'a Runtime, batch: &Tensor) -> Result<Tensor<'a>> {
    let compute = &runtime.compute;
    let mut activations = runtime.tensor(compute, ELEMENTS)?;
    compute.work().memcpy_dtod(batch, &mut activations)?;
    let mut output = runtime.tensor(compute, ELEMENTS)?;
    compute.work().memcpy_dtod(&activations, &mut output)?;
    Ok(output)
}

/// Takes a smaller workspace where a large one does not fit.
fn out_of_memory(stream: &Stream) -> Result<()> {
    let _weights = stream.memory().alloc(10 << 20)?;
    let workspace = workspace(stream, 100 << 20)?;
    println!("a workspace of {} MiB", workspace.len() >> 20);
    Ok(())
}

/// Allocates a number of bytes, or as many as certainly fit.
fn workspace<'a>(stream: &'a Stream, bytes: usize) -> bfc::Result<Block<'a>> {
    let error = match stream.memory().alloc(bytes) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => error,
        done => return done,
    };
    println!("{error}");
    match error.out_of_memory().and_then(|numbers| numbers.would_fit()) {
        Some(bytes) => stream.memory().alloc(bytes),
        None => Err(error), // no host memory for the numbers
    }
}
