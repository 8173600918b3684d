//! Results for a test to read: the log of calls, the misuses, and mismatches found by simulated kernels.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use cuda_sys::CUresult;

use crate::handles::Kind;
use crate::state::function::Function;

/// The most calls that are kept. The counts continue.
const MOST: usize = 1 << 16;

/// How many arguments of a call the log keeps.
const ARGUMENTS: usize = 4;

/// A call of the driver that has begun.
struct Call {
    sequence: u64,
    thread: u64,
    function: &'static Function,
    arguments: [u64; ARGUMENTS],
    count: usize,
    /// None while the call is in progress.
    result: Option<CUresult>,
}

/// All recorded results.
#[derive(Default)]
pub(crate) struct Record {
    calls: VecDeque<Call>,
    begun: u64,
    misuses: Vec<String>,
    misuse_count: u64,
    mismatches: u64,
    races: u64,
    /// How often a handle that is not live was used, by kind.
    stale: BTreeMap<Kind, u64>,
}

/// The most misuses whose messages are kept.
const MOST_WORDS: usize = 1000;

impl Record {
    /// Adds a call and returns its sequence number, which counts from 1.
    pub(crate) fn begin(&mut self, thread: u64, function: &'static Function, words: &[u64]) -> u64 {
        self.begun += 1;
        if self.calls.len() == MOST {
            self.calls.pop_front();
        }
        let mut arguments = [0; ARGUMENTS];
        let count = words.len().min(ARGUMENTS);
        arguments[..count].copy_from_slice(&words[..count]);
        let sequence = self.begun;
        self.calls.push_back(Call { sequence, thread, function, arguments, count, result: None });
        sequence
    }

    /// Returns the call that a thread is in, and its sequence number.
    pub(crate) fn current(&self, thread: u64) -> Option<(&'static str, u64)> {
        let mut open = self.calls.iter().rev().filter(|call| call.thread == thread);
        let call = open.next().filter(|call| call.result.is_none())?;
        Some((call.function.symbol(), call.sequence))
    }

    pub(crate) fn end(&mut self, sequence: u64, result: CUresult) {
        // The newest call is at the end, and numbers rise by one.
        let Some(back) = self.calls.back().and_then(|last| last.sequence.checked_sub(sequence)) else {
            return;
        };
        let index = self.calls.len().checked_sub(1 + back as usize);
        if let Some(call) = index.and_then(|index| self.calls.get_mut(index)) {
            call.result = Some(result);
        }
    }

    /// Forgets the calls. Numbers continue.
    pub(crate) fn clear_calls(&mut self) {
        self.calls.clear();
    }

    /// Returns the log as text, one line a call: sequence, thread, function, arguments, result.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("# call log of the simulated driver (simcuda)\n");
        for call in &self.calls {
            let words: Vec<_> =
                call.arguments[..call.count].iter().map(|word| format!("{word:#x}")).collect();
            let result = call.result.map_or_else(|| "under way".to_owned(), |code| code.to_string());
            let Call { sequence, thread, function, .. } = call;
            let symbol = function.symbol();
            let _ = writeln!(text, "{sequence} thread {thread} {symbol}({}) = {result}", words.join(", "));
        }
        text
    }

    /// Records an action that the driver's manual leaves undefined, or that would crash a real driver.
    pub(crate) fn misuse(&mut self, words: String) {
        self.misuse_count += 1;
        if self.misuses.len() < MOST_WORDS {
            self.misuses.push(words);
        }
    }

    /// Counts a race and returns how many there are.
    pub(crate) fn race(&mut self) -> u64 {
        self.races += 1;
        self.races
    }

    /// Records the use of a handle that is not live.
    pub(crate) fn stale(&mut self, kind: Kind, text: String) {
        *self.stale.entry(kind).or_default() += 1;
        self.misuse(text);
    }

    /// Returns how often this happened with handles of some kinds.
    pub(crate) fn stale_count(&self, of: impl Fn(Kind) -> bool) -> u64 {
        self.stale.iter().filter(|(kind, _)| of(**kind)).map(|(_, count)| count).sum()
    }

    pub(crate) fn misuse_count(&self) -> u64 {
        self.misuse_count
    }

    pub(crate) fn misuse_words(&self, index: usize) -> Option<&str> {
        self.misuses.get(index).map(String::as_str)
    }

    /// Records that a simulated kernel read something other than expected.
    pub(crate) fn mismatch(&mut self, words: String) {
        self.mismatches += 1;
        if self.misuses.len() < MOST_WORDS {
            self.misuses.push(words);
        }
    }

    pub(crate) fn mismatches(&self) -> u64 {
        self.mismatches
    }
}
