//! A few steps of training over libbfc in Rust: a pool, buffers that come and go, the statistics, and what
//! the library says when something goes wrong. `cargo run --example allocate`

use bfc::{BackendKind, Device, Error, HOST_DEVICE, Options, scope};

fn main() -> Result<(), Error> {
    // A GPU's ordinal is 0, 1, ...
    let host = Device::new(HOST_DEVICE)?;
    host.create(Some(&Options {
        backend: BackendKind::Host,
        memory_limit: 16 << 20,
        name: Some("trainer"),
        ..Options::recommended()
    }))?;

    scope::begin("weights", 0)?;
    let weights = host.alloc(2_000_000)?;
    scope::end()?;
    for number in 1..=4 {
        step(host, number)?;
    }
    let stats = host.stats()?;
    println!(
        "{} allocations, {} frees; {} bytes in use, {} at the peak; {} held",
        stats.num_allocs, stats.num_frees, stats.bytes_in_use, stats.peak_bytes_in_use, stats.pool_bytes
    );

    // Out of memory is an error like any other. Nothing was lost, and the words say what would help.
    assert_eq!(host.alloc(20 << 20), Err(Error::OutOfMemory));
    println!("refused: {}", bfc::last_error());
    print!("{}", host.report()?);

    // So is a mistake: addresses are numbers, and one that is no live allocation's is refused.
    assert_eq!(host.free(weights + 256), Err(Error::InvalidPointer));
    println!("refused: {}", bfc::last_error());
    host.free(weights)?;
    assert!(host.free(weights).is_err());
    println!("refused: {}", bfc::last_error());

    println!("{} bytes given back", host.trim(0)?);
    host.destroy()
}

/// One step: the activations live until the backward pass has used them.
fn step(device: Device, number: u64) -> Result<(), Error> {
    // For the reports: on whose behalf this thread allocates.
    scope::begin("forward", number)?;
    let activations = device.alloc(1_200_000)?;
    scope::end()?;

    scope::begin("backward", number)?;
    let gradients = device.alloc(400_000)?;
    scope::end()?;

    device.free(activations)?;
    device.free(gradients)
}
