//! Who owns memory and pools, and what is refused.

use crate::host_pool;
use bfc::{BackendKind, Block, ErrorKind, HostBlock, HostPool, Pool, RawStream, Refused, Request, Scope};
use std::sync::LazyLock;
use std::sync::mpsc::channel;

fn pool() -> HostPool {
    host_pool(|builder| builder.memory_limit(8 << 20))
}

fn in_use(pool: &Pool) -> u64 {
    pool.stats().unwrap().bytes_in_use
}

#[test]
fn blocks_are_freed_in_the_order_of_the_program() {
    let pool = pool();
    let (one, two) = (pool.alloc(1000).unwrap(), pool.alloc(1000).unwrap());
    let address = one.as_ptr();
    assert_eq!(in_use(&pool), 2048);
    drop(one);
    assert_eq!(in_use(&pool), 1024);
    let mut held = vec![two, pool.alloc(500).unwrap()];
    assert_eq!(held[1].as_ptr(), address, "what was freed is used again");
    held.truncate(1);
    assert_eq!(in_use(&pool), 1024);
    held[0] = pool.alloc(5000).unwrap();
    assert_eq!(in_use(&pool), 5120, "a block that is replaced is freed");
    drop(held);
    pool.destroy().unwrap();
}

#[test]
fn blocks_are_freed_by_a_panic() {
    let pool = pool();
    let panicked = std::panic::catch_unwind(|| {
        let _block = pool.alloc(1000).unwrap();
        let stream = pool.stream();
        let _ordered = stream.alloc(1000).unwrap();
        let _scope = Scope::enter("unwound", 0).unwrap();
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.is_err());
    assert_eq!(in_use(&pool), 0);
    let _block = pool.alloc(1000).unwrap();
    assert!(!pool.report().unwrap().contains("unwound"));
}

#[test]
fn forgotten_blocks_keep_the_allocator() {
    let pool = pool();
    let ordinal = pool.ordinal();
    let pointer = pool.alloc(1000).unwrap().filled(7).into_block().into_raw();
    let refused = pool.destroy().unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::Busy);
    drop(refused.into_inner());
    // SAFETY: the pool that owned it is gone.
    let pool = unsafe { Pool::adopt(ordinal) }.expect("dropping the pool left it too");
    // SAFETY: the pointer is from `into_raw`, with the bytes that were filled.
    assert_eq!(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), 1000) }, [7; 1000]);
    // SAFETY: the pointer is from `into_raw`, and not used again.
    drop(unsafe { Block::from_raw(&pool, pointer, 1000) });
    pool.destroy().unwrap();
    assert_eq!(Pool::borrowed(ordinal).unwrap_err().kind(), ErrorKind::NoAllocator);
}

#[test]
fn a_borrowed_pool_leaves_the_allocator_to_its_owner() {
    let owner = pool();
    let shared = Pool::borrowed(owner.ordinal()).unwrap();
    let block = shared.alloc(1000).unwrap();
    assert_eq!(in_use(&owner), 1024);
    assert_eq!(
        Pool::borrowed(owner.ordinal()).unwrap().destroy().unwrap_err().error().kind(),
        ErrorKind::Unsupported
    );
    drop(Pool::borrowed(owner.ordinal()).unwrap());
    assert_eq!(in_use(&owner), 1024);

    let ordinal = owner.ordinal();
    assert_eq!(owner.destroy().unwrap_err().error().kind(), ErrorKind::Busy);
    drop(block);
    // SAFETY: the owner is gone.
    unsafe { Pool::adopt(ordinal) }.unwrap().destroy().unwrap();
    assert_eq!(shared.alloc(1).unwrap_err().kind(), ErrorKind::NoAllocator);
    assert_eq!(shared.stats().unwrap_err().kind(), ErrorKind::NoAllocator);
}

#[test]
fn an_ordinal_has_one_owner_at_a_time() {
    let first = pool();
    let second = Pool::builder(first.ordinal()).backend(BackendKind::Host).build();
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let ordinal = first.ordinal();
    drop(first);
    Pool::builder(ordinal).backend(BackendKind::Host).build().unwrap().destroy().unwrap();
}

#[test]
fn a_leaked_pool_has_blocks_without_a_lifetime() {
    struct Layer {
        weights: HostBlock<'static, u8>,
    }
    let pool: &'static HostPool = pool().leak();
    let layer = Layer { weights: pool.alloc_zeroed(100).unwrap() };
    let thread = std::thread::spawn(move || layer.weights.len());
    assert_eq!(thread.join().unwrap(), 100);
    assert_eq!(in_use(pool), 0);
}

