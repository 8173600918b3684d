//! The check for races: what orders two uses of the same memory and what does not, in whatever order they are run.

mod common;
use common::*;

const BYTES: u64 = 4096;

/// A machine that looks for races, with two streams that wait for no other.
fn watched() -> (Machine, CUstream, CUstream) {
    let machine = ready();
    assert_eq!(machine.steer.set(steer::RACES, 1), 0);
    let [first, second] = [0, 0].map(|_| stream(&machine));
    (machine, first, second)
}

fn event(machine: &Machine) -> CUevent {
    machine.event(CU_EVENT_DISABLE_TIMING).unwrap()
}

/// Makes the second stream wait for what was queued on the first one.
fn order(machine: &Machine, first: CUstream, second: CUstream) {
    let event = event(machine);
    machine.record(event, first).unwrap();
    machine.stream_wait(second, event, 0).unwrap();
    machine.event_destroy(event).unwrap();
}

/// What a test does between two uses of the same memory on two streams.
type Between = fn(&Machine, CUstream, CUstream);

/// Returns the races of a fill on one stream, something, and a fill of the second half on another stream. Work is done
/// at once, or held and stepped on one stream before the other.
fn races(between: Between, flags: u32, run: Run) -> u64 {
    let machine = ready();
    machine.steer.set(steer::RACES, 1);
    machine.steer.set(steer::DEADLOCK_MILLISECONDS, 0);
    let [first, second] = [0, 0].map(|_| machine.stream(flags).unwrap());
    let memory = machine.alloc(BYTES as usize).unwrap();
    if run != Run::AtOnce {
        machine.hold(first);
        machine.hold(second);
    }
    machine.fill(first, memory, BYTES, 1).unwrap();
    between(&machine, first, second);
    machine.fill(second, memory + BYTES / 2, BYTES / 2, 2).unwrap();
    let streams = if run == Run::SecondFirst { [second, first] } else { [first, second] };
    for stream in streams {
        machine.step(stream, 100);
    }
    machine.steer.release_all();
    let races = machine.steer.misuse_texts().iter().filter(|text| text.starts_with("race: ")).count() as u64;
    assert_eq!(races, machine.steer.misuses(), "{:?}", machine.steer.misuse_texts());
    races
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Run {
    AtOnce,
    FirstFirst,
    SecondFirst,
}

const RUNS: [Run; 3] = [Run::AtOnce, Run::FirstFirst, Run::SecondFirst];

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

#[test]
fn what_orders_two_streams_is_no_race() {
    let ways: [(&str, Between); 13] = [
        ("an event", order),
        ("an event that was recorded again since", |machine, first, second| {
            let event = event(machine);
            machine.record(event, first).unwrap();
            machine.stream_wait(second, event, 0).unwrap();
            machine.record(event, second).unwrap();
        }),
        ("events through a third stream", |machine, first, second| {
            let third = stream(machine);
            order(machine, first, third);
            order(machine, third, second);
        }),
        ("a wait for the stream", |machine, first, _| machine.stream_synchronize(first).unwrap()),
        ("a wait for the context", |machine, _, _| machine.synchronize().unwrap()),
        ("a wait for an event", |machine, first, _| {
            let event = event(machine);
            machine.record(event, first).unwrap();
            machine.event_synchronize(event).unwrap();
        }),
        ("a query of the stream that finds it done", |machine, first, _| {
            machine.step(first, 1);
            machine.stream_query(first).unwrap();
        }),
        ("a query of an event that finds it done", |machine, first, _| {
            let event = event(machine);
            machine.record(event, first).unwrap();
            machine.step(first, 2);
            machine.event_query(event).unwrap();
        }),
        ("a host function", |machine, first, _| {
            machine.host_function(first, Some(nothing), std::ptr::null_mut()).unwrap();
            machine.step(first, 2);
        }),
        ("an event of the context", |machine, _, second| {
            let event = event(machine);
            machine.context_record(machine.current().unwrap(), event).unwrap();
            machine.stream_wait(second, event, 0).unwrap();
        }),
        ("a wait of the context", |machine, first, _| {
            let event = event(machine);
            machine.record(event, first).unwrap();
            machine.context_wait(machine.current().unwrap(), event).unwrap();
        }),
        ("a value in memory", |machine, first, second| {
            let flag = machine.alloc(4).unwrap();
            machine.write_value(first, flag, 1, 0).unwrap();
            machine.wait_value(second, flag, 1, CU_STREAM_WAIT_VALUE_EQ).unwrap();
        }),
        ("a message", |machine, first, second| {
            machine.steer.send(first.cast(), 1);
            machine.steer.receive(second.cast(), 1);
        }),
    ];
    for (name, between) in ways {
        for run in RUNS {
            assert_eq!(races(between, CU_STREAM_NON_BLOCKING, run), 0, "{name}, {run:?}");
        }
    }
}

#[test]
fn what_orders_nothing_is_a_race_in_any_order() {
    let ways: [(&str, Between); 7] = [
        ("nothing", |_, _, _| ()),
        ("a kernel", |machine, first, _| {
            assert_eq!(machine.steer.launch(first.cast(), nothing, std::ptr::null_mut()), 0);
            machine.step(first, 2);
        }),
        ("an event in the other direction", |machine, first, second| order(machine, second, first)),
        ("an event from before the work", |machine, _, second| {
            let third = stream(machine);
            order(machine, third, second);
        }),
        ("a wait for another stream", |machine, _, second| machine.stream_synchronize(second).unwrap()),
        ("work on the legacy default stream", |machine, _, _| {
            let other = machine.alloc(8).unwrap();
            machine.set8_async(other, 0, 8, LEGACY).unwrap();
        }),
        ("a destroyed stream", |machine, _, _| {
            let third = stream(machine);
            machine.stream_destroy(third).unwrap();
        }),
    ];
    for (name, between) in ways {
        for run in RUNS {
            assert_eq!(races(between, CU_STREAM_NON_BLOCKING, run), 1, "{name}, {run:?}");
        }
    }
}

/// "synchronizes with all other streams in the same CUcontext except for non-blocking streams" (Stream synchronization
/// behavior).
#[test]
fn work_on_the_legacy_default_stream_orders_blocking_streams() {
    let through: Between = |machine, _, _| {
        let other = machine.alloc(8).unwrap();
        machine.set8_async(other, 0, 8, LEGACY).unwrap();
    };
    for run in RUNS {
        assert_eq!(races(through, CU_STREAM_DEFAULT, run), 0, "{run:?}");
        assert_eq!(races(|_, _, _| (), CU_STREAM_DEFAULT, run), 1, "{run:?}");
    }
    // Also those that are destroyed.
    let (machine, _, _) = watched();
    let [first, second] = [0, 0].map(|_| machine.stream(CU_STREAM_DEFAULT).unwrap());
    let memory = machine.alloc(8).unwrap();
    machine.fill(first, memory, 8, 1).unwrap();
    machine.stream_destroy(first).unwrap();
    machine.set8_async(memory, 0, 8, LEGACY).unwrap();
    machine.fill(second, memory, 8, 2).unwrap();
    machine.was_well_used();
}

#[test]
fn waiting_for_the_context_covers_destroyed_streams() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(8).unwrap();
    machine.fill(first, memory, 8, 1).unwrap();
    machine.stream_destroy(first).unwrap();
    machine.synchronize().unwrap();
    machine.fill(second, memory, 8, 2).unwrap();
    machine.was_well_used();
    let third = stream(&machine);
    machine.stream_destroy(second).unwrap();
    machine.fill(third, memory, 8, 3).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}

