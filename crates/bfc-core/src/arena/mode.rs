//! What an arena is created as: by what freed memory becomes reusable, and by what a request gets its place. The third
//! choice, regions or the granules of one range, is that of [`crate::vmm`].

use crate::lifetimes::Lifetimes;
use crate::plan::PlacementPlan;
use alloc::boxed::Box;

/// What decides when freed memory may be reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// The order of streams. As long as there is one stream, a free chunk is reusable at once.
    Streams,
    /// The stamps of the frees, for the requests that ask for them.
    Stamps,
    /// The stamps of the frees. No chunk is allocated before its stamp is safe.
    Quarantine,
}

impl Reuse {
    /// Returns whether frees get stamps, instead of an order.
    #[inline(always)]
    pub fn has_stamps(self) -> bool {
        self != Reuse::Streams
    }
}

/// What chooses the place of a request, as long as one stream uses the arena.
pub enum Placement {
    /// The smallest chunk that fits; among equal ones the lowest address.
    BestFit,
    /// The recorded places of a program.
    Plan(Box<PlacementPlan>),
    /// The best fit, of which short-lived sizes get the upper end. Which sizes these are is learnt.
    TwoEnds(Box<Lifetimes>),
}

impl Placement {
    /// Returns the plan that is followed.
    pub fn plan(&self) -> Option<&PlacementPlan> {
        if let Placement::Plan(plan) = self { Some(plan) } else { None }
    }

    pub(super) fn plan_mut(&mut self) -> Option<&mut PlacementPlan> {
        if let Placement::Plan(plan) = self { Some(plan) } else { None }
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        match self {
            Placement::BestFit => 0,
            Placement::Plan(plan) => plan.metadata_bytes(),
            Placement::TwoEnds(_) => size_of::<Lifetimes>() as u64,
        }
    }
}
