//! The log messages about damaged guards, with the allocations next to them.

use super::layout::{Neighbour, ROOM, Side};
use super::work::{Damage, Hindrance};
use crate::error::{ErrorKind, to_text};
use crate::log::{self, Level};
use crate::pool::pool::Pool;
use crate::report::Counted;
use bfc_core::ids::ChunkId;
use bfc_hostmem::HostMemoryExhausted;
use std::fmt::{self, Write};

/// A damaged guard of a chunk in use.
pub(super) struct Violation {
    pub(super) addr: u64,
    pub(super) side: Side,
    pub(super) damage: Damage,
    pub(super) seen: &'static str,
}

/// The messages to log once the lock is open. If very many guards are damaged, only the first are logged one by one,
/// and the rest are counted.
#[derive(Default)]
pub(in crate::pool) struct Messages {
    texts: Vec<(Level, String)>,
    more: u64,
}

impl Messages {
    const MOST: usize = 16;

    fn add(&mut self, level: Level, text: Result<String, HostMemoryExhausted>) {
        if !log::is_wanted(level) {
            return;
        }
        match text {
            Ok(text) if self.texts.len() < Self::MOST && self.texts.try_reserve(1).is_ok() => {
                self.texts.push((level, text));
            }
            _ => self.more += 1,
        }
    }

    /// Counts a damaged guard and adds its message.
    #[inline(never)]
    pub(super) fn add_violation(&mut self, pool: &mut Pool, violation: &Violation) {
        let text = to_text(format_args!("{}", ViolationText { pool, violation }));
        let copy = text.as_ref().ok().and_then(|text| to_text(format_args!("{text}")).ok());
        let guards = pool.guards();
        guards.violations += 1;
        if let Some(copy) = copy {
            guards.last = copy;
        }
        self.add(Level::Error, text);
    }

    /// Adds a message about guards that could not be written or checked. Only the first failure is a warning, because
    /// such failures usually persist.
    #[inline(never)]
    pub(super) fn add_hindrance(&mut self, pool: &mut Pool, hindrance: &Hindrance, what: &str) {
        let (device, name, why) = (pool.device, &pool.name, hindrance.why());
        let text = to_text(format_args!("{name}, device {device}: guards {what}: {why}"));
        // The driver is shut down at the end of the process, which is not worth a warning.
        let is_failure = hindrance.error.is_some_and(|error| error != ErrorKind::ShuttingDown);
        let aloud = is_failure && !std::mem::replace(&mut pool.guards().warned, true);
        self.add(if aloud { Level::Warn } else { Level::Debug }, text);
    }

    /// Logs the messages. The allocator must be unlocked, because the log's callback may call anything.
    #[inline(never)]
    pub(in crate::pool) fn emit(self) {
        for (level, text) in &self.texts {
            log::emit_text(*level, text);
        }
        if self.more != 0 {
            log::emit(Level::Error, format_args!("and {}", Counted(self.more, "more damaged guard")));
        }
    }
}

struct ViolationText<'a> {
    pool: &'a Pool,
    violation: &'a Violation,
}

impl fmt::Display for ViolationText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.pool, self.violation)
    }
}

fn write(out: &mut dyn Write, pool: &Pool, violation: &Violation) -> fmt::Result {
    let Violation { addr, side, damage, seen } = violation;
    write!(out, "{}, device {}: a write ", pool.name, pool.device)?;
    let Some(id) = pool.arena.chunk_in_use(*addr) else { return write!(out, "near {addr:#x}") };
    match side {
        Side::Behind => {
            write!(out, "after the end of {}", Holder(pool, id))?;
            let next = pool.behind(id).and_then(|next| pool.arena.chunk_in_use(next));
            // Damage this close to the next allocation may have come from there.
            if let Some(next) = next.filter(|_| damage.first + ROOM >= damage.of) {
                write!(out, ", or before the start of {}", Holder(pool, next))?;
            }
        }
        Side::Front => {
            write!(out, "before the start of {}", Holder(pool, id))?;
            match pool.in_front(id) {
                Neighbour::InUse(prev) => {
                    if let Some(prev) = pool.arena.chunk_in_use(prev) {
                        write!(out, ", or after the end of {}", Holder(pool, prev))?;
                    }
                }
                _ => out.write_str(", or a late write to memory that was freed there")?,
            }
        }
    }
    let Damage { first, count, of, .. } = *damage;
    let are = if count == 1 { "is" } else { "are" };
    write!(out, ": {count} of {of} guard bytes {are} damaged, ")?;
    match side {
        Side::Behind => write!(out, "the first {first} bytes after its end:")?,
        Side::Front => write!(out, "the first {} bytes before its start:", of - first)?,
    }
    damage.bytes[..damage.shown].iter().try_for_each(|byte| write!(out, " {byte:02x}"))?;
    write!(out, " ({seen})")
}

/// The description of an allocation.
struct Holder<'a>(&'a Pool, ChunkId);

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder(pool, id) = *self;
        let (chunks, cold) = (pool.arena.chunks(), pool.arena.chunks().cold(id));
        let (addr, size) = (chunks.addr(id), chunks.size(id));
        write!(
            f,
            "{addr:#x} (allocation {}, {} bytes in a chunk of {size}",
            cold.allocation_id, cold.requested
        )?;
        let tag = chunks.tag(id);
        if let Some(name) = pool.arena.names().name(tag.name) {
            write!(f, ", operation \"{name}\", step {}", tag.step)?;
        }
        f.write_char(')')
    }
}
