//! Sums over the chunks, by bin and by operation.

use bfc_core::arena::View;
use bfc_core::sort::sort_by_key;
use bfc_core::units::{NUM_BINS, bin_of};
use bfc_hostmem::HostMemoryExhausted;

/// One bin in the form of TensorFlow's `DumpMemoryLog`. Chunks in use count in the bin of their own size.
#[derive(Clone, Copy, Default)]
pub(super) struct BinTally {
    pub(super) chunks: u64,
    pub(super) chunks_in_use: u64,
    pub(super) bytes: u64,
    pub(super) bytes_in_use: u64,
    pub(super) bytes_requested: u64,
}

/// Computes the bins in an array of the caller, so that only one such array is on the stack.
pub(super) fn bins(view: &View<'_>, bins: &mut [BinTally; NUM_BINS]) {
    for id in view.chunks.ids().filter(|&id| !view.is_unmapped(id)) {
        let size = view.chunks.size(id);
        let bin = &mut bins[bin_of(size)];
        bin.chunks += 1;
        bin.bytes += size;
        if view.chunks.in_use(id) {
            bin.chunks_in_use += 1;
            bin.bytes_in_use += size;
            bin.bytes_requested += view.chunks.cold(id).requested;
        }
    }
}

/// The memory of one operation.
#[derive(Clone, Copy, Default)]
pub(super) struct Holder {
    /// The number of the operation's name in the arena. 0 stands for all memory without a name.
    pub(super) name: u32,
    pub(super) bytes: u64,
    pub(super) chunks: u64,
    pub(super) last_step: u64,
}

/// Returns the operations by the bytes they hold, the largest first.
pub(super) fn holders(view: &View<'_>) -> Result<Vec<Holder>, HostMemoryExhausted> {
    let count = view.names.len() + 1;
    let mut holders = Vec::new();
    holders.try_reserve_exact(count)?;
    holders.extend((0..count).map(|name| Holder { name: name as u32, ..Holder::default() }));
    for id in view.chunks.ids().filter(|&id| view.chunks.in_use(id)) {
        let tag = view.chunks.tag(id);
        let holder = &mut holders[tag.name as usize];
        holder.bytes += view.chunks.size(id);
        holder.chunks += 1;
        holder.last_step = holder.last_step.max(tag.step);
    }
    holders.retain(|holder| holder.chunks != 0);
    sort_by_key(&mut holders, |holder| (std::cmp::Reverse(holder.bytes), holder.name));
    Ok(holders)
}

/// Visits the operations by the bytes they hold, the largest first, with the number of their chunks and their last step,
/// until `visit` returns false. Memory without a name has an empty one.
pub(crate) fn each_holder(
    view: &View<'_>,
    mut visit: impl FnMut(&str, u64, u64, u64) -> bool,
) -> Result<(), HostMemoryExhausted> {
    for Holder { name, bytes, chunks, last_step } in holders(view)? {
        if !visit(view.names.name(name).unwrap_or(""), bytes, chunks, last_step) {
            break;
        }
    }
    Ok(())
}
