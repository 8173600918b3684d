//! The settings that an allocator would have, as JSON; docs/environment.md has the schema.

use super::costs::{Choice, LEAST};
use super::map::string;
use crate::options::{
    ALLOW_GROWTH, BackendKind, GARBAGE_COLLECTION, GrowthPolicy, QUARANTINE, Resolution, SPLIT_ALWAYS,
    SetVariable, TIMESTAMPS, TWO_ENDS,
};
use std::fmt::{self, Write};

pub(crate) fn write(out: &mut dyn Write, device: i32, resolution: &Resolution) -> fmt::Result {
    let options = &resolution.options;
    write!(out, "{{\"schema\":1,\"device\":{device},\"backend\":\"{}\"", resolution.backend.name())?;
    for (name, bytes) in [
        ("memory_limit", options.memory_limit),
        ("initial_region_bytes", options.initial_region_bytes),
        ("retry_timeout_ms", options.retry_timeout_ms.into()),
    ] {
        write!(out, ",\"{name}\":{bytes}")?;
    }
    for (name, fraction) in [
        ("memory_fraction", options.memory_fraction),
        ("fragmentation_fraction", options.fragmentation_fraction),
    ] {
        write!(out, ",\"{name}\":{fraction}")?;
    }
    let has = |flag: u32| options.flags & flag != 0;
    for (name, is_on) in [
        ("allow_growth", has(ALLOW_GROWTH)),
        ("garbage_collection", has(GARBAGE_COLLECTION)),
        ("timestamps", has(TIMESTAMPS)),
        ("quarantine", has(QUARANTINE)),
        ("split_always", has(SPLIT_ALWAYS)),
        ("two_ends", has(TWO_ENDS)),
        ("plan", resolution.plan),
        ("guard", resolution.guard),
        ("report_on_failure", resolution.report_failures),
        ("populate", resolution.populate),
    ] {
        write!(out, ",\"{name}\":{is_on}")?;
    }
    let trim_after = resolution.trim_after.map_or(0.0, |time| time.as_secs_f64());
    write!(out, ",\"trim_after\":{trim_after}")?;
    let numa = resolution.numa.map_or("default", |placement| placement.name());
    write!(out, ",\"huge_pages\":\"{}\",\"numa\":\"{numa}\"", resolution.huge_pages.name())?;
    write!(out, ",\"growth_policy\":\"{}\"", options.growth_policy.name())?;
    out.write_str(",\"costs\":[")?;
    for (position, choice) in choices(resolution).into_iter().flatten().enumerate() {
        let comma = if position == 0 { "" } else { "," };
        let (setting, effect, advice) = (choice.setting(), choice.effect(), choice.advice());
        write!(out, "{comma}{{\"setting\":\"{setting}\",\"effect\":\"{effect}\",\"advice\":\"{advice}\"}}")?;
    }
    out.write_str("],\"environment\":[")?;
    let mut comma = "";
    resolution.each_variable(|variable| {
        out.write_str(std::mem::replace(&mut comma, ","))?;
        write_variable(out, variable)
    })?;
    out.write_str("]}")
}

/// Returns the choices that can cost much in a pool with these settings. What they cost is known only of a pool that is in
/// use.
fn choices(resolution: &Resolution) -> [Option<Choice>; 2] {
    let Resolution { options, backend, .. } = resolution;
    if options.memory_limit != 0 && options.memory_limit < LEAST {
        return [None; 2];
    }
    let is_range =
        matches!(backend, BackendKind::HostVmm | BackendKind::CudaVmm | BackendKind::PreferCudaVmm);
    let growth = match options.growth_policy {
        _ if options.flags & ALLOW_GROWTH == 0 => Some(Choice::NoGrowth),
        GrowthPolicy::TensorFlow if !is_range => Some(Choice::Doubling),
        _ => None,
    };
    [growth, (options.flags & SPLIT_ALWAYS == 0).then_some(Choice::Remainders)]
}

fn write_variable(out: &mut dyn Write, variable: &SetVariable<'_>) -> fmt::Result {
    let SetVariable { name, value, is_used, remark } = variable;
    out.write_str("{\"name\":")?;
    string(out, name)?;
    out.write_str(",\"value\":")?;
    string(out, value)?;
    write!(out, ",\"used\":{is_used},\"remark\":")?;
    match remark {
        Some(remark) => write!(out, "\"{remark}\"}}"),
        None => out.write_str("null}"),
    }
}
