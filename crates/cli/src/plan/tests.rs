//! Plans of small and random programs.

use super::packing::tests::is_valid;
use super::*;
use bfc_readers::trace::Trace;

/// A program of steps whose allocations overlap in time, after some that stay.
fn random_program(seed: u64) -> Program {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = String::new();
    let mut id = 0;
    let mut alloc = |text: &mut String, bytes: u64| {
        id += 1;
        *text += &format!("+ {id} {bytes} 0\n");
        id
    };
    for _ in 0..random(8) {
        let bytes = 1 + random(100_000);
        alloc(&mut text, bytes);
    }
    let sizes: Vec<u64> = (0..4 + random(20)).map(|_| 1 + random(10_000)).collect();
    let lives: Vec<u64> = sizes.iter().map(|_| 1 + random(2 * sizes.len() as u64)).collect();
    let mut live: Vec<(u64, u64)> = Vec::new();
    let steps = 1 + random(5);
    for now in 0..sizes.len() as u64 * steps {
        let at = (now % sizes.len() as u64) as usize;
        live.retain(|&(id, until)| {
            let stays = until > now;
            if !stays {
                text += &format!("- {id} 0\n");
            }
            stays
        });
        live.push((alloc(&mut text, sizes[at]), now + lives[at]));
    }
    let trace = Trace::from_reader("random", text.as_bytes()).expect("well-formed");
    Program::of(&trace, 256).expect("plannable")
}

#[test]
fn no_two_allocations_that_live_at_once_overlap() {
    let (mut repeating, mut improved) = (0, 0);
    for seed in 0..150 {
        let program = random_program(seed);
        repeating += usize::from(program.repeated_from < program.requests.len());
        let mut packer = Packer::new(&program);
        for heuristic in CLASSIC.into_iter().chain(by_contention()) {
            let packing = heuristic.place(&mut packer, &program).expect("fits");
            assert!(is_valid(&program, &packing), "{seed} {heuristic:?}");
            assert!(packing.bytes >= program.peak);
        }
        let (packing, heuristics, search) = best(&program, 30, None, &ProgressBar::hidden()).expect("fits");
        assert!(is_valid(&program, &packing), "{seed}");
        let least = heuristics.values().copied().min();
        assert!(least >= Some(packing.bytes) && packing.bytes == search.bytes && search.tried <= 30);
        improved += usize::from(least > Some(packing.bytes));
        let again = best(&program, 30, None, &ProgressBar::hidden()).expect("fits").0;
        assert_eq!(packing.offsets, again.offsets, "the same trace gives the same plan");
    }
    println!("{repeating} repeat, the search improves {improved}");
    assert!(repeating > 50 && improved > 5);
}
