//! `bfc diff`: what changed between two moments, of one history or of two, or between two memory maps.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::rc::Rc;

use anyhow::Result;
use clap::Args;
use os::terms::is_no_limit;
use serde::Serialize;

use super::snapshot::{Place, PoolAt, Snapshot, Totals};
use crate::names::{self, shown};
use crate::output::Output;
use crate::size::{self, human};

/// How many operations the text lists, and how many sizes of each.
const LISTED: usize = 20;
const SIZES: usize = 5;

/// The arguments of `bfc diff`.
#[derive(Args)]
pub struct Diff {
    /// A history, or FILE@MOMENT for a moment of it, or a memory map of bfc_memory_map or bfc replay --map
    a: OsString,
    /// The same for the moment that it is compared with
    b: OsString,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Shown after the options of `bfc diff`.
pub const EXAMPLES: &str = "\
Examples:
  bfc diff 'train.history@epoch 1' 'train.history@epoch 2'   between two marks
  bfc diff train.history@begin train.history@peak            what the peak is made of
  bfc diff train.history@10s train.history@20s               what ten seconds added
  bfc diff before.history after.history                      the ends of two runs
  bfc diff before.history@peak after.history@peak            their peaks
  bfc diff before.map after.map                              two memory maps";

/// The difference, without what is equal.
#[derive(Serialize)]
pub(super) struct Difference {
    schema: &'static str,
    a: Snapshot,
    b: Snapshot,
    pools: Vec<PoolDifference>,
}

#[derive(Serialize)]
struct PoolDifference {
    device: Option<i32>,
    name: String,
    /// `both`, `a` or `b`.
    r#in: &'static str,
    totals: BTreeMap<&'static str, Pair>,
    operations: Vec<OperationDifference>,
}

#[derive(Serialize, Clone, Copy, Default, PartialEq, Eq)]
struct Pair {
    a: u64,
    b: u64,
}

#[derive(Serialize, Default)]
struct OperationDifference {
    operation: Option<Rc<str>>,
    bytes: Pair,
    allocations: Pair,
    /// Those whose number has changed.
    sizes: Vec<SizeDifference>,
}

#[derive(Serialize)]
struct SizeDifference {
    bytes: u64,
    allocations: Pair,
}

/// Prints the difference.
pub fn diff(args: &Diff, output: &mut Output) -> Result<()> {
    let place = |text: &OsString| Place::of(text, |path| path.exists());
    let difference = Difference::new(Snapshot::read(&place(&args.a))?, Snapshot::read(&place(&args.b))?);
    if args.json { output.write_json(&difference) } else { output.write(&difference.text()) }
}

impl Pair {
    fn change(self) -> i128 {
        i128::from(self.b) - i128::from(self.a)
    }

    /// A change in bytes with its sign.
    fn bytes(self) -> String {
        let sign = if self.b < self.a { '-' } else { '+' };
        format!("{sign}{}", human(self.a.abs_diff(self.b)))
    }
}

impl Difference {
    pub(super) fn new(a: Snapshot, b: Snapshot) -> Self {
        let mut pools = Vec::new();
        if let ([first], [second]) = (&a.pools[..], &b.pools[..]) {
            // The names of the pools of two runs may differ.
            pools.push(PoolDifference::new(Some(first), Some(second)));
        } else {
            let (first, second) = (by_name(&a.pools), by_name(&b.pools));
            let mut keys: Vec<_> = first.keys().chain(second.keys()).collect();
            keys.sort();
            keys.dedup();
            let pair = |key| PoolDifference::new(first.get(key).copied(), second.get(key).copied());
            pools.extend(keys.into_iter().map(pair));
        }
        Difference { schema: "bfc-diff/1", a, b, pools }
    }

    /// The difference for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("a: {}\nb: {}\n", self.a, self.b);
        if self.pools.is_empty() {
            text.push_str("no allocator in either\n");
        }
        self.pools.iter().for_each(|pool| pool.write(&mut text));
        text
    }
}

/// The pools by their devices and names. Several with one name are distinguished by their order.
fn by_name(pools: &[PoolAt]) -> BTreeMap<(Option<i32>, &str, usize), &PoolAt> {
    let mut counts = BTreeMap::new();
    let named = pools.iter().map(|pool| {
        let count = counts.entry((pool.device, &*pool.name)).or_insert(0);
        *count += 1;
        ((pool.device, &*pool.name, *count), pool)
    });
    named.collect()
}

fn totals(a: &Totals, b: &Totals) -> BTreeMap<&'static str, Pair> {
    let of = |field: fn(&Totals) -> u64| Pair { a: field(a), b: field(b) };
    BTreeMap::from([
        ("limit", of(|totals| totals.limit)),
        ("held", of(|totals| totals.held)),
        ("in_use", of(|totals| totals.in_use)),
        ("requested", of(|totals| totals.requested)),
        ("peak_in_use", of(|totals| totals.peak_in_use)),
        ("peak_held", of(|totals| totals.peak_held)),
        ("allocations", of(|totals| totals.allocations)),
        ("frees", of(|totals| totals.frees)),
        ("failures", of(|totals| totals.failures)),
        ("unknown_bytes", of(|totals| totals.unknown_bytes)),
    ])
}

