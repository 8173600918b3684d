//! Errors: kinds for programs, messages for people.

use crate::host_pool;
use bfc::{BackendKind, Error, ErrorKind, FailureCause, Flags, HostPool, Pool, Request};
use std::io;

fn pool() -> HostPool {
    host_pool(|builder| builder.memory_limit(4 << 20).name("activations"))
}

/// Checks the kind and a part of the message.
#[track_caller]
fn says(error: &Error, kind: ErrorKind, part: &str) {
    assert!(
        error.kind() == kind && error.message().contains(part),
        "{error:?} is not {kind:?} with {part:?}"
    );
    assert_eq!(error.to_string(), error.message());
    assert_eq!(format!("{error:?}"), format!("{kind:?}: {}", error.message()));
}

#[test]
fn messages_say_what_failed_with_the_values() {
    let pool = pool();
    let ordinal = pool.ordinal();
    let error = pool.alloc(5 << 20).unwrap_err();
    says(&error, ErrorKind::OutOfMemory, "activations: no memory for 5.00 MiB (5242880 bytes)");
    says(&error, ErrorKind::OutOfMemory, "larger than the limit of 4.00 MiB");

    let error = pool.alloc_with(&Request::new(1).alignment(1000)).unwrap_err();
    says(&error, ErrorKind::InvalidArgument, "alignment 1000 is not a power of two");

    let again = Pool::builder(ordinal).backend(BackendKind::Host).build().unwrap_err();
    says(&again, ErrorKind::AlreadyExists, &ordinal.to_string());

    says(&pool.timestamp().unwrap_err(), ErrorKind::Unsupported, "BFC_TIMESTAMPS");
    let borrowed = Pool::borrowed(ordinal).unwrap();
    says(
        borrowed.destroy().unwrap_err().error(),
        ErrorKind::Unsupported,
        &format!("device {ordinal} is borrowed"),
    );
    drop(pool);
    says(&Pool::borrowed(ordinal).unwrap_err(), ErrorKind::NoAllocator, &format!("device {ordinal}"));
    says(&Pool::new(-1).unwrap_err(), ErrorKind::InvalidArgument, "-1");
    says(&Pool::new(1024).unwrap_err(), ErrorKind::InvalidArgument, "1024");
}

#[test]
fn an_error_keeps_its_message_after_others() {
    let pool = pool();
    let first = pool.alloc(5 << 20).unwrap_err();
    let second = pool.alloc_with(&Request::new(1).alignment(3)).unwrap_err();
    let moved = std::thread::spawn(move || first.to_string()).join().unwrap();
    assert!(moved.contains("5.00 MiB"), "{moved}");
    assert!(second.out_of_memory().is_none());
}

#[test]
fn the_numbers_tell_what_would_have_been_served() {
    // With several regions free ones would be given back for a larger one.
    let pool = host_pool(|builder| builder.memory_limit(4 << 20).initial_region(4 << 20));
    let numbers = |error: Error| *error.out_of_memory().unwrap();
    let stream = pool.stream();
    let first = stream.alloc(1 << 20).unwrap();
    let [second, third, fourth] = [(); 3].map(|()| pool.alloc(1 << 20).unwrap());
    let exhausted = numbers(pool.alloc(1).unwrap_err());
    assert_eq!((exhausted.requested, exhausted.free, exhausted.limit), (1, 0, 4 << 20));
    assert_eq!((exhausted.cause, exhausted.would_fit()), (FailureCause::Exhaustion, Some(0)));

    drop((second, fourth));
    let fragmented = numbers(pool.alloc(2 << 20).unwrap_err());
    assert_eq!((fragmented.free, fragmented.largest_free), (2 << 20, 1 << 20));
    assert_eq!((fragmented.cause, fragmented.would_fit()), (FailureCause::Fragmentation, Some(1 << 20)));

    drop((first, third));
    let waiting = numbers(pool.alloc(4 << 20).unwrap_err());
    assert_eq!((waiting.cause, waiting.would_fit()), (FailureCause::Exhaustion, Some(3 << 20)));
    assert_eq!((waiting.free, waiting.waiting), (3 << 20, 1 << 20));
    stream.synchronized().unwrap();
    drop(pool.alloc(4 << 20).unwrap());
}

/// What the statistics count is also what the error says.
#[test]
fn a_request_that_nothing_could_serve_says_why() {
    let pool = pool();
    let cause = |error: Error| error.out_of_memory().unwrap().cause;
    let aligned = |alignment| Request::new(1).alignment(alignment);
    assert_eq!(cause(pool.alloc_with(&aligned(8 << 20)).unwrap_err()), FailureCause::Alignment);
    assert_eq!(cause(pool.alloc(usize::MAX).unwrap_err()), FailureCause::Other);
}

#[test]
fn a_request_without_growth_is_cheap_to_refuse() {
    let pool = pool();
    let error = pool.alloc_with(&Request::new(1).no_growth()).unwrap_err();
    assert_eq!((error.kind(), error.out_of_memory()), (ErrorKind::OutOfMemory, None));
    assert_eq!(pool.stats().unwrap().num_failures, 0);
}

#[test]
fn what_would_fit_is_unknown_with_an_alignment() {
    let pool = pool();
    let error = pool.alloc_with(&Request::new(5 << 20).alignment(4096)).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().would_fit(), None);
}

#[test]
fn errors_of_input_and_output_have_the_kind_that_fits() {
    let pool = pool();
    let out_of_memory = || pool.alloc(5 << 20).unwrap_err();
    for (error, kind) in [
        (out_of_memory(), io::ErrorKind::OutOfMemory),
        (pool.alloc_with(&Request::new(1).alignment(3)).unwrap_err(), io::ErrorKind::InvalidInput),
        (pool.timestamp().unwrap_err(), io::ErrorKind::Unsupported),
        (Pool::borrowed(pool.ordinal() % 2 + 256).unwrap_err(), io::ErrorKind::Other),
    ] {
        let message = error.to_string();
        let converted = io::Error::from(error);
        assert_eq!((converted.kind(), converted.to_string()), (kind, message));
        assert!(converted.get_ref().unwrap().is::<Error>());
    }

    // As `?` converts it in a function that returns any error.
    let fails = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> { Err(out_of_memory())? };
    assert!(fails().unwrap_err().downcast_ref::<Error>().unwrap().out_of_memory().is_some());
}

#[test]
fn with_stamps_there_are_no_streams() {
    let pool = host_pool(|builder| {
        builder.memory_limit(4 << 20).flags(Flags::ALLOW_GROWTH | Flags::SPLIT_ALWAYS | Flags::TIMESTAMPS)
    });
    let stream = pool.stream();
    says(&stream.alloc(1).unwrap_err(), ErrorKind::Unsupported, "BFC_TIMESTAMPS");
    let block = pool.alloc(1000).unwrap();
    says(&block.as_block().record_use(&stream).unwrap_err(), ErrorKind::Unsupported, "BFC_TIMESTAMPS");
    drop(block);
    let stamp = pool.timestamp().unwrap();
    let earlier = pool.alloc_with(&Request::new(1000).freed_before(stamp - 1));
    assert_ne!(earlier.unwrap().as_ptr().addr().get(), 0);
    pool.set_safe_frontier(stamp + 1).unwrap();
}
