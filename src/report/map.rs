//! The memory map as JSON. The schema is in docs/memory-map.md. `schema` counts its versions.

use super::layout::{ChunkState, each_chunk};
use super::tally::{self, BinTally};
use super::{Guarding, Subject, costs, failure};
use bfc_core::arena::View;
use bfc_core::ids::ChunkId;
use bfc_core::stats::{Failures, Stats};
use bfc_core::streams::Order;
use bfc_core::units::{NUM_BINS, bin_floor, bin_of};
use std::fmt::{self, Write};

pub(crate) fn write(out: &mut dyn Write, subject: &Subject<'_>) -> fmt::Result {
    let Subject { device, name, backend, stats, ref view, guards } = *subject;
    write!(out, "{{\"schema\":1,\"device\":{device},\"name\":")?;
    string(out, name)?;
    write!(out, ",\"backend\":\"{backend}\",")?;
    write_stats(out, &stats, view)?;
    write_counters(out, view, guards)?;
    write_failures(out, &view.counters().failures)?;
    write_costs(out, subject)?;
    write_bins(out, view)?;
    out.write_str("\"regions\":[")?;
    for (position, (_, region)) in view.regions.iter().enumerate() {
        let comma = if position == 0 { "" } else { "," };
        let size = view.extent(region);
        write!(out, "{comma}{{\"address\":\"{:#x}\",\"size\":{size},", region.base)?;
        write!(out, "\"received\":{},\"chunks\":[", region.given)?;
        let mut comma = "";
        each_chunk(view, region.first, |chunk| {
            out.write_str(std::mem::replace(&mut comma, ","))?;
            write_chunk(out, view, chunk)
        })?;
        out.write_str("]}")?;
    }
    out.write_str("]}")
}

fn write_stats(out: &mut dyn Write, stats: &Stats, view: &View<'_>) -> fmt::Result {
    out.write_str("\"stats\":{")?;
    for (name, value) in stats.fields() {
        write!(out, "\"{name}\":{value},")?;
    }
    let free = view.usable_bytes() - stats.bytes_in_use;
    write!(out, "\"fragmentation\":{}}},", failure::fragmentation(free, stats.largest_free_block_bytes))
}

fn write_counters(out: &mut dyn Write, view: &View<'_>, guards: Option<Guarding<'_>>) -> fmt::Result {
    let counters = view.counters();
    write!(out, "\"counters\":{{\"regions_added\":{},", counters.regions_added)?;
    write!(out, "\"regions_released\":{},", counters.regions_released)?;
    write!(out, "\"stamped_splits\":{},", counters.stamped_splits)?;
    write!(out, "\"forced_merges\":{}", counters.forced_merges)?;
    if let Some(Guarding { violations, unchecked, .. }) = guards {
        write!(out, ",\"guard_violations\":{violations},\"guards_unchecked\":{unchecked}")?;
    }
    out.write_str("},")
}

fn write_failures(out: &mut dyn Write, failures: &Failures) -> fmt::Result {
    let Failures { largest, last, last_cause } = *failures;
    write!(out, "\"failures\":{{\"largest\":{largest},\"last\":{last},\"last_cause\":")?;
    match last_cause {
        Some(cause) => write!(out, "\"{}\"}},", cause.name()),
        None => out.write_str("null},"),
    }
}

fn write_costs(out: &mut dyn Write, subject: &Subject<'_>) -> fmt::Result {
    out.write_str("\"costs\":[")?;
    for (position, cost) in costs::of(subject).enumerate() {
        let (comma, choice) = (if position == 0 { "" } else { "," }, cost.choice);
        let (setting, advice) = (choice.setting(), choice.advice());
        write!(out, "{comma}{{\"setting\":\"{setting}\",\"bytes\":{},\"of\":{},", cost.bytes, cost.of)?;
        write!(out, "\"advice\":\"{advice}\"}}")?;
    }
    out.write_str("],")
}

fn write_bins(out: &mut dyn Write, view: &View<'_>) -> fmt::Result {
    out.write_str("\"bins\":[")?;
    let mut bins = [BinTally::default(); NUM_BINS];
    tally::bins(view, &mut bins);
    for (number, bin) in bins.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(out, "{comma}{{\"bin\":{number},\"from\":{},\"chunks\":{},", bin_floor(number), bin.chunks)?;
        write!(out, "\"chunks_in_use\":{},\"bytes\":{},", bin.chunks_in_use, bin.bytes)?;
        write!(out, "\"bytes_in_use\":{},\"bytes_requested\":{}}}", bin.bytes_in_use, bin.bytes_requested)?;
    }
    out.write_str("],")
}

fn write_chunk(out: &mut dyn Write, view: &View<'_>, id: ChunkId) -> fmt::Result {
    let chunks = view.chunks;
    let size = chunks.size(id);
    write!(out, "{{\"address\":\"{:#x}\",\"size\":{size},\"bin\":{},", chunks.addr(id), bin_of(size))?;
    let state = ChunkState::of(view, id);
    if state != ChunkState::InUse {
        write!(out, "\"state\":\"{}\",\"stamp\":{}", state.name(), chunks.stamp(id))?;
        write_stream(out, view, id)?;
        return out.write_str("}");
    }
    let cold = chunks.cold(id);
    write!(
        out,
        "\"state\":\"in_use\",\"requested\":{},\"allocation_id\":{}",
        cold.requested, cold.allocation_id
    )?;
    write_stream(out, view, id)?;
    let tag = chunks.tag(id);
    if let Some(name) = view.names.name(tag.name) {
        out.write_str(",\"operation\":")?;
        string(out, name)?;
        write!(out, ",\"step\":{}", tag.step)?;
    }
    out.write_str("}")
}

/// Writes the stream or pool of a chunk in use, or of a free chunk that only this stream may reuse. Writes nothing if
/// there is a single stream, or if every stream may reuse the chunk.
fn write_stream(out: &mut dyn Write, view: &View<'_>, id: ChunkId) -> fmt::Result {
    let Some(Order { stream, pool, .. }) = view.order(id) else { return Ok(()) };
    if stream.exists() {
        write!(out, ",\"stream\":\"{:#x}\"", stream.handle())?;
    } else {
        out.write_str(",\"stream\":null")?;
    }
    match pool {
        Some(name) => write!(out, ",\"pool\":{name}"),
        None => Ok(()),
    }
}

/// Writes a JSON string.
pub(super) fn string(out: &mut dyn Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            control if control < ' ' => write!(out, "\\u{:04x}", control as u32)?,
            other => out.write_char(other)?,
        }
    }
    out.write_char('"')
}
