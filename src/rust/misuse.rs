//! What does not compile, each directly followed by the twin that does and runs. The twins differ in one line. Stable
//! compilers ignore the codes of the errors: `RUSTC_BOOTSTRAP=1 cargo test --doc` checks them.

/// A block does not outlive its pool.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let block = pool.alloc(1000)?;
/// drop(pool);
/// drop(block);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let block = pool.alloc(1000)?;
/// pool.check()?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
pub struct BlockOutlivesPool;

/// Nor the guard of the stream that it was allocated on.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let stream = pool.stream();
/// let block = stream.alloc(1000)?;
/// drop(stream);
/// drop(block);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let stream = pool.stream();
/// let block = stream.alloc(1000)?;
/// stream.synchronized()?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
pub struct BlockOutlivesStream;

/// A stream is not closed while a block of it lives.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (stream, other) = (pool.stream(), pool.stream());
/// let block = stream.alloc(1000)?;
/// stream.close()?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (stream, other) = (pool.stream(), pool.stream());
/// let block = stream.alloc(1000)?;
/// other.close()?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
pub struct ForgottenStream;

/// A block is freed once.
///
/// ```compile_fail,E0382
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (block, other) = (pool.alloc(1000)?, pool.alloc(1000)?);
/// block.into_block().free()?;
/// block.into_block().free()?;
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (block, other) = (pool.alloc(1000)?, pool.alloc(1000)?);
/// block.into_block().free()?;
/// other.into_block().free()?;
/// # Ok(())
/// # }
/// ```
pub struct FreedTwice;

/// A pool is not destroyed while a block lives.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::Pool::new(bfc::HOST_DEVICE)?;
/// let block = pool.alloc(1000)?;
/// pool.destroy()?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::Pool::new(bfc::HOST_DEVICE)?;
/// let block = pool.alloc(1000)?;
/// pool.trim(0)?;
/// drop(block);
/// # Ok(())
/// # }
/// ```
pub struct DestroyedWithBlocks;

/// A scope ends in its thread.
///
/// ```compile_fail,E0277
/// # fn main() -> bfc::Result<()> {
/// let scope = bfc::Scope::enter("forward", 1)?;
/// std::thread::scope(|threads| threads.spawn(|| drop(scope)).join()).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let scope = bfc::Scope::enter("forward", 1)?;
/// std::thread::scope(|threads| drop(scope));
/// # Ok(())
/// # }
/// ```
pub struct ScopeInAnotherThread;

/// A route does not outlive its stream.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (graph, stream) = (pool.private_pool(), pool.stream());
/// let route = graph.route(&stream)?;
/// drop(stream);
/// drop(route);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (graph, stream) = (pool.private_pool(), pool.stream());
/// let route = graph.route(&stream)?;
/// drop(stream.alloc(1000)?);
/// drop(route);
/// # Ok(())
/// # }
/// ```
pub struct RouteOutlivesStream;

/// Nor its private pool.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (graph, stream) = (pool.private_pool(), pool.stream());
/// let route = graph.route(&stream)?;
/// drop(graph);
/// drop(route);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (graph, stream) = (pool.private_pool(), pool.stream());
/// let route = graph.route(&stream)?;
/// assert_ne!(graph.name(), 0);
/// drop(route);
/// # Ok(())
/// # }
/// ```
pub struct RouteOutlivesPrivatePool;

/// Bytes that may not be initialized are no `u8`.
///
/// ```compile_fail,E0308
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let block = pool.alloc(1000)?;
/// let bytes: &[u8] = &block;
/// assert_eq!(bytes.len(), 1000);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let block = pool.alloc(1000)?.filled(0);
/// let bytes: &[u8] = &block;
/// assert_eq!(bytes.len(), 1000);
/// # Ok(())
/// # }
/// ```
pub struct Uninitialized;

/// A slice of a block does not outlive it.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (block, other) = (pool.alloc_zeroed(1000)?, pool.alloc_zeroed(1000)?);
/// let bytes: &[u8] = &block;
/// drop(block);
/// assert_eq!(bytes[0], 0);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (block, other) = (pool.alloc_zeroed(1000)?, pool.alloc_zeroed(1000)?);
/// let bytes: &[u8] = &block;
/// drop(other);
/// assert_eq!(bytes[0], 0);
/// # Ok(())
/// # }
/// ```
pub struct SliceOutlivesBlock;

/// A collection does not outlive its pool.
///
/// ```compile_fail,E0505
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let numbers = allocator_api2::vec::Vec::<u32, _>::with_capacity_in(100, &pool);
/// drop(pool);
/// assert!(numbers.capacity() >= 100);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> bfc::Result<()> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let numbers = allocator_api2::vec::Vec::<u32, _>::with_capacity_in(100, &pool);
/// pool.check()?;
/// assert!(numbers.capacity() >= 100);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "allocator-api2")]
pub struct CollectionOutlivesPool;

/// What may be sent to other threads and shared with them.
///
/// ```
/// use bfc::*;
/// fn is_send_and_sync<T: Send + Sync>() {}
/// is_send_and_sync::<(Pool, HostPool, Block<'_>, HostBlock<'_>, HostBlock<'_, u8>, Refused<Block<'_>>)>();
/// is_send_and_sync::<(Stream<'_>, RawStream, PrivatePool<'_>, Route<'_>, Capture, History)>();
/// is_send_and_sync::<(Error, ErrorKind, OutOfMemory, Stats, Region, Request)>();
/// ```
///
/// A guard of a scope is of its thread, to share too.
///
/// ```compile_fail,E0277
/// fn is_sync<T: Sync>() {}
/// is_sync::<bfc::Scope>();
/// ```
pub struct Threads;
