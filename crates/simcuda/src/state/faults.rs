//! Failures and latencies requested by a test.

use std::time::Duration;

use cuda_sys::CUresult;

use crate::state::function::Function;

/// The requested faults.
#[derive(Default)]
pub(crate) struct Faults {
    failures: Vec<Failure>,
    latencies: Vec<(Option<String>, Duration)>,
    /// How many failures so far were requested.
    struck: u64,
}

/// A failure of the n-th call from now.
struct Failure {
    function: Option<String>,
    left: u64,
    code: CUresult,
}

impl Faults {
    /// Requests that the `nth` call from now of a function, or of any, fails. The first is 1.
    pub(crate) fn order(&mut self, function: Option<String>, nth: u64, code: CUresult) {
        self.failures.push(Failure { function, left: nth, code });
    }

    pub(crate) fn delay(&mut self, function: Option<String>, delay: Duration) {
        self.latencies.retain(|(name, _)| *name != function);
        if !delay.is_zero() {
            self.latencies.push((function, delay));
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns how many requested failures have happened.
    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }

    /// Returns the failure of this call, if it is to fail.
    pub(crate) fn strikes(&mut self, function: &Function) -> Option<CUresult> {
        let mut code = None;
        for failure in &mut self.failures {
            if is(failure.function.as_deref(), function) {
                failure.left -= 1;
                if failure.left == 0 {
                    code = Some(failure.code);
                }
            }
        }
        self.failures.retain(|failure| failure.left > 0);
        self.struck += u64::from(code.is_some());
        code
    }

    /// Returns the minimum duration of this call.
    pub(crate) fn delay_of(&self, function: &Function) -> Duration {
        let of = |(name, delay): &(Option<String>, Duration)| is(name.as_deref(), function).then_some(*delay);
        self.latencies.iter().filter_map(of).sum()
    }
}

/// Returns whether a name, or none at all, matches this function.
fn is(name: Option<&str>, function: &Function) -> bool {
    name.is_none_or(|name| function.is_named(name))
}