/// Work that a destroyed stream has waited for still comes before work that is queued after it, even once the host
/// knows that it is done.
#[test]
fn a_relay_that_is_gone_still_orders() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(8).unwrap();
    machine.fill(first, memory, 8, 1).unwrap();
    let (relay, relayed) = (stream(&machine), event(&machine));
    order(&machine, first, relay);
    machine.record(relayed, relay).unwrap();
    machine.stream_destroy(relay).unwrap();
    machine.hold(second);
    machine.stream_wait(second, relayed, 0).unwrap();
    machine.fill(second, memory, 8, 2).unwrap();
    machine.event_query(relayed).unwrap();
    machine.release(second);
    machine.was_well_used();
}

#[test]
fn reads_do_not_race_and_only_the_bytes_count() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(BYTES as usize).unwrap();
    machine.set8(memory, 1, BYTES as usize).unwrap();
    machine.synchronize().unwrap();
    let pattern = 0x0101_0101_0101_0101;
    machine.expect(first, memory, BYTES, pattern).unwrap();
    machine.expect(second, memory, BYTES, pattern).unwrap();
    let other = machine.alloc(16).unwrap();
    machine.copy_async(other, memory, 8, first).unwrap();
    machine.copy_async(other + 8, memory, 8, second).unwrap();
    machine.was_well_used();
    // The reads of both streams count.
    machine.fill(second, memory + 100, 8, 2).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
    machine.fill(first, memory + 108, 8, 2).unwrap();
    assert_eq!(machine.steer.misuses(), 2);
    // A write after a race counts as one, and its neighbours as before.
    order(&machine, first, second);
    machine.fill(second, memory, BYTES, 3).unwrap();
    assert_eq!(machine.steer.misuses(), 2, "{:?}", machine.steer.misuse_texts());
}

