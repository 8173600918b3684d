//! Orders in which to place the items.
//!
//! Greedy placement by size is that of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference"
//! (2020), and of TensorFlow Lite. Area (size times life) and duration are among the orders of MiniMalloc (Moffitt, ASPLOS
//! 2023). First fit in the order of the requests is what an allocator does that knows only the past requests. Placing
//! those items first that live where most memory is needed is TelaMalloc's contention (Maas and others, ASPLOS 2023).

use super::packing::{Packer, Packing};
use super::program::{Item, Program};

/// An order of items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heuristic {
    /// The largest first.
    Size,
    /// The largest product of size and life first.
    Area,
    /// The longest life first.
    Duration,
    /// In the order of the requests.
    Start,
    /// First those that live while at least `share` of the peak is live; among equals by size times a power of life.
    Contention { share: f64, power: f64 },
}

/// Those that are always tried.
pub const CLASSIC: [Heuristic; 4] = [Heuristic::Size, Heuristic::Area, Heuristic::Duration, Heuristic::Start];

const SHARES: [f64; 3] = [0.9, 0.99, 0.0];
const POWERS: [f64; 4] = [0.0, 0.05, 0.1, 0.2];

/// The variants by contention, with the weights between size and area that serve training programs best.
pub fn by_contention() -> impl Iterator<Item = Heuristic> {
    SHARES.iter().flat_map(|&share| POWERS.iter().map(move |&power| Heuristic::Contention { share, power }))
}

impl Heuristic {
    /// Its name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Area => "area",
            Self::Duration => "duration",
            Self::Start => "start",
            Self::Contention { .. } => "contention",
        }
    }

    /// Places the items of a program.
    pub fn place(self, packer: &mut Packer<'_>, program: &Program) -> Option<Packing> {
        let items = &program.items;
        packer.place(self.order(program), vec![0; items.len()], 0, u64::MAX)
    }

    fn order(self, program: &Program) -> Vec<u32> {
        let weights: Vec<(bool, f64, u64)> =
            program.items.iter().map(|item| self.weight(program, item)).collect();
        let mut order: Vec<u32> = (0..program.items.len() as u32).collect();
        if self != Self::Start {
            // Stable: among equals the earlier request comes first.
            order.sort_by(|&one, &other| {
                let (one, other) = (weights[one as usize], weights[other as usize]);
                other.0.cmp(&one.0).then(other.1.total_cmp(&one.1)).then(other.2.cmp(&one.2))
            });
        }
        order
    }

    /// Items with a larger key come first: the group, the weight, and a number that breaks ties.
    fn weight(self, program: &Program, item: &Item) -> (bool, f64, u64) {
        let (size, life) = (item.size as f64, item.life());
        match self {
            Self::Size => (false, size, life),
            Self::Area => (false, size * life as f64, item.size),
            Self::Duration => (false, life as f64, item.size),
            Self::Start => (false, 0.0, 0),
            Self::Contention { share, power } => {
                let contended = program.contention(item) as f64 >= program.peak as f64 * share;
                (contended, size * (life as f64).powf(power), life)
            }
        }
    }
}
