//! How the sizes of regions are chosen: by the option, by the environment, and by the caller's requests.

use crate::common::*;

/// How the child creates its allocator.
const HOW: &str = "TEST_OPTIONS";

/// Returns the sizes of regions if each request needs a new one.
fn regions(device: i32) -> [u64; 4] {
    let mut before = 0;
    [KIB, 8 * MIB, 32 * MIB, 2 * MIB].map(|bytes| {
        loop {
            // Fills the held memory.
            alloc(device, bytes as usize).expect("room");
            let mut out = stats();
            // SAFETY: a whole struct, writable.
            assert_eq!(unsafe { bfc_stats(device, &mut out) }, BFC_OK);
            if out.pool_bytes != before {
                return out.pool_bytes - std::mem::replace(&mut before, out.pool_bytes);
            }
        }
    })
}

const DOUBLING: [u64; 4] = [2 * MIB, 8 * MIB, 32 * MIB, 32 * MIB];
const BY_NEED: [u64; 4] = [2 * MIB, 8 * MIB, 32 * MIB, 4 * MIB];

/// The child of the tests here. Does nothing on its own.
#[test]
fn grower() {
    const HOST: i32 = 256;
    if !child::is_child("grower") {
        return;
    }
    let how = std::env::var(HOW).expect("set by the parent");
    let mut given = options();
    given.backend = BFC_BACKEND_HOST;
    for word in how.split(' ') {
        match word {
            "grow" => given.flags |= BFC_ALLOW_GROWTH,
            "tensorflow" => given.growth_policy = BFC_GROWTH_TENSORFLOW,
            "need" => given.growth_policy = BFC_GROWTH_NEED,
            "prefer" => given.growth_policy = BFC_GROWTH_PREFER_NEED,
            "null" | "zeros" => {}
            _ => panic!("what is {word}?"),
        }
    }
    let given = (how != "null").then_some(given);
    assert_eq!(create(HOST, given.as_ref()), BFC_OK, "{}", last_error());
    println!("fact {:?}", regions(HOST));
    assert_eq!(bfc_check(HOST), BFC_OK, "{}", last_error());
    assert_eq!(bfc_destroy_forced(HOST), BFC_OK);
}

#[track_caller]
fn grows(how: &str, variables: &[(&str, &str)], expected: [u64; 4]) -> String {
    let all = [&[(HOW, how), ("BFC_LOG", "warn"), ("BFC_MEMORY_LIMIT", "1GiB")], variables].concat();
    let ended = child::run("grower", &all);
    assert!(ended.success, "{}{}", ended.text, ended.errors);
    let fact = ended.text.lines().find_map(|line| line.split_once("fact ")).expect("a fact").1;
    assert_eq!(fact, format!("{expected:?}"), "{how} {variables:?}");
    ended.errors
}

#[test]
fn it_is_by_need_unless_the_caller_asked_for_growth_as_tensorflow_has_it() {
    grows("null", &[], BY_NEED);
    grows("grow", &[], DOUBLING);
    // The environment has enabled it.
    grows("zeros", &[("BFC_ALLOW_GROWTH", "1")], BY_NEED);
    grows("zeros", &[("BFC_FORCE_ALLOW_GROWTH", "1")], BY_NEED);
    grows("grow", &[("BFC_FORCE_ALLOW_GROWTH", "1")], DOUBLING);
}

#[test]
fn the_option_comes_before_the_environment_and_that_before_the_default() {
    for (how, by_itself, is_open) in [
        ("grow", DOUBLING, true),
        ("grow tensorflow", DOUBLING, false),
        ("grow need", BY_NEED, false),
        ("grow prefer", BY_NEED, true),
        ("null", BY_NEED, true),
    ] {
        grows(how, &[], by_itself);
        grows(how, &[("BFC_GROWTH", "tensorflow")], if is_open { DOUBLING } else { by_itself });
        grows(how, &[("BFC_GROWTH", " Need ")], if is_open { BY_NEED } else { by_itself });
    }
    let log = grows("null", &[("BFC_GROWTH", "double")], BY_NEED);
    assert!(log.contains("BFC_GROWTH=double is ignored: it must be tensorflow or need"), "{log}");
}

#[test]
fn a_policy_that_does_not_exist_is_refused() {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit, wanted.growth_policy) = (BFC_BACKEND_HOST, MIB, 4);
    assert_eq!(create(300, Some(&wanted)), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("growth_policy 4"), "{}", last_error());
    (wanted.growth_policy, wanted.reserved2) = (BFC_GROWTH_NEED, 1);
    assert_eq!(create(300, Some(&wanted)), BFC_ERROR_INVALID_ARGUMENT);
    // The struct of an older header ends before the policy.
    wanted.growth_policy = 99;
    wanted.struct_size = std::mem::offset_of!(bfc_options_t, growth_policy);
    assert_eq!(create(300, Some(&wanted)), BFC_OK, "{}", last_error());
    assert_eq!(bfc_destroy(300), BFC_OK);
}

