//! The settings that an allocator would have, as JSON; docs/environment.md has the schema.

use super::costs::{Choice, LEAST};
use super::map::string;
use crate::options::{BackendKind, Flags, GrowthPolicy, Resolution, SetVariable, Value};
use std::fmt::{self, Write};

pub(crate) fn write(out: &mut dyn Write, device: i32, resolution: &Resolution<'_>) -> fmt::Result {
    write!(out, "{{\"schema\":1,\"device\":{device}")?;
    resolution.each_setting(|key, value| match value {
        Value::Switch(is_on) => write!(out, ",\"{key}\":{is_on}"),
        Value::Whole(number) => write!(out, ",\"{key}\":{number}"),
        Value::Decimal(number) => write!(out, ",\"{key}\":{number}"),
        Value::Name(name) => write!(out, ",\"{key}\":\"{name}\""),
    })?;
    out.write_str(",\"ignored\":[")?;
    let mut comma = "";
    resolution.each_ignored(|key, why| {
        let comma = std::mem::replace(&mut comma, ",");
        write!(out, "{comma}{{\"setting\":\"{key}\",\"reason\":\"{why}\"}}")
    })?;
    out.write_str("],\"costs\":[")?;
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

/// Returns the choices that can cost much in a pool with these settings. Their actual cost is known only for a pool that
/// is in use.
fn choices(resolution: &Resolution<'_>) -> [Option<Choice>; 2] {
    let chosen = &resolution.chosen;
    let options = &chosen.options;
    if options.memory_limit != 0 && options.memory_limit < LEAST {
        return [None; 2];
    }
    let growth = match options.growth_policy {
        _ if !chosen.has(Flags::ALLOW_GROWTH) => Some(Choice::NoGrowth),
        // A device may decide for a virtual range, where regions do not double.
        GrowthPolicy::TensorFlow if options.backend != BackendKind::PreferCudaVmm => Some(Choice::Doubling),
        _ => None,
    };
    [growth, (!chosen.has(Flags::SPLIT_ALWAYS)).then_some(Choice::Remainders)]
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
