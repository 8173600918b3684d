//! Golden placements: every address is where TensorFlow's allocator places it.
//!
//! The seven recorded traces run in the five modes of `traces/golden.tsv` through the C ABI, over a
//! sub-allocator that hands out the same fake addresses as the one in the recording (see
//! `traces/README.md`). Hash, counts and statistics must be those of `tsl::BFCAllocator` in 2.21: with the plain
//! calls, and with those that name a stream, as long as it is always the same one.

use crate::common::*;
use flate2::read::GzDecoder;
use std::fs::{File, read_to_string};
use std::io::Read;
use std::path::PathBuf;

/// An event of a trace; allocations are renumbered in order.
enum Event {
    Alloc { bytes: u64 },
    Free { allocation: usize },
}

struct Trace {
    events: Vec<Event>,
    allocations: usize,
}

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "traces", name].iter().collect()
}

fn read_trace(name: &str) -> Trace {
    let file = File::open(data(&format!("{name}.trace.gz"))).expect("the trace is in tests/traces");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("gzipped text");
    let mut trace = Trace { events: Vec::new(), allocations: 0 };
    let mut numbers = std::collections::HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        let kind = fields.next().expect("a line is not empty");
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).expect(line);
        match kind {
            "+" => {
                numbers.insert(number(), trace.allocations);
                trace.allocations += 1;
                trace.events.push(Event::Alloc { bytes: number() });
            }
            "-" => trace.events.push(Event::Free { allocation: numbers[&number()] }),
            "#" => {}
            _ => panic!("what is {line:?}?"),
        }
    }
    trace
}

/// A line of the table. `largest_free` is not here: TensorFlow's `GetStats` does not set it, so the
/// column is 0 throughout. Ours is checked against the truth in [`check_largest_free`].
struct Golden {
    mode: String,
    limit: u64,
    device_capacity: u64,
    hash: u64,
    failed: u64,
    num_allocs: u64,
    bytes_in_use: u64,
    peak_bytes_in_use: u64,
    largest_alloc: u64,
    pool_bytes: u64,
}

fn read_golden(trace: &str) -> Vec<Golden> {
    let table = read_to_string(data("golden.tsv")).expect("the table is in tests/traces");
    let mut lines = table.lines();
    let names: Vec<&str> =
        lines.next().expect("a first line").trim_start_matches(['#', '\t']).split('\t').collect();
    let rows = lines.map(|line| line.split('\t').collect::<Vec<_>>());
    let rows = rows.filter(|row| names.len() == row.len() && row[column(&names, "trace")] == trace);
    rows.map(|row| {
        let text = |name| row[column(&names, name)];
        let number = |name| text(name).parse().unwrap_or_else(|_| panic!("{name}: {}", text(name)));
        Golden {
            mode: text("mode").to_owned(),
            limit: number("limit"),
            device_capacity: number("device_capacity"),
            hash: u64::from_str_radix(text("fnv1a64"), 16).expect("a hash"),
            failed: number("failed"),
            num_allocs: number("num_allocs"),
            bytes_in_use: number("bytes_in_use"),
            peak_bytes_in_use: number("peak_bytes_in_use"),
            largest_alloc: number("largest_alloc"),
            pool_bytes: number("pool_bytes"),
        }
    })
    .collect()
}

fn column(names: &[&str], name: &str) -> usize {
    names.iter().position(|&there| there == name).unwrap_or_else(|| panic!("no column {name} in {names:?}"))
}

fn flags_of(mode: &str) -> u32 {
    match mode {
        "fixed" | "tight" => 0,
        "growth" => BFC_ALLOW_GROWTH,
        "growth_gc" | "backpedal" => BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION,
        _ => panic!("no mode is named {mode}"),
    }
}

/// FNV-1a over the addresses, 8 bytes each.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, address: u64) {
        for byte in address.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
        }
    }
}

/// The stream in whose order a trace runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Plain,
    /// Always the same stream.
    Stream(u64),
}

impl Order {
    fn alloc(self, pool: &Pool, bytes: u64) -> Result<u64, Status> {
        match self {
            Order::Plain => pool.alloc(bytes),
            Order::Stream(stream) => pool.alloc_on(bytes, stream),
        }
    }

    fn free(self, pool: &Pool, address: u64) {
        match self {
            Order::Plain => pool.put(address),
            Order::Stream(stream) => pool.put_on(address, stream),
        }
    }
}

