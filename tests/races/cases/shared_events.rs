//! An event that one thread is about to query, while a second one records it and a third one gets it for another
//! stream: the first would mistake the end of that stream's work for the end of the work that it queries.

use super::{Mark, first_of, fixed_pool, variants};
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::Simulation;
use crate::common::*;
use std::time::{Duration, Instant};

/// The duration of the first thread's query, during which the second one records.
const QUERY: Duration = Duration::from_millis(1600);
const RECORD: Duration = Duration::from_millis(400);

/// Waits until a function of the driver is called once more, or for a while, because a library may not call it.
fn call_of(sim: Simulation, function: &str, before: u64) {
    let start = Instant::now();
    while sim.calls(function) == before && start.elapsed() < RECORD / 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes the next calls of a function slow.
fn slow(sim: Simulation, function: &str, time: Duration) {
    let name = std::ffi::CString::new(function).expect("no NUL");
    sim.delay(name.as_ptr(), time.as_nanos() as u64);
}

#[test]
fn an_event_that_is_queried_is_recorded_for_nothing_else() {
    variants(BACKENDS, |gpu, (backend, unit)| program(gpu, backend, unit));
}

/// A request for memory that the pool holds, which queries events and waits for nothing.
fn look(pool: &Pool, bytes: u64, stream: u64) -> Result<u64, Status> {
    let mut wanted = request(bytes as usize);
    (wanted.flags, wanted.stream) = (BFC_REQUEST_ON_STREAM | BFC_REQUEST_NO_GROWTH, pointer(stream));
    pool.alloc_ex(&wanted)
}

fn program(gpu: Gpu, backend: u32, unit: u64) -> Result<(), String> {
    let (sim, context) = (gpu.sim, gpu.enter(0));
    let pool = fixed_pool(backend, 256 * unit);
    // Used in this order, so that the next event to record belongs to another stream.
    let [idle, busy, asking, helper] = [(); 4].map(|()| gpu.stream(false));
    let of_idle = pool.get_on(20 * unit, idle);
    let mut live = vec![pool.get_on(unit, idle)];
    let chunks = [(); 3].map(|()| {
        let chunk = pool.get_on(40 * unit, busy);
        // Between two of them is one that is not freed.
        live.push(pool.get_on(unit, helper));
        chunk
    });
    live.push(pool.get_on(unit, asking));
    // No other memory can serve a request.
    while let Ok(address) = look(&pool, unit, helper) {
        live.push(address);
    }
    gpu.hold(busy);
    let marks = chunks.map(|chunk| {
        gpu.fill(busy, chunk, 40 * unit, 1);
        gpu.expect(busy, chunk, 40 * unit, 1);
        Mark::queue(gpu, busy)
    });
    // Two pending events of the busy stream.
    let too_much = 200 * unit;
    for chunk in &chunks[..2] {
        pool.put_on(*chunk, busy);
        assert!(look(&pool, too_much, helper).is_err());
    }
    let (shared, queries) = (&pool, sim.calls("cuEventQuery"));
    slow(sim, "cuEventQuery", QUERY);
    let got = std::thread::scope(|scope| {
        // The first thread is about to query both.
        let first = scope.spawn(move || {
            gpu.set_current(context);
            look(shared, 40 * unit, asking)
        });
        call_of(sim, "cuEventQuery", queries);
        sim.delay(c"cuEventQuery".as_ptr(), 0);
        // The second records an event of that stream, whose capture begins in that moment.
        let records = sim.calls("cuEventRecord");
        slow(sim, "cuEventRecord", RECORD);
        let second = scope.spawn(move || {
            gpu.set_current(context);
            shared.put_on(chunks[2], busy);
            assert!(look(shared, too_much, helper).is_err());
        });
        call_of(sim, "cuEventRecord", records);
        sim.delay(c"cuEventRecord".as_ptr(), 0);
        gpu.begin_capture(busy);
        second.join().expect("no panic");
        let ended = gpu.try_end_capture(busy);
        // The third frees on an idle stream, and queries that.
        pool.put_on(of_idle, idle);
        assert!(look(&pool, too_much, helper).is_err());
        let got = first.join().expect("no panic");
        if let Ok(graph) = ended {
            gpu.destroy_graph(graph);
        }
        got
    });
    // It may fail, because the work is pending.
    let mut is_early = false;
    if let Ok(address) = got {
        gpu.fill(asking, address, 40 * unit, 2);
        is_early =
            Mark::queue(gpu, asking).is_reached() && chunks.contains(&address) && !marks[1].is_reached();
        live.push(address);
    }
    sim.release_all();
    let mismatches = sim.mismatches();
    live.into_iter().for_each(|address| pool.put(address));
    pool.check();
    first_of([
        (mismatches != 0, "wrong data: memory is handed out while the work on it is pending"),
        (is_early, "memory is handed out while the work on it is pending"),
    ])
}

/// While a request's stream is made to wait for another one's work, an event of that stream is recorded before the wait
/// and is completes. It does not cover the memory that becomes the stream's own after the wait.
#[test]
fn an_event_before_a_wait_says_nothing_of_what_comes_behind_it() {
    variants(BACKENDS, |gpu, (backend, unit)| {
        let (sim, context) = (gpu.sim, gpu.enter(0));
        let pool = fixed_pool(backend, 256 * unit);
        let [busy, waiting, lender, third] = [(); 4].map(|()| gpu.stream(false));
        let lent = pool.get_on(unit, lender);
        let chunk = pool.get_on(100 * unit, busy);
        let mut live: Vec<u64> = [waiting, third].iter().map(|&stream| pool.get_on(unit, stream)).collect();
        // No other memory can serve a request.
        while let Ok(address) = look(&pool, unit, third) {
            live.push(address);
        }
        gpu.hold(busy);
        gpu.fill(busy, chunk, 100 * unit, 1);
        gpu.expect(busy, chunk, 100 * unit, 1);
        let done = Mark::queue(gpu, busy);
        pool.put_on(chunk, busy);
        let (shared, waits) = (&pool, sim.calls("cuStreamWaitEvent"));
        slow(sim, "cuStreamWaitEvent", QUERY);
        let got = std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                gpu.set_current(context);
                shared.alloc_on(60 * unit, waiting)
            });
            call_of(sim, "cuStreamWaitEvent", waits);
            sim.delay(c"cuStreamWaitEvent".as_ptr(), 0);
            // A free of memory that was also used on the waiting stream, and a query of that.
            assert_eq!(pool.record(lent, waiting), BFC_OK, "{}", last_error());
            pool.put_on(lent, lender);
            assert!(look(&pool, 200 * unit, third).is_err());
            first.join().expect("no panic")
        });
        let address = got.map_err(|status| format!("status {status}: {}", last_error()))?;
        // The rest of the chunk belongs to the waiting stream, and is pending.
        let rest = look(&pool, 30 * unit, third);
        let mut is_early = false;
        if let Ok(rest) = rest {
            gpu.fill(third, rest, 30 * unit, 2);
            is_early = done.is_overtaken(gpu, third);
            live.push(rest);
        }
        sim.release_all();
        let mismatches = sim.mismatches();
        live.into_iter().chain([address]).for_each(|address| pool.put(address));
        pool.check();
        first_of([
            (mismatches != 0, "wrong data: memory is handed out while the work on it is pending"),
            (is_early, "memory is handed out while the work on it is pending"),
        ])
    });
}

