//! Performing device work that is ready.

use cuda_sys::{
    CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_NOR, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUdevice,
};

use crate::sim::Sim;
use crate::state::context::Agent;
use crate::state::memory::{Allocation, Living, Origin};
use crate::state::stream::Stream;
use crate::state::work::{Source, Work};
use crate::system;

impl Sim {
    /// Performs work that needs no function of the program.
    pub(crate) fn perform(&mut self, context: u64, device: CUdevice, work: &Work) {
        let is_sound = self.contexts.get(&context).is_some_and(|context| context.sticky().is_none());
        match work {
            Work::Record { event, unique } => self.reach(*event, *unique),
            Work::Alloc { at, bytes, unique, device, pool } => {
                let living = Living { bytes: *bytes, unique: *unique, device: *device, pool: *pool };
                self.start_living(*at, living);
            }
            Work::Free { at, unique } => {
                self.forget_ending(*at, *unique);
                let plain = |there: &Allocation| there.unique == *unique && there.origin == Origin::Plain;
                if !self.stop_living(*at, *unique) && self.allocations.get(at).is_some_and(plain) {
                    self.release(*at);
                }
            }
            Work::Receive { channel } => {
                if let Some(messages) = self.messages.get_mut(channel) {
                    *messages = messages.saturating_sub(1);
                }
            }
            // A context with a sticky error does nothing any more.
            _ if !is_sound => (),
            Work::Send { channel } => *self.messages.entry(*channel).or_default() += 1,
            work => {
                if let Err(why) = self.touch(Agent { context, device }, work) {
                    self.record.misuse(format!("illegal address: {why}"));
                    if let Some(context) = self.contexts.get_mut(&context) {
                        context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
                    }
                }
            }
        }
    }

    /// Returns whether what the first item of a stream waits for by itself is there: a message, or a value. True for
    /// other work, and where the value is not accessible, so that this is found.
    pub(crate) fn is_met(&self, stream: &Stream, work: &Work) -> bool {
        match *work {
            Work::Receive { channel } => self.messages.get(&channel).is_some_and(|count| *count > 0),
            Work::WaitValue { at, bytes, value, condition } => {
                let agent = Agent { context: self.root(stream.context()), device: stream.device() };
                self.may_access(agent, at, bytes, false, false).is_err() || holds(at, bytes, value, condition)
            }
            _ => true,
        }
    }

    fn reach(&mut self, event: u64, unique: u64) {
        // The event may have been destroyed since, or recorded elsewhere later.
        if let Some(event) = self.events.get_mut(&event) {
            event.reach(unique, system::now());
        }
    }

    /// Performs work that accesses memory. An error describes the problem, and then no memory was accessed.
    fn touch(&mut self, agent: Agent, work: &Work) -> Result<(), String> {
        match work {
            Work::Fill { at, bytes, pattern } => {
                self.may_access(agent, *at, *bytes, true, false)?;
                fill(*at, *bytes, *pattern);
            }
            Work::Expect { at, bytes, pattern } => {
                self.may_access(agent, *at, *bytes, false, false)?;
                if let Some((index, found)) = difference(*at, *bytes, *pattern) {
                    let bytes = format!("{at:#x} and {bytes} bytes");
                    self.record.mismatch(format!(
                        "a kernel that reads {bytes} found {found:#04x} at byte {index} instead of {pattern:#x}"
                    ));
                }
            }
            Work::Copy { to, from, bytes, named } => {
                self.may_copy(agent, named.map(|[to, _]| to), *to, *bytes, true)?;
                match from {
                    Source::Address(from) => {
                        self.may_copy(agent, named.map(|[_, from]| from), *from, *bytes, false)?;
                        copy(*to, *from, *bytes);
                    }
                    Source::Staged(staged) => copy(*to, staged.as_ptr().addr() as u64, *bytes),
                }
            }
            Work::Set { at, count, width, value } => {
                self.may_access(agent, *at, count * width, true, true)?;
                set(*at, *count, *width, *value);
            }
            Work::Words { at, words, value } => {
                self.may_access(agent, *at, words * 4, true, false)?;
                set(*at, *words, 4, *value);
            }
            Work::Compare { at, words, value, wrong } => {
                self.may_access(agent, *at, words * 4, false, false)?;
                self.may_access(agent, *wrong, 4, true, false)?;
                let found = readable(*at, words * 4).chunks_exact(4);
                let others = found.filter(|word| **word != value.to_le_bytes()).count() as u32;
                let sum = range(*wrong, 4);
                let before = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
                sum.copy_from_slice(&before.wrapping_add(others).to_le_bytes());
            }
            Work::WriteValue { at, bytes, value } => {
                self.may_access(agent, *at, *bytes, true, false)?;
                range(*at, *bytes).copy_from_slice(&value.to_le_bytes()[..*bytes as usize]);
            }
            Work::WaitValue { at, bytes, .. } => self.may_access(agent, *at, *bytes, false, false)?,
            Work::All(works) => {
                for work in works {
                    self.touch(agent, work)?;
                }
            }
            Work::CopyWords { to, from, words } => {
                self.may_access(agent, *to, words * 4, true, false)?;
                self.may_access(agent, *from, words * 4, false, false)?;
                copy(*to, *from, words * 4);
            }
            _ => (),
        }
        Ok(())
    }
}