#[test]
fn a_static_has_a_pool() {
    static POOL: LazyLock<HostPool> = LazyLock::new(pool);
    let threads: Vec<_> =
        (0..4_u8).map(|value| std::thread::spawn(move || POOL.alloc(1000).unwrap().filled(value))).collect();
    for (thread, value) in threads.into_iter().zip(0..) {
        assert_eq!(*thread.join().unwrap(), [value; 1000]);
    }
    assert_eq!(in_use(&POOL), 0);
}

#[test]
fn blocks_end_in_other_threads() {
    let pool = pool();
    let stream = pool.stream();
    let (send, receive) = channel::<(Block<'_>, HostBlock<'_, u8>)>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (value, (ordered, filled)) in (0..100).zip(receive) {
                assert!(filled.iter().all(|&byte| byte == value));
                ordered.free().unwrap();
            }
        });
        for value in 0..100 {
            send.send((stream.alloc(1000).unwrap(), pool.alloc(1000).unwrap().filled(value))).unwrap();
        }
        drop(send);
    });
    let stats = pool.stats().unwrap();
    assert_eq!((stats.bytes_in_use, stats.num_allocs, stats.num_frees), (0, 200, 200));
}

#[test]
fn a_failed_free_returns_the_block() {
    let pool = pool();
    let block = pool.alloc(1000).unwrap().into_block();
    // SAFETY: the memory stays allocated as long as `twin` is used, which is forgotten below.
    let twin = unsafe { Block::from_raw(&pool, block.as_ptr(), 1000) };
    block.free().unwrap();
    let failed: Refused<Block<'_>> = twin.free().unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::DoubleFree);
    assert_eq!(failed.to_string(), failed.error().message());
    let twin = failed.into_inner();
    assert_eq!((twin.len(), twin.address() % 256), (1000, 0));
    let error: bfc::Error = twin.free().unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::DoubleFree);
    assert_eq!(pool.stats().unwrap().num_frees, 1, "dropping it failed too, and changed nothing");

    let other = self::pool();
    let block = pool.alloc(1000).unwrap().into_block();
    let failed = block.free_on(&other.stream()).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::InvalidArgument);
    let block = failed.into_inner();
    assert_eq!(in_use(&pool), 1024, "the block still owns the memory");
    drop(block);
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn a_stream_of_another_pool_is_refused() {
    let (pool, other) = (pool(), pool());
    let (block, foreign) = (pool.alloc(1000).unwrap(), other.stream());
    let graph = pool.private_pool();
    for refused in [
        block.as_block().record_use(&foreign).unwrap_err(),
        block.into_block().free_on(&foreign).unwrap_err().into(),
        pool.alloc(0).unwrap().into_block().free_on(&foreign).unwrap_err().into(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let (ours, theirs) = (pool.ordinal(), other.ordinal());
        let expected = format!("the stream is one of device {theirs}, and the memory of device {ours}");
        assert!(refused.message().starts_with(&expected), "{refused}");
    }
    // The borrow checker does not know the pools apart.
    assert_eq!(graph.route(&foreign).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn memory_waits_for_the_streams_that_use_it() {
    let pool = pool();
    let (compute, copy) = (pool.stream(), pool.stream());
    let on_copy = || copy.alloc(1000).unwrap().address();
    let _both_are_known = (compute.alloc(1).unwrap(), copy.alloc(1).unwrap());
    let block = compute.alloc(1000).unwrap();
    let address = block.address();
    drop(block);
    assert_ne!(on_copy(), address);
    compute.synchronized().unwrap();
    assert_eq!(on_copy(), address);
}

#[test]
fn any_number_names_a_stream_of_the_host() {
    let pool = pool().into_pool();
    // SAFETY: the pool is owned, and is not CUDA's.
    let stream = unsafe { pool.stream(RawStream::from(7)) };
    assert_eq!((stream.raw(), stream.pool().ordinal()), (RawStream::from(7), pool.ordinal()));
    drop(stream.alloc_with(&Request::new(1000).alignment(4096)).unwrap());
    stream.close().unwrap();
    drop(pool.default_stream().alloc(1000).unwrap());
    drop(pool.per_thread_stream().alloc(1000).unwrap());
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn host_pools_have_ordinals_of_their_own() {
    let pools: Vec<HostPool> = (0..3).map(|_| HostPool::new(1 << 20).unwrap()).collect();
    let mut ordinals: Vec<i32> = pools.iter().map(|pool| pool.ordinal()).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    assert!(
        ordinals.len() == 3 && ordinals.iter().all(|ordinal| (258..1024).contains(ordinal)),
        "{ordinals:?}"
    );
}

#[test]
fn memory_that_may_be_a_device_s_is_no_slice() {
    let error = Pool::builder(0).build_host().unwrap_err();
    // The second kind where there is a device.
    assert!(matches!(error.kind(), ErrorKind::BackendUnavailable | ErrorKind::InvalidArgument), "{error}");
}
