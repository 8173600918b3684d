//! A few steps of training over libbfc in Rust: a pool, buffers that come and go, the statistics, and what
//! the library says when something goes wrong. `cargo run --example allocate`

use bfc::{ErrorKind, HostPool, Pool, Scope};

fn main() -> bfc::Result<()> {
    // A GPU's pool: Pool::builder(0), and .build() at the end.
    let pool = HostPool::builder().memory_limit(16 << 20).name("trainer").build_host()?;

    let weights = {
        let _scope = Scope::enter("weights", 0)?;
        pool.alloc_zeroed(2_000_000)?
    };
    for number in 1..=4 {
        step(&pool, number)?;
    }
    let stats = pool.stats()?;
    println!(
        "{} allocations, {} frees; {} bytes in use, {} at the peak; {} held",
        stats.num_allocs, stats.num_frees, stats.bytes_in_use, stats.peak_bytes_in_use, stats.pool_bytes
    );

    // Out of memory is an error like any other. Nothing was lost, and it says what would help.
    let error = pool.alloc(20 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    println!("refused: {error}");
    if let Some(bytes) = error.out_of_memory().and_then(|numbers| numbers.would_fit()) {
        println!("{bytes} bytes would fit");
        drop(pool.alloc(bytes)?);
    }
    print!("{}", pool.report()?);

    drop(weights);
    println!("{} bytes given back", pool.trim(0)?);
    pool.destroy()?;
    Ok(())
}

/// One step: the activations live until the backward pass has used them.
fn step(pool: &Pool, number: u64) -> bfc::Result<()> {
    // For the reports: on whose behalf this thread allocates.
    let scope = Scope::enter("forward", number)?;
    let activations = pool.alloc(1_200_000)?;
    drop(scope);

    let _scope = Scope::enter("backward", number)?;
    let gradients = pool.alloc(400_000)?;
    drop(activations);
    drop(gradients);
    Ok(())
}