fn run(trace: &Trace, golden: &Golden, order: Order) {
    let pool = Pool::custom(
        Backend::starting_at(backend::RECORDED_FIRST, golden.device_capacity),
        golden.limit,
        |options| {
            options.flags = flags_of(&golden.mode);
        },
    );
    let mut hash = Fnv(1_469_598_103_934_665_603);
    let mut addresses = Vec::with_capacity(trace.allocations);
    let mut failed = 0;
    for (step, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Alloc { bytes } => {
                let address = order.alloc(&pool, bytes).unwrap_or(0);
                failed += u64::from(address == 0);
                hash.add(address);
                addresses.push(address);
            }
            Event::Free { allocation } => {
                let address = addresses[allocation];
                if address != 0 {
                    order.free(&pool, address);
                }
            }
        }
        if step % (trace.events.len() / 8).max(1) == 0 {
            pool.check();
        }
    }
    pool.check();
    let stats = pool.stats();
    let expected = [
        ("hash", golden.hash, hash.0),
        ("failed", golden.failed, failed),
        ("num_failures", golden.failed, stats.num_failures),
        ("num_allocs", golden.num_allocs, stats.num_allocs),
        ("num_frees", golden.num_allocs, stats.num_frees),
        ("bytes_in_use", golden.bytes_in_use, stats.bytes_in_use),
        ("bytes_requested", 0, stats.bytes_requested),
        ("peak_bytes_in_use", golden.peak_bytes_in_use, stats.peak_bytes_in_use),
        ("largest_alloc", golden.largest_alloc, stats.largest_alloc_size),
        ("pool_bytes", golden.pool_bytes, stats.pool_bytes),
        ("held from the backend", golden.pool_bytes, pool.backend().held()),
        ("bytes_limit", golden.limit, stats.bytes_limit),
    ];
    for (what, golden_value, ours) in expected {
        assert_eq!(
            ours, golden_value,
            "mode {}, {order:?}: {what} (left ours, right TensorFlow's)",
            golden.mode
        );
    }
    check_largest_free(&pool, &stats);
}

/// The mode without growth on one range of granules, by TensorFlow's rule for splitting: the same offsets, counted
/// from the first one. The limit is a few bytes larger, up to a whole granule.
fn run_on_granules(name: &str) {
    const GRANULE: u64 = 2 * MIB;
    let trace = read_trace(name);
    let golden = read_golden(name).into_iter().find(|golden| golden.mode == "fixed").expect("the mode");
    let limit = golden.limit.next_multiple_of(GRANULE);
    let pool = Pool::host(limit, |options| {
        options.backend = BFC_BACKEND_HOST_VMM;
        // The rule of 128 MiB, as a fraction. With less than that there is no such remainder.
        options.fragmentation_fraction = (128.0 * MIB as f64 / limit as f64).min(1.0);
    });
    let mut hash = Fnv(1_469_598_103_934_665_603);
    let mut addresses = Vec::with_capacity(trace.allocations);
    for event in &trace.events {
        match *event {
            Event::Alloc { bytes } => {
                let address = pool.get(bytes);
                addresses.push(address);
                hash.add(address - addresses[0] + backend::RECORDED_FIRST);
            }
            Event::Free { allocation } => pool.put(addresses[allocation]),
        }
    }
    pool.check();
    let stats = pool.stats();
    assert_eq!(hash.0, golden.hash);
    // A request that gets all of the last chunk also gets the excess of the limit.
    let peak = golden.peak_bytes_in_use;
    assert!((peak..=peak + limit - golden.limit).contains(&stats.peak_bytes_in_use));
    assert_eq!(stats.num_allocs, golden.num_allocs);
    assert_eq!((stats.pool_bytes, stats.num_regions, stats.num_chunks), (limit, 1, 1));
}

/// At the end of a trace everything is free and merged: the largest free chunk is the largest region.
fn check_largest_free(pool: &Pool, stats: &bfc_stats_t) {
    let largest = pool.backend().books(|books| books.out.values().copied().max());
    assert_eq!(Some(stats.largest_free_block_bytes), largest);
    assert_eq!((stats.num_chunks, stats.num_free_chunks), (stats.num_regions, stats.num_regions));
}

fn all_modes(name: &str) {
    let trace = read_trace(name);
    let rows = read_golden(name);
    assert_eq!(rows.len(), 5, "{name} has five modes");
    for order in [Order::Plain, Order::Stream(0), Order::Stream(0x5000)] {
        rows.iter().for_each(|golden| run(&trace, golden, order));
    }
}

#[test]
fn bert_var() {
    all_modes("bert_var");
}

#[test]
fn gpt2() {
    all_modes("gpt2");
}

#[test]
fn llama1b_decode() {
    all_modes("llama1b_decode");
}

#[test]
fn mlp_tiny() {
    all_modes("mlp_tiny");
}

#[test]
fn resnet50() {
    all_modes("resnet50");
}

#[test]
fn serve_mix() {
    all_modes("serve_mix");
}

#[test]
fn vit() {
    all_modes("vit");
}

#[test]
fn granules_without_growth() {
    for name in ["bert_var", "gpt2", "llama1b_decode", "mlp_tiny", "resnet50", "serve_mix", "vit"] {
        run_on_granules(name);
    }
}

/// The check can fail: another hash, another count or another placement is noticed.
#[test]
fn a_wrong_golden_value_fails() {
    let trace = read_trace("gpt2");
    let spoil: [fn(&mut Golden); 3] = [|g| g.hash ^= 1, |g| g.peak_bytes_in_use += 256, |g| g.limit -= 256];
    for spoil in spoil {
        let mut golden = read_golden("gpt2").swap_remove(0);
        spoil(&mut golden);
        let result = std::panic::catch_unwind(|| run(&trace, &golden, Order::Plain));
        assert!(result.is_err(), "a spoilt line passed");
    }
}
