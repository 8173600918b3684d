use super::*;
use cuda_sys::{CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_ILLEGAL_ADDRESS};

#[test]
fn what_is_free_less_the_larger_reserve() {
    const MIB: u64 = 1 << 20;
    for (free, limit) in [
        (0, 0),
        (300 * MIB, 0),
        (1000 * MIB, 700 * MIB),
        (6000 * MIB, 5700 * MIB),
        (80_000 * MIB, 76_000 * MIB),
        (u64::MAX, u64::MAX - u64::MAX / 20),
    ] {
        assert_eq!(less_reserve(free), limit, "{free}");
    }
}

#[test]
fn codes_are_told_apart() {
    let refused = |code| Failure::Refused { call: "cuMemAlloc", code };
    assert!(refused(CUDA_ERROR_OUT_OF_MEMORY).is(CUDA_ERROR_OUT_OF_MEMORY));
    assert!(!refused(CUDA_ERROR_ILLEGAL_ADDRESS).is(CUDA_ERROR_OUT_OF_MEMORY));
    assert!(refused(CUDA_ERROR_DEINITIALIZED).is_the_end());
    let missing = cuda_sys::Error::Missing { symbol: "cuMemAlloc_v2", since: 3020, driver: 2000 };
    assert!(!Failure::from(missing).is_the_end());
}