/// The rows of the text: the field, its name, and whether it is in bytes and always shown.
const ROWS: [(&str, &str, bool, bool); 10] = [
    ("limit", "limit", true, false),
    ("held", "held", true, true),
    ("in_use", "in use", true, true),
    ("requested", "requested", true, false),
    ("peak_held", "peak held", true, false),
    ("peak_in_use", "peak in use", true, false),
    ("allocations", "allocations", false, false),
    ("frees", "frees", false, false),
    ("failures", "failures", false, false),
    ("unknown_bytes", "unknown", true, false),
];

impl PoolDifference {
    fn new(a: Option<&PoolAt>, b: Option<&PoolAt>) -> Self {
        let nothing = PoolAt::default();
        let (first, second) = (a.unwrap_or(&nothing), b.unwrap_or(&nothing));
        let named = b.or(a).unwrap_or(&nothing);
        PoolDifference {
            device: named.device,
            name: named.name.clone(),
            r#in: match (a, b) {
                (Some(_), None) => "a",
                (None, Some(_)) => "b",
                _ => "both",
            },
            totals: totals(&first.totals, &second.totals),
            operations: operations(first, second),
        }
    }

    fn write(&self, text: &mut String) {
        let device = names::device(self.device);
        let only = match self.r#in {
            "both" => String::new(),
            side => format!(", only in {side}"),
        };
        let _ = writeln!(text, "{device} ({}){only}", shown(&self.name));
        for (field, name, is_bytes, is_always_shown) in ROWS {
            let pair = self.totals.get(field).copied().unwrap_or_default();
            if pair.a == pair.b && !is_always_shown {
                continue;
            }
            let _ = match is_bytes {
                // Only of limits: there is no difference to "none".
                true if is_no_limit(pair.a.max(pair.b)) => {
                    writeln!(text, "  {name:<12} {} to {}", size::limit(pair.a), size::limit(pair.b))
                }
                true => {
                    writeln!(text, "  {name:<12} {} to {}: {}", human(pair.a), human(pair.b), pair.bytes())
                }
                false => writeln!(text, "  {name:<12} {} to {}: {:+}", pair.a, pair.b, pair.change()),
            };
        }
        if self.operations.is_empty() {
            text.push_str("  the same is live, by operation and size\n");
            return;
        }
        text.push_str("  live, by operation and size:\n");
        for operation in self.operations.iter().take(LISTED) {
            operation.write(text);
        }
        if self.operations.len() > LISTED {
            let _ = writeln!(text, "    and {} more (--json has all)", self.operations.len() - LISTED);
        }
    }
}

impl OperationDifference {
    fn write(&self, text: &mut String) {
        let name = names::operation(self.operation.as_deref());
        let _ = writeln!(
            text,
            "    {:>12}  {name}: {} in {} to {} in {}",
            self.bytes.bytes(),
            human(self.bytes.a),
            self.allocations.a,
            human(self.bytes.b),
            self.allocations.b
        );
        for size in self.sizes.iter().take(SIZES) {
            let _ = writeln!(text, "        {:+} of {}", size.allocations.change(), human(size.bytes));
        }
        if self.sizes.len() > SIZES {
            let _ = writeln!(text, "        and {} other sizes", self.sizes.len() - SIZES);
        }
    }
}

/// The operations with more or fewer live bytes, by the difference.
fn operations(a: &PoolAt, b: &PoolAt) -> Vec<OperationDifference> {
    let mut sizes: BTreeMap<&(Option<Rc<str>>, u64), Pair> = BTreeMap::new();
    for (key, &count) in &a.live {
        sizes.entry(key).or_default().a = count;
    }
    for (key, &count) in &b.live {
        sizes.entry(key).or_default().b = count;
    }
    let mut operations: BTreeMap<&Option<Rc<str>>, OperationDifference> = BTreeMap::new();
    for ((name, bytes), count) in sizes {
        let operation = operations.entry(name).or_default();
        operation.operation.clone_from(name);
        for (bytes_sum, sum, count) in [
            (&mut operation.bytes.a, &mut operation.allocations.a, count.a),
            (&mut operation.bytes.b, &mut operation.allocations.b, count.b),
        ] {
            // A damaged file may contain any numbers.
            *bytes_sum = bytes_sum.saturating_add(bytes.saturating_mul(count));
            *sum += count;
        }
        if count.a != count.b {
            operation.sizes.push(SizeDifference { bytes: *bytes, allocations: count });
        }
    }
    let mut list: Vec<OperationDifference> =
        operations.into_values().filter(|operation| !operation.sizes.is_empty()).collect();
    for operation in &mut list {
        operation.sizes.sort_by_key(|size| {
            let change = size.allocations.change().unsigned_abs();
            std::cmp::Reverse((change.saturating_mul(u128::from(size.bytes)), size.bytes))
        });
    }
    list.sort_by(|a, b| {
        let by_change = b.bytes.change().abs().cmp(&a.bytes.change().abs());
        by_change.then_with(|| a.operation.cmp(&b.operation))
    });
    list
}
