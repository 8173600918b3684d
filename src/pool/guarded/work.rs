//! The work done with the lock open: waiting for the device, and writing and inspecting guards.

use super::layout::{GUARD, Range, Side};
use crate::backend::Backend;
use crate::backend::memory::Memory;
use crate::backend::order::Stream;
use crate::error::{ErrorKind, LastError, fail, keeping_last_error, to_text};
use crate::pool::captures::Permission;
use crate::pool::guard_state::buffer;
use crate::pool::order::is_one_captured;
use bfc_hostmem::HostMemoryExhausted;

/// A range, and the byte to fill it with.
#[derive(Clone, Copy)]
pub(super) struct Fill {
    pub(super) range: Range,
    pub(super) with: u8,
}

/// The number of bytes that a message about damage shows.
pub(super) const SHOWN: usize = 16;

/// The damage of a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Damage {
    /// The offset of the first damaged byte from the guard's start.
    pub(super) first: u64,
    /// The number of damaged bytes.
    pub(super) count: u64,
    /// The length of the guard.
    pub(super) of: u64,
    /// The guard's bytes from the first damaged one on.
    pub(super) bytes: [u8; SHOWN],
    pub(super) shown: usize,
}

/// What a free found, and whether it did its work.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) behind: Option<Damage>,
    pub(super) front: Option<Damage>,
    pub(super) checked: bool,
    /// Whether everything was written.
    pub(super) written: bool,
}

/// A guard that `bfc_check` inspects.
pub(super) struct Inspection {
    pub(super) addr: u64,
    pub(super) side: Side,
    pub(super) range: Range,
    pub(super) damage: Option<Damage>,
}

impl Inspection {
    pub(super) fn carry_out(&mut self, memory: &dyn Memory, buffer: &mut [u8]) -> Result<(), ErrorKind> {
        self.damage = inspect(memory, self.range, buffer)?;
        match self.damage {
            Some(_) => fill(memory, &[Fill { range: self.range, with: GUARD }]),
            None => Ok(()),
        }
    }
}

/// The reason why the work was not done, or not all of it.
pub(super) struct Hindrance {
    /// `None` if a stream is captured, or a capture is announced, so that nothing may wait for the device. Nothing was
    /// written in that case.
    pub(super) error: Option<ErrorKind>,
    /// The error's message. `None` if there was no host memory for it.
    message: Option<String>,
}

impl Hindrance {
    pub(super) fn why(&self) -> &str {
        match self.error {
            None => "a stream is captured, or about to be",
            Some(error) => self.message.as_deref().unwrap_or(error.text()),
        }
    }
}

/// The streams to query for captures before waiting for the device. `None` if nothing may wait for it.
pub(super) type ToAsk = Result<Option<Vec<Stream>>, HostMemoryExhausted>;

/// Runs `work` once the device is idle. A failure does not become the thread's last error; the debug mode reports it.
pub(super) fn run_when_idle(
    backend: &dyn Backend,
    streams: ToAsk,
    work: impl FnOnce(&dyn Memory) -> Result<(), ErrorKind>,
) -> Option<Hindrance> {
    keeping_last_error(|| match wait_and_run(backend, streams, work) {
        Ok(true) => None,
        Ok(false) => Some(Hindrance { error: None, message: None }),
        Err(error) => {
            Some(Hindrance { error: Some(error), message: to_text(format_args!("{LastError}")).ok() })
        }
    })
}

fn wait_and_run(
    backend: &dyn Backend,
    streams: ToAsk,
    work: impl FnOnce(&dyn Memory) -> Result<(), ErrorKind>,
) -> Result<bool, ErrorKind> {
    let Some(memory) = backend.memory() else {
        return Err(fail!(ErrorKind::Unsupported, "the backend has no memory to look at"));
    };
    if let Some(device) = backend.order() {
        let Some(streams) = streams? else { return Ok(false) };
        let Some(permission) = Permission::of(backend) else { return Ok(false) };
        let is_idle =
            device.run(|order| Ok(!is_one_captured(order, &streams)? && order.synchronize().map(|()| true)?));
        drop(permission);
        if !is_idle? {
            return Ok(false);
        }
    }
    // A new permission: the wait for the device may have taken longer than an announcement waits for the first one.
    let Some(_permission) = Permission::of(backend) else { return Ok(false) };
    work(memory)?;
    Ok(true)
}

/// Fills ranges one after the other.
pub(super) fn fill(memory: &dyn Memory, fills: &[Fill]) -> Result<(), ErrorKind> {
    let mut fills = fills.iter().filter(|fill| fill.range.bytes != 0);
    fills.try_for_each(|fill| memory.fill(fill.range.at, fill.range.bytes, fill.with))
}

/// Replaces the buffer if it is missing. In a forked child, a thread that does not exist there may have taken it.
pub(super) fn refill(taken: &mut Vec<u8>) -> Result<(), ErrorKind> {
    if taken.is_empty() {
        *taken = buffer()?;
    }
    Ok(())
}

/// Returns the damage of a guard, if there is any.
pub(super) fn inspect(
    memory: &dyn Memory,
    guard: Range,
    buffer: &mut [u8],
) -> Result<Option<Damage>, ErrorKind> {
    let mut damage: Option<Damage> = None;
    let mut offset = 0;
    while offset < guard.bytes {
        let length = (guard.bytes - offset).min(buffer.len() as u64);
        let piece = &mut buffer[..length as usize];
        memory.read(guard.at + offset, piece)?;
        note(&mut damage, guard.bytes, offset, piece);
        offset += length;
    }
    Ok(damage)
}

fn note(damage: &mut Option<Damage>, of: u64, offset: u64, piece: &[u8]) {
    let wrong = piece.iter().filter(|&&byte| byte != GUARD).count() as u64;
    let start = match (damage.as_ref(), piece.iter().position(|&byte| byte != GUARD)) {
        (Some(_), _) => 0,
        (None, Some(first)) => first,
        (None, None) => return,
    };
    let found = damage.get_or_insert(Damage {
        first: offset + start as u64,
        count: 0,
        of,
        bytes: [0; SHOWN],
        shown: 0,
    });
    found.count += wrong;
    let shown = (SHOWN - found.shown).min(piece.len() - start);
    found.bytes[found.shown..found.shown + shown].copy_from_slice(&piece[start..start + shown]);
    found.shown += shown;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::ProcessMemory;

    fn damage_of(bytes: &[u8], piece: usize) -> Option<Damage> {
        let range = Range { at: bytes.as_ptr() as u64, bytes: bytes.len() as u64 };
        inspect(&ProcessMemory, range, &mut vec![0; piece]).unwrap()
    }

    #[test]
    fn damage_is_found_whatever_the_pieces() {
        let mut bytes = vec![GUARD; 300];
        assert_eq!(damage_of(&bytes, 64), None);
        (bytes[63], bytes[64], bytes[299]) = (1, 2, 3);
        let mut shown = [GUARD; SHOWN];
        (shown[0], shown[1]) = (1, 2);
        let expected = Damage { first: 63, count: 3, of: 300, bytes: shown, shown: SHOWN };
        for piece in [1, 7, 64, 100, 299, 300, 1000] {
            assert_eq!(damage_of(&bytes, piece), Some(expected), "{piece}");
        }
        bytes[63..65].fill(GUARD);
        let last = damage_of(&bytes, 128).unwrap();
        assert_eq!((last.first, last.count, last.shown, last.bytes[0]), (299, 1, 1, 3));
    }
}
