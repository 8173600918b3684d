//! What a test reads afterwards: the log of calls, the misuses, and what simulated kernels found wrong.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use cuda_sys::CUresult;

use crate::handles::Kind;
use crate::state::function::Function;

/// No more calls than that are remembered; the counts go on.
const MOST: usize = 1 << 16;

/// Arguments that the log keeps of a call.
const ARGUMENTS: usize = 4;

/// A call of the driver that has begun.
struct Call {
    sequence: u64,
    thread: u64,
    function: &'static Function,
    arguments: [u64; ARGUMENTS],
    count: usize,
    /// None while it is under way.
    result: Option<CUresult>,
}

/// Everything there is to read.
#[derive(Default)]
pub(crate) struct Record {
    calls: VecDeque<Call>,
    begun: u64,
    misuses: Vec<String>,
    misuse_count: u64,
    mismatches: u64,
    /// The kind of each use of a handle that is not live.
    stale: BTreeMap<Kind, u64>,
}

/// No more misuses than that are kept in words.
const MOST_WORDS: usize = 1000;

impl Record {
    /// Enters a call and gives its sequence number, which counts from 1.
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

    pub(crate) fn end(&mut self, sequence: u64, result: CUresult) {
        // The newest is at the end, and numbers rise by one.
        let Some(back) = self.calls.back().and_then(|last| last.sequence.checked_sub(sequence)) else {
            return;
        };
        let index = self.calls.len().checked_sub(1 + back as usize);
        if let Some(call) = index.and_then(|index| self.calls.get_mut(index)) {
            call.result = Some(result);
        }
    }

    /// Forgets the calls. Numbers go on.
    pub(crate) fn clear_calls(&mut self) {
        self.calls.clear();
    }

    /// The log as text, a line a call: sequence, thread, function, arguments, result.
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

    /// The program did what the driver's manual leaves undefined, or what would crash a real driver.
    pub(crate) fn misuse(&mut self, words: String) {
        self.misuse_count += 1;
        if self.misuses.len() < MOST_WORDS {
            self.misuses.push(words);
        }
    }

    /// A handle was used that is not live.
    pub(crate) fn stale(&mut self, kind: Kind, text: String) {
        *self.stale.entry(kind).or_default() += 1;
        self.misuse(text);
    }

    /// How often that happened with handles of some kinds.
    pub(crate) fn stale_count(&self, of: impl Fn(Kind) -> bool) -> u64 {
        self.stale.iter().filter(|(kind, _)| of(**kind)).map(|(_, count)| count).sum()
    }

    pub(crate) fn misuse_count(&self) -> u64 {
        self.misuse_count
    }

    pub(crate) fn misuse_words(&self, index: usize) -> Option<&str> {
        self.misuses.get(index).map(String::as_str)
    }

    /// A simulated kernel read something else than it was told to expect.
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