#[test]
fn the_text_names_the_memory_the_streams_and_the_calls() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(BYTES as usize).unwrap();
    machine.set32_async(memory, 1, 8, first).unwrap();
    machine.copy_async(memory + 2048, memory + 16, 64, second).unwrap();
    let texts = machine.steer.misuse_texts();
    let numbers: Vec<&str> =
        texts[0].split("(call ").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let [later, earlier] = numbers[..] else { panic!("{texts:?}") };
    let expected = format!(
        "race: the copy of cuMemcpyAsync (call {later}) on stream {second:p} reads bytes {:#x} to {:#x} of the \
         allocation at {memory:#x} (4096 bytes), which the memset of cuMemsetD32Async (call {earlier}) on stream \
         {first:p} writes; no event, synchronization or default stream orders the two",
        memory + 16,
        memory + 32,
    );
    assert_eq!(texts, [expected]);
    assert!(machine.steer.log_text().contains(&format!("\n{later} thread ")), "the log has the number");
}

#[test]
fn branches_of_a_graph_are_ordered_by_their_edges_alone() {
    for joins in [true, false] {
        for reversed in [0, 1] {
            let (machine, first, second) = watched();
            machine.steer.set(steer::GRAPH_ORDER, reversed);
            let memory = machine.alloc(BYTES as usize).unwrap();
            machine.begin_capture(first, CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            machine.set8_async(memory, 1, 64, first).unwrap();
            order(&machine, first, second);
            machine.set8_async(memory, 2, 32, second).unwrap();
            if joins {
                order(&machine, second, first);
            }
            machine.set8_async(memory, 3, 16, first).unwrap();
            order(&machine, second, first);
            let graph = machine.end_capture(first).unwrap();
            let executable = machine.instantiate(graph, 0).unwrap();
            let races = |launches: u64| if joins { 0 } else { launches };
            machine.graph_launch(executable, first).unwrap();
            assert_eq!(machine.steer.misuses(), races(1), "{:?}", machine.steer.misuse_texts());
            // A launch comes after the previous one of the same graph, and the stream's work after it.
            machine.graph_launch(executable, second).unwrap();
            machine.set8_async(memory, 4, 64, second).unwrap();
            assert_eq!(machine.steer.misuses(), races(2), "{:?}", machine.steer.misuse_texts());
            order(&machine, second, first);
            machine.set8_async(memory, 5, 64, first).unwrap();
            machine.stream_synchronize(first).unwrap();
            machine.set8_async(memory, 6, 64, second).unwrap();
            assert_eq!(machine.steer.misuses(), races(2), "{:?}", machine.steer.misuse_texts());
            // Both branches count for another stream.
            order(&machine, second, first);
            machine.graph_launch(executable, first).unwrap();
            machine.set8_async(memory + 16, 7, 16, stream(&machine)).unwrap();
            assert_eq!(machine.steer.misuses(), races(3) + 1, "{:?}", machine.steer.misuse_texts());
        }
    }
}

#[test]
fn an_event_node_orders_what_it_names() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(BYTES as usize).unwrap();
    let (graph, recorded, waited) = (machine.graph(0).unwrap(), event(&machine), event(&machine));
    let context = machine.current().unwrap();
    let set = |at: u64| CUDA_MEMSET_NODE_PARAMS {
        dst: memory + at,
        pitch: 0,
        value: 1,
        elementSize: 1,
        width: 16,
        height: 1,
    };
    let null = std::ptr::null();
    // Three branches: a record, a wait, and neither.
    let node = machine.set_node(graph, null, 0, &set(0), context).unwrap();
    machine.record_node(graph, &raw const node, 1, recorded).unwrap();
    let node = machine.wait_node(graph, null, 0, waited).unwrap();
    machine.set_node(graph, &raw const node, 1, &set(16), context).unwrap();
    machine.set_node(graph, null, 0, &set(32), context).unwrap();
    let executable = machine.instantiate(graph, 0).unwrap();
    machine.set8_async(memory + 16, 2, 16, second).unwrap();
    machine.record(waited, second).unwrap();
    machine.graph_launch(executable, first).unwrap();
    machine.was_well_used();
    machine.stream_wait(second, recorded, 0).unwrap();
    machine.set8_async(memory, 3, 16, second).unwrap();
    machine.was_well_used();
    machine.set8_async(memory + 32, 3, 16, second).unwrap();
    assert_eq!(machine.steer.misuses(), 1, "{:?}", machine.steer.misuse_texts());
}