/// Returns a range of simulated device memory. It was just found accessible, and stays so while the lock is held.
fn range<'a>(at: u64, bytes: u64) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the range is mapped and writable. Concurrent accesses by the program are the same as with a device's
    // memory.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes as usize) }
}

/// Returns whether the value at an address satisfies a condition, as it is documented for `CUstreamWaitValue_flags`.
fn holds(at: u64, bytes: u64, value: u64, condition: u32) -> bool {
    let mut word = [0; 8];
    word[..bytes as usize].copy_from_slice(readable(at, bytes));
    let found = u64::from_le_bytes(word);
    // The sign of a smaller value is moved to the top.
    let unused = u64::BITS - 8 * bytes as u32;
    match condition {
        CU_STREAM_WAIT_VALUE_EQ => found == value,
        CU_STREAM_WAIT_VALUE_AND => found & value != 0,
        CU_STREAM_WAIT_VALUE_NOR => !(found | value) << unused != 0,
        _ => ((found.wrapping_sub(value) << unused) as i64) >= 0,
    }
}

fn readable<'a>(at: u64, bytes: u64) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the range is mapped and readable.
    unsafe { std::slice::from_raw_parts(at as *const u8, bytes as usize) }
}

fn fill(at: u64, bytes: u64, pattern: u64) {
    /// The pattern is written by words up to this size, and then copied.
    const BLOCK: usize = 4096;
    let range = range(at, bytes);
    let (first, rest) = range.split_at_mut(range.len().min(BLOCK));
    for part in first.chunks_mut(8) {
        part.copy_from_slice(&pattern.to_le_bytes()[..part.len()]);
    }
    for part in rest.chunks_mut(BLOCK) {
        part.copy_from_slice(&first[..part.len()]);
    }
}

/// Finds the first byte that differs from the pattern.
fn difference(at: u64, bytes: u64, pattern: u64) -> Option<(usize, u8)> {
    let (range, expected) = (readable(at, bytes), pattern.to_le_bytes());
    let begin = range.len().min(8);
    // The whole range is the pattern if the first word is, and every byte equals the byte one word before: one fast
    // comparison.
    if range[..begin] == expected[..begin] && range[begin..] == range[..range.len() - begin] {
        return None;
    }
    let place = range.iter().enumerate().find(|(index, found)| **found != expected[index % 8]);
    place.map(|(index, found)| (index, *found))
}

fn copy(to: u64, from: u64, bytes: u64) {
    // SAFETY: both ranges were checked as far as the driver can. The caller guarantees the host's.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
}

/// Fills elements of 1, 2 or 4 bytes. Each divides 8.
fn set(at: u64, count: u64, width: u64, value: u32) {
    let mut pattern = [0; 8];
    for element in pattern.chunks_mut(width as usize) {
        element.copy_from_slice(&value.to_le_bytes()[..width as usize]);
    }
    fill(at, count * width, u64::from_le_bytes(pattern));
}