/// Regions by need, against the bound that the header states, for random requests and frees.
#[test]
fn no_region_is_larger_than_a_granule_or_the_request_and_a_sixteenth() {
    let pool = Pool::host(GIB, |options| {
        (options.flags, options.growth_policy) = (GROWING, BFC_GROWTH_NEED);
    });
    let (mut state, mut live, mut held) = (1_u64, Vec::new(), 0);
    let mut regions = 0;
    for _ in 0..3000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        if random % 5 < 3 || live.is_empty() {
            let bytes = 1 + (random % (1 << (8 + random % 16)));
            match alloc(pool.device(), bytes as usize) {
                Ok(addr) => live.push(addr),
                Err(status) => assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY),
            }
            let now = pool.stats().pool_bytes;
            if now > held {
                let most = (2 * MIB).max(bytes.next_multiple_of(256) + held / 16);
                assert!(now - held <= most, "{} for {bytes} beside {held}", now - held);
                regions += 1;
            }
            held = now;
        } else {
            let at = random as usize % live.len();
            assert_eq!(free(pool.device(), live.swap_remove(at)), BFC_OK);
        }
    }
    assert!(regions > 10, "{regions}");
    live.into_iter().for_each(|addr| assert_eq!(free(pool.device(), addr), BFC_OK));
}

/// Creates a pool over a backend of the test, with this growth policy.
fn growing(policy: u32, flags: u32) -> Pool {
    Pool::custom(Backend::new(GIB), GIB, |options| {
        (options.flags, options.growth_policy) = (flags, policy);
    })
}

/// Returns the released regions, in order.
fn returned(pool: &Pool) -> Vec<u64> {
    pool.backend().books(|books| books.returned.iter().map(|&(_, bytes)| bytes / MIB).collect())
}

/// Free regions in which the request does not fit are released for the one that it needs, so the pool holds no more
/// than before.
#[test]
fn by_need_a_region_replaces_free_ones_that_are_too_small() {
    let pool = growing(BFC_GROWTH_NEED, GROWING);
    let kept = pool.get(8 * MIB);
    let chunks = [10, 6, 14].map(|size| pool.get(size * MIB));
    chunks.into_iter().for_each(|chunk| pool.put(chunk));
    let held = pool.stats().pool_bytes;
    // 14 and 10 MiB are sufficient.
    let large = pool.get(24 * MIB);
    assert_eq!((returned(&pool), pool.stats().pool_bytes), (vec![10, 14], held));
    pool.put(large);
    // A region that fits stays.
    pool.put(pool.get(6 * MIB));
    pool.put(pool.get(20 * MIB));
    assert_eq!((returned(&pool).len(), pool.stats().pool_bytes), (2, held));
    // 6 and 24 MiB together have no room for it.
    let larger = pool.get(31 * MIB);
    assert_eq!((returned(&pool).len(), pool.stats().pool_bytes), (2, held + 32 * MIB));
    [kept, larger].into_iter().for_each(|chunk| pool.put(chunk));
    pool.check();
}

#[test]
fn regions_are_not_replaced_for_small_requests_or_where_nothing_may_go_back() {
    for (policy, flags) in
        [(BFC_GROWTH_TENSORFLOW, GROWING), (BFC_GROWTH_NEED, BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS)]
    {
        let pool = growing(policy, flags);
        let chunks = [8, 16].map(|size| pool.get(size * MIB));
        chunks.into_iter().for_each(|chunk| pool.put(chunk));
        pool.put(pool.get(24 * MIB));
        assert_eq!(returned(&pool), [0; 0], "policy {policy}, flags {flags}");
    }
    // Half of a sixteenth of the held memory is 5 MiB. A smaller request costs less than releasing regions.
    for (size, replaced) in [(4, &[][..]), (5, &[2, 3])] {
        let pool = growing(BFC_GROWTH_NEED, GROWING);
        let [first, second, kept] = [2, 3, 155].map(|size| pool.get(size * MIB));
        [first, second].into_iter().for_each(|chunk| pool.put(chunk));
        pool.put(pool.get(size * MIB));
        assert_eq!(returned(&pool), replaced, "{size} MiB");
        pool.put(kept);
    }
}

/// A backend that refuses to provide more: the remaining memory serves as before, and nothing is lost.
#[test]
fn a_refusal_after_the_regions_went_back_loses_nothing() {
    let pool = Pool::custom(Backend::new(40 * MIB), GIB, |options| {
        (options.flags, options.growth_policy) = (GROWING, BFC_GROWTH_NEED);
    });
    let kept = pool.get(16 * MIB);
    let chunks = [8, 10].map(|size| pool.get(size * MIB));
    chunks.into_iter().for_each(|chunk| pool.put(chunk));
    // 40 - 16 = 24 MiB: first both regions, then the whole rest of the backend.
    let large = pool.get(18 * MIB);
    assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.alloc(30 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.put(large);
    let larger = pool.get(24 * MIB);
    pool.check();
    [kept, larger].into_iter().for_each(|chunk| pool.put(chunk));
}
