//! The symbols of `simcuda.h`, through which a test controls and inspects the simulation. They are documented in that
//! header.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use cuda_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUresult, CUstream};

use crate::abi::{Answer, put_text, text};
use crate::exports::{FUNCTIONS, named};
use crate::handles::Kind;
use crate::options::{Choice, MOST_DEVICES, Options};
use crate::rules::streams;
use crate::sim::{self, Guard};
use crate::state::context::Device;
use crate::state::stream::Role;
use crate::state::work::{Function, Work};
use crate::system::PAGE;

fn code(answer: Answer) -> CUresult {
    answer.err().unwrap_or(CUDA_SUCCESS)
}

/// Resets the counts of calls.
fn clear_calls() {
    FUNCTIONS.iter().for_each(|function| function.clear_calls());
}

// The machine.

#[unsafe(no_mangle)]
extern "C" fn simcuda_reset() {
    let mut sim = sim::lock();
    let options = sim.options.clone();
    sim.reset(options);
    clear_calls();
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_configure(devices: c_int, memory: u64) -> CUresult {
    if !(0..=MOST_DEVICES).contains(&devices) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let mut options = Options::from_environment();
    (options.devices, options.memory) = (devices, memory);
    let mut sim = sim::lock();
    sim.reset(options);
    clear_calls();
    CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_shutdown() {
    sim::lock().is_down = true;
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_set(option: c_int, value: i64) -> CUresult {
    let is_granule = value >= PAGE as i64 && value.count_ones() == 1;
    if option == Choice::Granularity as c_int && !is_granule {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let mut sim = sim::lock();
    let known = sim.options.set(option, value);
    if option == Choice::Races as c_int {
        sim.races = sim.options.is_on(Choice::Races).then(Box::default);
    }
    if known { CUDA_SUCCESS } else { CUDA_ERROR_INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_get(option: c_int) -> i64 {
    sim::lock().options.number(option).unwrap_or(-1)
}

// Streams and work.

fn with_stream(stream: CUstream, act: impl FnOnce(Guard, u64) -> Answer) -> CUresult {
    let mut sim = sim::lock();
    code(sim.stream(stream).and_then(|number| act(sim, number)))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_hold(stream: CUstream) -> CUresult {
    with_stream(stream, |mut sim, number| {
        if let Some(stream) = sim.streams.get_mut(&number) {
            stream.hold(true);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_step(stream: CUstream, most: u64) -> u64 {
    let mut sim = sim::lock();
    let Ok(number) = sim.stream(stream) else { return 0 };
    streams::step(sim, number, most).1
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_release(stream: CUstream) -> CUresult {
    with_stream(stream, |mut sim, number| {
        if let Some(stream) = sim.streams.get_mut(&number) {
            stream.hold(false);
        }
        drop(streams::run_ready(sim));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_release_all() {
    let mut sim = sim::lock();
    for stream in sim.streams.values_mut() {
        stream.hold(false);
    }
    drop(streams::run_ready(sim));
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_pending(stream: CUstream) -> u64 {
    let mut sim = sim::lock();
    let number = sim.stream(stream).ok();
    number.and_then(|number| Some(sim.streams.get(&number)?.pending())).unwrap_or(0)
}

fn launch(stream: CUstream, work: Work) -> CUresult {
    with_stream(stream, |sim, number| streams::submit(sim, number, work, Vec::new()).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_launch(
    stream: CUstream,
    function: Option<Function>,
    argument: *mut c_void,
) -> CUresult {
    match function {
        Some(function) => launch(stream, Work::Kernel { function, argument: argument.addr() as u64 }),
        None => CUDA_ERROR_INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_fill(stream: CUstream, at: u64, bytes: u64, pattern: u64) -> CUresult {
    launch(stream, Work::Fill { at, bytes, pattern })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_expect(stream: CUstream, at: u64, bytes: u64, pattern: u64) -> CUresult {
    launch(stream, Work::Expect { at, bytes, pattern })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_send(stream: CUstream, channel: u64) -> CUresult {
    launch(stream, Work::Send { channel })
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_receive(stream: CUstream, channel: u64) -> CUresult {
    launch(stream, Work::Receive { channel })
}

// Faults.

/// Reads a function's name, or none.
fn of(name: *const c_char) -> Answer<Option<String>> {
    if name.is_null() {
        return Ok(None);
    }
    let name = text(name)?;
    let is_known = named(&name).next().is_some();
    if is_known { Ok(Some(name)) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_fail(function: *const c_char, nth: u64, failure: CUresult) -> CUresult {
    match of(function) {
        Ok(function) if nth > 0 && failure != CUDA_SUCCESS => {
            sim::lock().faults.order(function, nth, failure);
            CUDA_SUCCESS
        }
        _ => CUDA_ERROR_INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_struck() -> u64 {
    sim::lock().faults.struck()
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_delay(function: *const c_char, nanoseconds: u64) {
    if let Ok(function) = of(function) {
        sim::lock().faults.delay(function, Duration::from_nanos(nanoseconds));
    }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_clear_faults() {
    sim::lock().faults.clear();
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_make_sticky(failure: CUresult) {
    sim::lock().make_sticky(failure);
}

// What happened.

#[unsafe(no_mangle)]
extern "C" fn simcuda_calls(function: *const c_char) -> u64 {
    if function.is_null() {
        return FUNCTIONS.iter().map(|function| function.calls()).sum();
    }
    let Ok(name) = text(function) else { return 0 };
    named(&name).map(|function| function.calls()).sum()
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_clear_log() {
    sim::lock().record.clear_calls();
    clear_calls();
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_log(buffer: *mut c_char, capacity: usize) -> usize {
    let log = sim::lock().record.text();
    put_text(buffer, capacity, &log)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_misuses() -> u64 {
    sim::lock().record.misuse_count()
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_misuse(index: u64, buffer: *mut c_char, capacity: usize) -> usize {
    let sim = sim::lock();
    let words = usize::try_from(index).ok().and_then(|index| sim.record.misuse_words(index));
    put_text(buffer, capacity, words.unwrap_or_default())
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_stale(kind: c_int) -> u64 {
    let is_meant = |of: Kind| match kind {
        -1 => true,
        0 => of == Kind::Context,
        1 => of == Kind::Stream,
        2 => of == Kind::Event,
        4 => of == Kind::Physical,
        7 => matches!(of, Kind::Graph | Kind::Executable),
        _ => false,
    };
    sim::lock().record.stale_count(is_meant)
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_mismatches() -> u64 {
    sim::lock().record.mismatches()
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_live(kind: c_int) -> u64 {
    let sim = sim::lock();
    let created = sim.streams.values().filter(|stream| matches!(stream.role(), Role::Created(_)));
    match kind {
        0 => sim.contexts.len() as u64,
        1 => created.count() as u64,
        2 => sim.events.len() as u64,
        3 => sim.allocations.len() as u64,
        4 => sim.physical.len() as u64,
        5 => sim.reservations.len() as u64,
        6 => sim.mappings.len() as u64,
        7 => (sim.graphs.len() + sim.executables.len()) as u64,
        8 => sim.captures.len() as u64,
        9 => sim.devices.iter().map(Device::retained).sum(),
        _ => u64::MAX,
    }
}

#[unsafe(no_mangle)]
extern "C" fn simcuda_used(device: c_int) -> u64 {
    sim::lock().device(device).map_or(0, |device| device.used())
}