/// "All asynchronous accesses of the allocation must happen between the stream executions of the allocation and the free"
/// (Stream Ordered Memory Allocator in cuda.h).
#[test]
fn pool_memory_is_used_between_its_allocation_and_its_free() {
    let (machine, first, second) = watched();
    let bytes = BYTES as usize;
    let memory = machine.alloc_async(bytes, first).unwrap();
    machine.set8_async(memory, 1, bytes, second).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
    machine.free_async(memory, first).unwrap();
    let texts = machine.steer.misuse_texts();
    assert!(texts[0].contains("of cuMemAllocAsync (call ") && texts[0].contains(" allocates;"), "{texts:?}");
    assert!(texts.len() == 2 && texts[1].contains("of cuMemFreeAsync (call "), "{texts:?}");
    // The pool itself orders what it hands out again.
    let memory = machine.alloc_async(bytes, second).unwrap();
    machine.set8_async(memory, 2, bytes, second).unwrap();
    machine.free_async(memory, second).unwrap();
    assert_eq!(machine.steer.misuses(), 2);
}

#[test]
fn memory_that_is_used_is_neither_unmapped_nor_freed() {
    let (machine, first, second) = watched();
    let bytes = 2 * MIB;
    let at = machine.address_reserve(bytes as usize, 0, 0, 0).unwrap();
    let map = || {
        let handle = machine.physical(bytes).unwrap();
        machine.map(at, bytes as usize, 0, handle, 0).unwrap();
        machine.allow(at, bytes, 0).unwrap();
        machine.handle_release(handle).unwrap();
    };
    map();
    machine.fill(first, at, 8, 1).unwrap();
    machine.stream_synchronize(first).unwrap();
    machine.unmap(at, bytes as usize).unwrap();
    machine.was_well_used();
    map();
    machine.fill(second, at, 8, 1).unwrap();
    machine.unmap(at, bytes as usize).unwrap();
    let texts = machine.steer.misuse_texts();
    assert!(texts[0].starts_with("race: the unmapping of cuMemUnmap (call "), "{texts:?}");
    // cuMemFree waits for the device, and what takes its addresses is other memory.
    let memory = machine.alloc(8).unwrap();
    machine.fill(first, memory, 8, 1).unwrap();
    machine.free(memory).unwrap();
    assert_eq!((machine.alloc(8), machine.fill(second, memory, 8, 2)), (Ok(memory), Ok(())));
    assert_eq!(machine.steer.misuses(), 1);
    machine.steer.set(steer::FREE_SYNCHRONIZES, 0);
    machine.free(memory).unwrap();
    assert_eq!(machine.steer.misuses(), 2);
}

/// "A copy (in the implicit NULL stream) between the memories of two different devices: does not start until all commands
/// previously issued to either device have completed and runs to completion before any commands [...] issued after the copy
/// to either device can start" (guide, Peer-to-Peer Memory Copy).
#[test]
fn a_synchronous_copy_between_devices_is_behind_all_work_of_both_and_before_all_that_follows() {
    let machine = machine(2);
    machine.steer.set(steer::RACES, 1);
    let (one, other) = (machine.enter(1), machine.enter(0));
    machine.enable_peer(one, 0).unwrap();
    let (here, memory) = (stream(&machine), machine.alloc(64).unwrap());
    machine.set_current(one).unwrap();
    let (there, to) = (stream(&machine), machine.alloc(64).unwrap());
    let peer = |is_synchronous: bool| {
        let functions = (machine.driver.cuMemcpyPeer().unwrap(), machine.driver.cuMemcpyPeerAsync().unwrap());
        let code = match is_synchronous {
            // SAFETY: the memory is the machine's.
            true => unsafe { functions.0(to, one, memory, other, 64) },
            // SAFETY: as above.
            false => unsafe { functions.1(to, one, memory, other, 64, there) },
        };
        answer(code).unwrap();
    };
    for is_synchronous in [true, false] {
        machine.hold(here);
        machine.fill(here, memory, 64, 1).unwrap();
        machine.fill(there, to, 64, 2).unwrap();
        peer(is_synchronous);
        machine.fill(there, to, 64, 3).unwrap();
        machine.fill(here, memory, 64, 4).unwrap();
        if is_synchronous {
            assert_eq!(machine.byte(to), 2, "the copy waits for the held work");
        }
        machine.release(here);
        assert_eq!(
            machine.steer.misuses(),
            if is_synchronous { 0 } else { 1 },
            "{:?}",
            machine.steer.misuse_texts()
        );
        for context in [one, other] {
            machine.set_current(context).unwrap();
            machine.synchronize().unwrap();
        }
    }
}