/// A thread queries several events of a stream, one of which is no longer needed meanwhile: the stream has reused
/// memory that was freed there. The event is recorded for another stream only after the thread has released it.
#[test]
fn an_event_that_is_needed_no_more_is_kept_while_it_is_queried() {
    const FREED: usize = 19;
    /// The number of further frees after which the library checks which events are needed.
    const MORE: usize = 13;
    variants(BACKENDS, |gpu, (backend, unit)| {
        let (sim, context) = (gpu.sim, gpu.enter(0));
        let pool = fixed_pool(backend, 512 * unit);
        let [busy, idle, asking] = [(); 3].map(|()| gpu.stream(false));
        let mut live = vec![pool.get_on(unit, asking)];
        let mut of_idle = Vec::new();
        for _ in 0..MORE {
            of_idle.push(pool.get_on(unit, idle));
            // Memory freed there is not a larger piece.
            live.push(pool.get_on(unit, asking));
        }
        // The first completes soon, and the last is reused, because no other is as large.
        let sizes = (0..=FREED + MORE).map(|place| match place {
            0 => 4,
            FREED => 7,
            _ => 5,
        });
        let chunks: Vec<(u64, u64)> = sizes
            .map(|units| {
                let chunk = pool.get_on(units * unit, busy);
                live.push(pool.get_on(unit, asking));
                (chunk, units * unit)
            })
            .collect();
        while let Ok(address) = look(&pool, unit, asking) {
            live.push(address);
        }
        gpu.hold(busy);
        let mut marks = Vec::new();
        let mut free = |&(chunk, bytes): &(u64, u64)| {
            gpu.fill(busy, chunk, bytes, 1);
            gpu.expect(busy, chunk, bytes, 1);
            marks.push((chunk, Mark::queue(gpu, busy)));
            pool.put_on(chunk, busy);
        };
        chunks[..=FREED].iter().for_each(&mut free);
        // The work on the first chunk, and the event after it.
        gpu.step(busy, 4);
        let (shared, queries) = (&pool, sim.calls("cuEventQuery"));
        slow(sim, "cuEventQuery", QUERY);
        let got = std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                gpu.set_current(context);
                look(shared, 5 * unit, asking)
            });
            call_of(sim, "cuEventQuery", queries);
            sim.delay(c"cuEventQuery".as_ptr(), 0);
            live.push(pool.get_on(7 * unit, busy));
            for chunk in &chunks[FREED + 1..] {
                free(chunk);
                // Another stream's free takes the event, if it is available.
                of_idle.pop().into_iter().for_each(|address| pool.put_on(address, idle));
            }
            first.join().expect("no panic")
        });
        let mut is_early = false;
        if let Ok(address) = got {
            let is_pending = |(chunk, mark): &(u64, Mark)| *chunk == address && !mark.is_reached();
            is_early = marks.iter().any(is_pending);
            live.push(address);
        }
        sim.release_all();
        live.into_iter().for_each(|address| pool.put(address));
        pool.check();
        first_of([(is_early, "memory is handed out while the work on it is pending")])
    });
}
