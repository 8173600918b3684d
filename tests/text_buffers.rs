//! Texts that are written to the caller's buffer: reports, maps, metrics, settings, and the last error. No test here but
//! one creates allocators, because the metrics are those of the process.

mod common;

use common::*;
use std::ffi::c_char;

type Writer = unsafe extern "C" fn(i32, *mut c_char, usize, *mut usize) -> Status;

unsafe extern "C" fn metrics(_: i32, buffer: *mut c_char, capacity: usize, length: *mut usize) -> Status {
    // SAFETY: as the caller says.
    unsafe { bfc_metrics(buffer, capacity, length) }
}

unsafe extern "C" fn resolve(
    device: i32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    // SAFETY: as the caller says, and without options.
    unsafe { bfc_resolve_options(device, std::ptr::null(), buffer, capacity, length) }
}

/// Every capacity gets a prefix, a NUL and the whole length, and no byte behind it is written.
#[track_caller]
fn check_capacities(device: i32, writer: Writer) {
    let ask = |capacity: usize, buffer: &mut [u8]| {
        let mut length = usize::MAX;
        // SAFETY: the buffer has at least that many bytes.
        let status = unsafe { writer(device, buffer.as_mut_ptr().cast(), capacity, &mut length) };
        assert_eq!(status, BFC_OK, "{}", last_error());
        length
    };
    let mut whole = vec![0; ask(0, &mut []) + 1];
    assert_eq!(ask(whole.len(), &mut whole) + 1, whole.len(), "always the full length");
    for capacity in 0..=whole.len() + 1 {
        let mut buffer = vec![b'#'; whole.len() + 64];
        assert_eq!(ask(capacity, &mut buffer) + 1, whole.len());
        let fits = capacity.saturating_sub(1).min(whole.len() - 1);
        assert_eq!(buffer[..fits], whole[..fits], "capacity {capacity}");
        assert!(capacity == 0 || buffer[fits] == 0, "capacity {capacity}");
        assert!(buffer[capacity..].iter().all(|&byte| byte == b'#'), "capacity {capacity}");
    }
}

#[test]
fn texts_are_cut_to_the_buffer() {
    // AUTO is host memory here.
    const HOST: i32 = 256;
    let mut wanted = options();
    wanted.memory_limit = MIB;
    let pool = Pool::create(HOST, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
    pool.get(1);
    for writer in [bfc_occupancy, bfc_memory_map, bfc_report, metrics, resolve] {
        check_capacities(pool.device(), writer);
        let mut buffer = *b"abc\0";
        let place = buffer.as_mut_ptr().cast::<c_char>();
        // SAFETY: a NULL out-pointer is the tested value. The buffer has four bytes.
        let without_length =
            |capacity| unsafe { writer(pool.device(), place, capacity, std::ptr::null_mut()) };
        assert_eq!([0, 4].map(without_length), [BFC_ERROR_INVALID_ARGUMENT; 2]);
        assert_eq!(buffer, *b"\0bc\0", "no text of an earlier call stays, and nothing else is written");
        let mut length = 1;
        // SAFETY: a NULL buffer is the tested value. The out-pointer is valid.
        let status = unsafe { writer(pool.device(), std::ptr::null_mut(), 5, &mut length) };
        assert_eq!((status, length), (BFC_ERROR_INVALID_ARGUMENT, 0));
    }
    assert_eq!(pool.destroy_forced(), BFC_OK);
    check_capacities(HOST, resolve);
    for writer in [bfc_occupancy, bfc_memory_map, bfc_report] {
        let (mut buffer, mut length) = (*b"abc\0", 1);
        // SAFETY: the buffer has four bytes.
        let status = unsafe { writer(HOST, buffer.as_mut_ptr().cast(), 4, &mut length) };
        assert_eq!((status, length, buffer), (BFC_ERROR_NO_ALLOCATOR, 0, *b"\0bc\0"));
    }
}

#[test]
fn a_message_is_cut_to_the_buffer() {
    assert_eq!(bfc_destroy(-1), BFC_ERROR_INVALID_ARGUMENT);
    let whole = last_error();
    for capacity in 0..=whole.len() + 2 {
        let mut buffer = [b'#'; 1100];
        // SAFETY: the buffer is longer than the capacity.
        let length = unsafe { bfc_last_error(buffer.as_mut_ptr().cast::<c_char>(), capacity) };
        let fits = capacity.saturating_sub(1).min(whole.len());
        assert_eq!((length, &buffer[..fits]), (whole.len(), &whole.as_bytes()[..fits]), "{capacity}");
        assert!(capacity == 0 || buffer[fits] == 0);
        assert!(buffer[capacity..].iter().all(|&byte| byte == b'#'), "{capacity}");
    }
    for capacity in [0, 100] {
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { bfc_last_error(std::ptr::null_mut(), capacity) }, whole.len());
    }
}