/// Pinned memory is the host's, whatever context it was allocated in.
#[test]
fn a_synchronous_copy_from_pinned_memory_is_of_one_device() {
    let machine = machine(2);
    let (one, other) = (machine.enter(1), machine.enter(0));
    let (here, memory) = (stream(&machine), machine.alloc(64).unwrap());
    let pinned = machine.pinned(64, 0).unwrap();
    machine.set_current(one).unwrap();
    let to = machine.alloc(64).unwrap();
    machine.hold(here);
    machine.fill(here, memory, 64, 1).unwrap();
    machine.copy(to, pinned as u64, 64).unwrap();
    assert_eq!(machine.steer.pending(here.cast()), 1, "the other device's work goes on");
    machine.release(here);
    machine.set_current(other).unwrap();
    machine.was_well_used();
}

#[test]
fn the_check_is_off_unless_it_is_asked_for() {
    let machine = ready();
    machine.steer.set(steer::RACES, 0);
    let [first, second] = [0, 0].map(|_| stream(&machine));
    let memory = machine.alloc(8).unwrap();
    machine.fill(first, memory, 8, 1).unwrap();
    machine.fill(second, memory, 8, 2).unwrap();
    machine.was_well_used();
    // What was queued before is not known.
    machine.steer.set(steer::RACES, 1);
    machine.fill(first, memory, 8, 3).unwrap();
    machine.was_well_used();
    machine.fill(second, memory, 8, 4).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}

#[test]
fn a_race_is_printed_and_ends_the_process_if_a_test_wants_it() {
    const CHILD: &str = "SIMCUDA_TEST_RACES_CHILD";
    const MORE: &str = "simcuda: more races are counted, but not printed\n";
    if let Ok(races) = std::env::var(CHILD) {
        let machine = ready();
        let memory = machine.alloc(8).unwrap();
        let streams = [0, 0].map(|_| stream(&machine));
        for index in 0..=races.parse().unwrap() {
            machine.fill(streams[index % 2], memory, 8, 1).unwrap();
        }
        return;
    }
    for (races, count, printed, succeeds, said) in [
        ("0", 1, 0, true, ""),
        ("1", 1, 1, true, "orders the two\n"),
        ("1", 20, 20, true, "orders the two\n"),
        ("1", 25, 20, true, MORE),
        ("2", 25, 1, false, "orders the two; SIMCUDA_RACES is 2\n"),
    ] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_race_is_printed_and_ends_the_process_if_a_test_wants_it", "--nocapture"]);
        let child = child.env(CHILD, count.to_string()).env("SIMCUDA_RACES", races).output().unwrap();
        assert_eq!(child.status.success(), succeeds);
        let stderr = String::from_utf8_lossy(&child.stderr);
        let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("simcuda: race: ")).collect();
        assert_eq!(lines.len(), printed, "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
        assert_eq!(stderr.matches(MORE).count(), usize::from(said == MORE), "{stderr}");
    }
}

/// However long a program runs, what the check remembers is bounded, and forgetting makes no false report.
#[test]
fn a_long_run_stays_correct() {
    let (machine, first, second) = watched();
    let memory = machine.alloc(1 << 20).unwrap();
    let old = event(&machine);
    machine.record(old, first).unwrap();
    for round in 0..3000 {
        let third = stream(&machine);
        order(&machine, first, third);
        machine.fill(third, memory + round % 64 * 8, 8, 1).unwrap();
        order(&machine, third, first);
        machine.stream_destroy(third).unwrap();
        machine.fill(first, memory + (1 << 19) + round * 16, 8, 1).unwrap();
    }
    for place in 0..70_000 {
        machine.fill(first, memory + place * 12, 8, 1).unwrap();
    }
    machine.stream_wait(second, old, 0).unwrap();
    order(&machine, first, second);
    machine.fill(second, memory, 1 << 20, 2).unwrap();
    machine.was_well_used();
    machine.fill(first, memory, 8, 2).unwrap();
    assert_eq!(machine.steer.misuses(), 1);
}
