//! What the alignment of large requests costs in memory: `cargo bench --bench alignment`.
//!
//! Each recorded program of tests/traces runs as the interposer would serve it: 512 bytes for all requests, and a larger
//! alignment from 1 MiB on. Memory is only addresses, so nothing of its size is needed. Printed for each alignment:
//!
//! - `least`: the least limit, in one region, under which no request fails, over the peak of live bytes. Fragmentation and
//!   gaps of the alignment are all that it can be more by.
//! - `held`: what is held at the peak where regions grow by doubling and the limit is no concern.

use bfc::raw::SubAllocator;
use bfc::{ErrorKind, Flags, GrowthPolicy, Pool, Request};
use flate2::read::GzDecoder;
use std::cell::Cell;
use std::ffi::c_void;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

const PROGRAMS: [&str; 7] =
    ["bert_var", "gpt2", "llama1b_decode", "mlp_tiny", "resnet50", "serve_mix", "vit"];

/// Alignments of requests of [`LARGE`] and more.
const ALIGNMENTS: [u64; 3] = [512, 64 << 10, 2 << 20];
const LARGE: u64 = 1 << 20;

/// How the driver aligns regions, whatever was asked for.
const REGION: u64 = 2 << 20;

/// The least limit is found to this part of the peak.
const PRECISION: u64 = 10_000;

enum Event {
    Alloc { bytes: u64 },
    Free { request: usize },
}

fn events(program: &str) -> Vec<Event> {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests", "traces", &format!("{program}.trace.gz")].iter().collect();
    let mut text = String::new();
    let file = File::open(path).expect("a trace of tests/traces");
    GzDecoder::new(file).read_to_string(&mut text).expect("gzipped text");
    let mut requests = std::collections::HashMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        let kind = fields.next();
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).expect(line);
        match kind {
            Some("+") => {
                requests.insert(number(), requests.len());
                events.push(Event::Alloc { bytes: number() });
            }
            Some("-") => events.push(Event::Free { request: requests[&number()] }),
            _ => {}
        }
    }
    events
}

/// Bytes, rounded as the interposer rounds them.
fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(512)
}

fn peak_of_live_bytes(events: &[Event]) -> u64 {
    let (mut sizes, mut live, mut peak) = (Vec::new(), 0, 0);
    for event in events {
        match *event {
            Event::Alloc { bytes } => {
                sizes.push(rounded(bytes));
                live += rounded(bytes);
            }
            Event::Free { request } => live -= sizes[request],
        }
        peak = peak.max(live);
    }
    peak
}

unsafe extern "C" fn region(next: *mut c_void, _: usize, bytes: usize, _: *mut usize) -> *mut c_void {
    // SAFETY: it is the cell of `run`, which is called by one thread and outlives the pool.
    let next = unsafe { &*next.cast::<Cell<u64>>() };
    let base = next.get();
    next.set((base + bytes as u64).next_multiple_of(REGION) + REGION);
    std::ptr::without_provenance_mut(base as usize)
}

unsafe extern "C" fn give_back(_: *mut c_void, _: *mut c_void, _: usize) {}

/// Runs a program: the peak of what is held, or `None` if a request fails.
fn run(events: &[Event], alignment: u64, limit: u64, growing: bool) -> Option<u64> {
    let next = Cell::new(1_u64 << 40);
    let user_data = std::ptr::from_ref(&next).cast_mut().cast();
    // SAFETY: the cell lives until the pool is destroyed below, and the functions do not unwind.
    let backend = unsafe { SubAllocator::new(user_data, region, give_back, false) };
    let growth = Flags::ALLOW_GROWTH | Flags::GARBAGE_COLLECTION;
    let pool = Pool::builder(258)
        .suballocator(backend)
        .flags(if growing { Flags::SPLIT_ALWAYS | growth } else { Flags::SPLIT_ALWAYS })
        .growth(GrowthPolicy::TensorFlow)
        .memory_limit(limit)
        .build()
        .expect("a pool");
    let mut blocks = Vec::new();
    let mut fits = true;
    for event in events {
        match *event {
            Event::Alloc { bytes } => {
                let alignment = if bytes >= LARGE { alignment } else { 512 };
                let request = Request::new(rounded(bytes) as usize).alignment(alignment as usize);
                match pool.alloc_with(&request) {
                    Ok(block) => blocks.push(Some(block)),
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                        fits = false;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Event::Free { request } => drop(blocks[request].take().expect("it lives")),
        }
    }
    let held = pool.stats().expect("a pool").peak_pool_bytes;
    drop(blocks);
    pool.destroy().expect("nothing lives");
    fits.then_some(held)
}

/// The least limit under which a program runs.
fn least_limit(events: &[Event], alignment: u64, peak: u64) -> u64 {
    let step = (peak / PRECISION).next_multiple_of(512);
    let (mut too_little, mut enough) = (peak - 512, peak * 2);
    while run(events, alignment, enough, false).is_none() {
        too_little = enough;
        enough *= 2;
    }
    while enough - too_little > step {
        let middle = ((too_little + enough) / 2).next_multiple_of(512);
        match run(events, alignment, middle, false) {
            Some(_) => enough = middle,
            None => too_little = middle,
        }
    }
    enough
}

#[allow(clippy::cast_precision_loss)]
fn main() {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let names = ["512 B", "64 KiB", "2 MiB"];
    println!(
        "| | peak live | {} | {} |",
        names.map(|name| format!("least, {name}")).join(" | "),
        names.map(|name| format!("held, {name}")).join(" | ")
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut sums = [0.0; ALIGNMENTS.len()];
    for program in PROGRAMS {
        let events = events(program);
        let peak = peak_of_live_bytes(&events);
        let least = ALIGNMENTS.map(|alignment| least_limit(&events, alignment, peak) as f64 / peak as f64);
        let held = ALIGNMENTS.map(|alignment| run(&events, alignment, 1 << 44, true).expect("room"));
        for (sum, least) in sums.iter_mut().zip(least) {
            *sum += least;
        }
        let least = least.map(|least| format!("{least:.4}")).join(" | ");
        let held = held.map(|held| format!("{:.0} MiB", mib(held))).join(" | ");
        println!("| {program} | {:.0} MiB | {least} | {held} |", mib(peak));
    }
    let mean = sums.map(|sum| format!("{:.4}", sum / PROGRAMS.len() as f64)).join(" | ");
    println!("| mean | | {mean} | | | |");
}
