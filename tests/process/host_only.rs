//! A process that uses no device never opens CUDA's driver.

use crate::common::simcuda::simulated;
use crate::common::*;

fn use_the_host(backend: u32) {
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (backend, BFC_ALLOW_GROWTH, 64 * MIB);
    let pool = Pool::create(fresh_device(), &wanted, None)
        .unwrap_or_else(|status| panic!("status {status}: {}", last_error()));
    let (plain, ordered) = (pool.get(MIB), pool.get_on(MIB, 0x1000));
    pool.put(plain);
    pool.put_on(ordered, 0x1000);
    pool.trim(0);
    pool.check();
}

#[test]
fn the_driver_is_not_asked() {
    simulated("the_driver_is_not_asked", |sim| {
        use_the_host(BFC_BACKEND_HOST);
        use_the_host(BFC_BACKEND_HOST_VMM);
        assert_eq!(sim.all_calls(), 0);
    });
}

#[test]
fn nor_opened() {
    let test = "nor_opened";
    if !child::is_child(test) {
        // In a process in which no other test opens it.
        child::expect_success(test, &[]);
        return;
    }
    use_the_host(BFC_BACKEND_HOST);
    use_the_host(BFC_BACKEND_HOST_VMM);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("libcuda"), "{maps}");
}
