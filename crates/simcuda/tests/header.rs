//! `simcuda.h` is what the library has, and what `steer` says.

mod common;
use common::*;

const HEADER: &str = include_str!("../simcuda.h");

/// The enumerators with their values.
fn enumerators() -> Vec<(&'static str, i32)> {
    let lines = HEADER.lines().map(str::trim).filter(|line| line.starts_with("SIMCUDA_"));
    let pairs = lines.filter_map(|line| {
        let (name, rest) = line.split_once(" = ")?;
        let digits: &str = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        Some((name, digits.parse().ok()?))
    });
    pairs.collect()
}

#[test]
fn the_constants_agree() {
    macro_rules! constants {
        ($($name:ident)*) => {
            vec![$((concat!("SIMCUDA_", stringify!($name)), steer::$name)),*]
        };
    }
    let mut ours = constants! {
        DRIVER_VERSION POISON REUSE_ADDRESSES SYNCHRONIZE_WAITS FREE_SYNCHRONIZES HOLD_NEW RECYCLE_HANDLES
        GRANULARITY VMM POOLS PEERS RESET_ENDS EVENTS_LIE STALE_ABORTS DEADLOCK_MILLISECONDS CAPTURED_STREAMS_HIDE GRAPH_ORDER
        STREAM_QUERIES_UNSAFE HOST_FUNCTIONS_CALL RACES
        CONTEXTS STREAMS EVENTS ALLOCATIONS PHYSICAL RESERVATIONS MAPPINGS GRAPHS CAPTURES RETAINS
    };
    let mut theirs = enumerators();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn the_defaults_are_those_of_the_header() {
    let machine = machine(1);
    let values = (0..=steer::RACES).map(|option| machine.steer.get(option)).collect::<Vec<_>>();
    assert_eq!(values, [13050, 0, 1, 0, 1, 0, 0, 2 << 20, 1, 1, 1, 0, 0, 0, 10_000, 0, 0, 1, 0, 0]);
    assert_eq!(machine.steer.set(steer::RACES + 1, 1), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(machine.steer.set(steer::GRANULARITY, 5000), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(machine.steer.live(steer::RETAINS + 1), u64::MAX);
}

#[test]
fn the_functions_are_those_of_the_library() {
    // Loading has found every one that steer has.
    let steer = Steer::load().unwrap();
    let declared = HEADER.lines().filter(|line| line.contains("(") && line.ends_with(");"));
    let mut declared: Vec<&str> = declared
        .filter_map(|line| Some(line.split_once("simcuda_")?.1.split_once('(')?.0))
        .filter(|name| !name.is_empty())
        .collect();
    declared.sort_unstable();
    let mut known = Steer::NAMES.to_vec();
    known.sort_unstable();
    assert_eq!(declared, known);
    assert_eq!(steer.get(-1), -1);
}
