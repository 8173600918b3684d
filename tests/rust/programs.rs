//! The random programs that pools and the model run.

use proptest::prelude::*;
use proptest::sample::select;

pub(crate) const STREAMS: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) settings: Settings,
    /// Each has streams of its own, which end with it.
    pub(crate) phases: Vec<Vec<Step>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) limit: u64,
    pub(crate) initial_region: u64,
    pub(crate) collects: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Alloc { request: Wanted, stream: Option<usize> },
    AllocZeroed { bytes: usize },
    End { which: usize, how: How },
    RecordUse { which: usize, stream: usize },
    Synchronized { stream: usize },
    SynchronizedUnordered,
    Trim { keep: u64 },
    SetMemoryLimit { bytes: u64 },
    ResetStats,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) bytes: usize,
    pub(crate) alignment: usize,
    pub(crate) in_512: bool,
    pub(crate) no_growth: bool,
    pub(crate) short_lived: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Drop,
    Free,
    FreeOn(usize),
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        8 => 1..5000_usize,
        4 => 1..(256_usize << 10),
        2 => 1..(4_usize << 20),
        1 => select(vec![usize::MAX, usize::MAX / 2, 1 << 46]),
    ]
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let alignment = prop_oneof![
        8 => Just(0),
        4 => (0..21_u32).prop_map(|power| 1 << power),
        1 => select(vec![3, 1000, usize::MAX]),
        1 => Just(1 << 40),
    ];
    let rarely = || prop::bool::weighted(0.2);
    (bytes(), alignment, rarely(), rarely(), rarely()).prop_map(
        |(bytes, alignment, in_512, no_growth, short_lived)| Wanted {
            bytes,
            alignment,
            in_512,
            no_growth,
            short_lived,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let how = prop_oneof![3 => Just(How::Drop), 2 => Just(How::Free), 1 => stream().prop_map(How::FreeOn)];
    prop_oneof![
        12 => (wanted(), prop::option::of(stream())).prop_map(|(request, stream)| Step::Alloc { request, stream }),
        3 => bytes().prop_map(|bytes| Step::AllocZeroed { bytes }),
        10 => (any::<usize>(), how).prop_map(|(which, how)| Step::End { which, how }),
        2 => (any::<usize>(), stream()).prop_map(|(which, stream)| Step::RecordUse { which, stream }),
        2 => stream().prop_map(|stream| Step::Synchronized { stream }),
        1 => Just(Step::SynchronizedUnordered),
        1 => select(vec![0, 1 << 18, 1 << 20]).prop_map(|keep| Step::Trim { keep }),
        1 => (1..5_u64).prop_map(|granules| Step::SetMemoryLimit { bytes: granules << 21 }),
        1 => Just(Step::ResetStats),
    ]
}

pub(crate) fn program() -> impl Strategy<Value = Program> {
    let settings = (1..5_u64, select(vec![0, 1 << 16, 1 << 20]), any::<bool>()).prop_map(
        |(granules, initial_region, collects)| Settings { limit: granules << 21, initial_region, collects },
    );
    let phases = prop::collection::vec(prop::collection::vec(step(), 1..40), 1..4);
    (settings, phases).prop_map(|(settings, phases)| Program { settings, phases })
}
