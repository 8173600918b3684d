//! `bfc_metrics`: the text equals the statistics, in every state of the table.

use crate::common::*;
use std::sync::Mutex;

/// The text covers the whole process, so the tests of this file run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn metrics() -> String {
    // One call, because the text may change between two.
    let mut buffer = vec![0u8; 1 << 16];
    let mut length = 0;
    // SAFETY: the buffer has this many bytes.
    let status = unsafe { bfc_metrics(buffer.as_mut_ptr().cast(), buffer.len(), &mut length) };
    assert_eq!(status, BFC_OK, "{}", last_error());
    assert_eq!(buffer[length], 0);
    buffer.truncate(length);
    String::from_utf8(buffer).expect("UTF-8")
}

/// Returns the value of a device's sample.
fn value(text: &str, name: &str, device: i32) -> Option<u64> {
    let start = format!("{name}{{device=\"{device}\",");
    let line = text.lines().find(|line| line.starts_with(&start))?;
    Some(line.rsplit(' ').next().expect("a value").parse().expect("a number"))
}

#[test]
fn each_allocator_has_the_values_of_its_statistics() {
    let _alone = ALONE.lock();
    let pools = [Pool::host(MIB, |_| {}), Pool::host(2 * MIB, |_| {})];
    let kept = pools[0].get(1000);
    pools[1].put(pools[1].get(5000));
    assert!(pools[1].alloc(4 * MIB).is_err());
    let text = metrics();
    for pool in &pools {
        let stats = pool.stats();
        let expected = [
            ("bfc_allocations_total", stats.num_allocs),
            ("bfc_frees_total", stats.num_frees),
            ("bfc_failed_requests_total", stats.num_failures),
            ("bfc_planned_allocations_total", stats.num_planned_allocs),
            ("bfc_in_use_bytes", stats.bytes_in_use),
            ("bfc_in_use_peak_bytes", stats.peak_bytes_in_use),
            ("bfc_requested_bytes", stats.bytes_requested),
            ("bfc_requested_peak_bytes", stats.peak_bytes_requested),
            ("bfc_largest_allocation_bytes", stats.largest_alloc_size),
            ("bfc_limit_bytes", stats.bytes_limit),
            ("bfc_held_bytes", stats.pool_bytes),
            ("bfc_held_peak_bytes", stats.peak_pool_bytes),
            ("bfc_largest_free_chunk_bytes", stats.largest_free_block_bytes),
            ("bfc_regions", stats.num_regions),
            ("bfc_chunks", stats.num_chunks),
            ("bfc_free_chunks", stats.num_free_chunks),
            ("bfc_metadata_bytes", stats.metadata_bytes),
        ];
        for (name, number) in expected {
            assert_eq!(value(&text, name, pool.device()), Some(number), "{name} in {text}");
        }
    }
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    pools[0].put(kept);
}

/// A rule that divides by the limit does not apply to such an allocator.
#[test]
fn no_limit_is_infinite() {
    let _alone = ALONE.lock();
    let pool = Pool::host(u64::MAX, |options| options.flags |= BFC_ALLOW_GROWTH);
    let (text, start) = (metrics(), format!("bfc_limit_bytes{{device=\"{}\"", pool.device()));
    let sample = text.lines().find(|line| line.starts_with(&start)).expect("a sample");
    assert!(sample.ends_with("} +Inf"), "{sample}");
}

#[test]
fn a_destroyed_allocator_is_left_out_and_no_message_is_set() {
    let _alone = ALONE.lock();
    let pool = Pool::host(MIB, |_| {});
    assert!(value(&metrics(), "bfc_limit_bytes", pool.device()).is_some());
    assert!(pool.alloc(2 * MIB).is_err());
    let message = last_error();
    assert_eq!(pool.destroy(), BFC_OK);
    let samples: Vec<String> =
        metrics().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert_eq!(samples, ["bfc_poisoned_allocators 0"]);
    assert_eq!(last_error(), message);
}

#[test]
fn hostile_names_are_escaped() {
    let _alone = ALONE.lock();
    let _pool = Pool::host(MIB, |options| options.name = c"a\\\"} 1\n# EOF\n".as_ptr());
    let text = metrics();
    assert!(text.contains(r#",name="a\\\"} 1\n# EOF\n",backend="host"} "#), "{text}");
    assert_eq!(text.matches("\n# EOF\n").count(), 1, "{text}");
}

#[test]
fn threads_may_allocate_meanwhile() {
    let _alone = ALONE.lock();
    let pool = Pool::host(MIB, |_| {});
    std::thread::scope(|scope| {
        scope.spawn(|| (0..2000).for_each(|_| pool.put(pool.get(256))));
        for _ in 0..200 {
            let text = metrics();
            let [allocs, frees, used] = ["bfc_allocations_total", "bfc_frees_total", "bfc_in_use_bytes"]
                .map(|name| value(&text, name, pool.device()).expect("a value"));
            assert_eq!((allocs - frees) * 256, used, "of one moment");
        }
    });
}
