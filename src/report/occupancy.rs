//! The occupancy line: the pool in 100 columns, after TensorFlow's `RenderOccupancy`.

use bfc_core::arena::View;
use bfc_core::ids::NIL;
use std::fmt;

const COLUMNS: usize = 100;

/// Writes 100 columns: `*` used, `x` slack at the end of a chunk, `_` free. If several chunks share a column, the last
/// one determines it. Unmapped ranges are left out, so the line shows the memory in address order.
pub(crate) fn write(out: &mut dyn fmt::Write, view: &View<'_>) -> fmt::Result {
    let mut line = [b'_'; COLUMNS];
    let total = view.usable_bytes();
    let mut offset = 0;
    for (_, region) in view.regions.iter() {
        let mut chunk = region.first;
        while chunk != NIL {
            let start = offset;
            offset += if view.is_unmapped(chunk) { 0 } else { view.chunks.size(chunk) };
            if view.chunks.in_use(chunk) {
                let requested = view.chunks.cold(chunk).requested;
                let slack = view.chunks.size(chunk) - requested;
                paint(&mut line, total, start + requested, slack, b'x');
                paint(&mut line, total, start, requested, b'*');
            }
            chunk = view.chunks.next(chunk);
        }
    }
    line.iter().try_for_each(|&column| out.write_char(column.into()))
}

fn paint(line: &mut [u8; COLUMNS], total: u64, start: u64, bytes: u64, with: u8) {
    if bytes != 0 {
        let column = |at: u64| (u128::from(at) * COLUMNS as u128 / u128::from(total)) as usize;
        line[column(start)..=column(start + bytes - 1)].fill(with);
    }
}
