//! Reports once several streams share a pool.

use crate::common::*;
use serde_json::Value;

fn states(pool: &Pool) -> Vec<(u64, String, Value, Value)> {
    let map: Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    let chunks = map["regions"][0]["chunks"].as_array().expect("chunks");
    let tell = |chunk: &Value| {
        let state = chunk["state"].as_str().expect("a state").to_owned();
        let of = |key: &str| chunk.get(key).cloned().unwrap_or(Value::Bool(false));
        (chunk["size"].as_u64().expect("a size"), state, of("stream"), of("pool"))
    };
    chunks.iter().map(tell).collect()
}

#[test]
fn a_failed_request_tells_what_other_streams_have() {
    let pool = Pool::host(4 * MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    let first = pool.alloc_on(3 * MIB, 0x100).unwrap();
    pool.alloc_on(MIB / 2, 0x200).unwrap();
    pool.put_on(first, 0x100);
    assert_eq!(pool.alloc_on(MIB, 0x200), Err(BFC_ERROR_OUT_OF_MEMORY));
    let words = last_error();
    assert!(words.contains("the largest piece is 512.00 KiB"), "{words}");
    let waits =
        "3.00 MiB more are for other streams, whose work is not done until bfc_stream_synchronized says so";
    assert!(words.contains(waits), "{words}");
    assert_eq!(pool.vouch(0x100), BFC_OK);
    assert!(pool.alloc_on(MIB, 0x200).is_ok());
    assert_eq!(pool.alloc_on(4 * MIB, 0x200), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert!(!last_error().contains("other streams"), "{}", last_error());
    assert_eq!(bfc_destroy_forced(pool.device()), BFC_OK);
}

#[test]
fn the_map_tells_whose_a_chunk_is() {
    let pool = Pool::host(MIB, |_| {});
    let [a, b, c, d] = [0x100, 0x100, 0x200, 0x200].map(|stream| pool.alloc_on(1024, stream).unwrap());
    assert_eq!(pool.record(c, 0x300), BFC_OK);
    assert_eq!(pool.begin_private(7, 0x400), BFC_OK);
    let kept = pool.alloc_on(1024, 0x400).unwrap();
    let plain = pool.get(1024);
    pool.put_on(a, 0x100);
    pool.put_on(c, 0x200);
    pool.put_on(kept, 0x400);
    pool.put(plain);
    let stream = |handle: &str| Value::String(handle.to_owned());
    let none = || Value::Bool(false);
    let mut expected = vec![
        (1024, "free", stream("0x100"), none()),
        (1024, "in_use", stream("0x100"), none()),
        (1024, "held", stream("0x200"), none()),
        (1024, "in_use", stream("0x200"), none()),
        (1024, "free", stream("0x400"), Value::from(7)),
        (1024, "free", Value::Null, none()),
        (MIB - 6 * 1024, "free", none(), none()),
    ];
    let told = |states: Vec<(u64, &str, Value, Value)>| -> Vec<(u64, String, Value, Value)> {
        states.into_iter().map(|(size, state, stream, pool)| (size, state.to_owned(), stream, pool)).collect()
    };
    assert_eq!(states(&pool), told(expected.clone()));
    // Memory for which the work of 0x300 has completed belongs to 0x200 again.
    assert_eq!(pool.vouch(0x300), BFC_OK);
    expected[2].1 = "free";
    assert_eq!(states(&pool), told(expected));
    pool.put_on(b, 0x100);
    pool.put(d);
    assert_eq!(pool.end_private(7, 0x400), BFC_OK);
    pool.check();
}
