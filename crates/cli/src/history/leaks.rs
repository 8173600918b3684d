//! What was allocated in a part of a history and not freed by its end: `bfc report --leaks`, `bfc run --leaks`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::rc::Rc;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use super::holders::{self, HolderStack, Sum, by_frames, write_stacks};
use super::moment::{Moment, Point};
use super::summary::seconds;
use crate::names::{self, shown};
use crate::size::{counted, human};
use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::timeline::{Live, PoolState};

/// How many operations and marks the text lists.
const LISTED: usize = 20;

/// The part of the history to list.
#[derive(Args, Clone, Debug)]
pub struct LeaksArgs {
    /// List the memory of a history that was allocated and not freed, by operation
    #[arg(long, conflicts_with = "output")]
    pub leaks: bool,
    /// Only what was allocated after this moment: a mark, 12.5s, peak [default: begin]
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    from: Option<Moment>,
    /// Only what was allocated before this moment [default: that of --to]
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    before: Option<Moment>,
    /// Only what was not freed before this moment [default: end]
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    to: Option<Moment>,
}

impl LeaksArgs {
    /// The whole history.
    pub const ALL: Self = LeaksArgs { leaks: true, from: None, before: None, to: None };

    /// Checks that clap cannot express.
    pub fn check(&self) -> Result<(), &'static str> {
        let has_moment = [&self.from, &self.before, &self.to].into_iter().any(Option::is_some);
        if has_moment && !self.leaks {
            return Err(
                "--from, --before and --to need --leaks: everything else describes the whole history",
            );
        }
        Ok(())
    }
}

/// What is live, and where it was allocated.
#[derive(Serialize)]
pub struct Leaks {
    schema: &'static str,
    process: u32,
    program: String,
    from: Point,
    before: Point,
    to: Point,
    #[serde(flatten)]
    amount: Amount,
    pools: Vec<PoolLeaks>,
    /// When it was allocated, by marks. The first entry is for what was allocated before the first mark.
    since: Vec<Since>,
}

#[derive(Serialize, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    bytes: u64,
    requested: u64,
    allocations: u64,
}

#[derive(Serialize)]
struct PoolLeaks {
    device: Option<i32>,
    name: String,
    /// When the pool was destroyed. What was live then is listed.
    destroyed: Option<f64>,
    #[serde(flatten)]
    amount: Amount,
    /// Memory in use that was allocated by events missing in the file.
    unknown_bytes: u64,
    /// Largest first.
    operations: Vec<Operation>,
}

#[derive(Serialize)]
struct Operation {
    operation: Option<Rc<str>>,
    #[serde(flatten)]
    amount: Amount,
    /// When the first and the last of it was allocated.
    first: f64,
    last: f64,
    sizes: Vec<Size>,
    /// Where it was allocated, the most bytes first. Empty without backtraces.
    stacks: Vec<HolderStack>,
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    allocations: u64,
}

#[derive(Serialize)]
struct Since {
    mark: Option<Rc<str>>,
    seconds: f64,
    #[serde(flatten)]
    amount: Amount,
}

impl Amount {
    fn add(&mut self, live: &Live) {
        // A damaged file may contain any numbers.
        self.bytes = self.bytes.saturating_add(live.bytes);
        self.requested = self.requested.saturating_add(live.requested);
        self.allocations += 1;
    }

    fn text(&self) -> String {
        let requested = match self.requested {
            requested if requested == self.bytes => String::new(),
            requested => format!(", {} requested", human(requested)),
        };
        format!("{} in {}{requested}", human(self.bytes), counted(self.allocations as usize, "allocation"))
    }
}

/// A pool at a moment, or at its destruction before that.
#[derive(Default)]
struct AtEnd {
    state: PoolState,
    /// Allocations that were live in memory that the pool has given back since its last other event. When it is
    /// destroyed it first gives its regions back.
    returned: Vec<Live>,
    live_at_destruction: Vec<Live>,
    /// Unknown memory that was in use before memory was given back.
    unknown: u64,
    destroyed: Option<u64>,
}

impl AtEnd {
    fn apply(&mut self, event: &Recorded) {
        match event.kind {
            Kind::Returned => {
                let end = event.address.saturating_add(event.bytes);
                self.returned.extend(self.state.live.range(event.address..end).map(|(_, live)| *live));
            }
            Kind::End => {
                self.live_at_destruction = std::mem::take(&mut self.returned);
                self.live_at_destruction.extend(self.state.live.values());
                self.destroyed = Some(event.time);
            }
            _ => self.returned.clear(),
        }
        self.state.apply(event);
        if !matches!(event.kind, Kind::Returned | Kind::End) {
            self.unknown = self.state.in_use.saturating_sub(self.state.known);
        }
    }

    fn unknown(&self) -> u64 {
        match self.destroyed {
            Some(_) => self.unknown,
            None => self.state.in_use.saturating_sub(self.state.known),
        }
    }

    fn live(&self) -> impl Iterator<Item = &Live> {
        self.live_at_destruction.iter().chain(self.state.live.values())
    }
}

impl Leaks {
    pub fn new(history: &History, args: &LeaksArgs) -> Result<Self> {
        let find =
            |moment: &Option<Moment>, default: Moment| moment.as_ref().unwrap_or(&default).find(history);
        let (from, to) = (find(&args.from, Moment::Begin)?, find(&args.to, Moment::End)?);
        let before = args.before.as_ref().map_or(Ok(to.clone()), |moment| moment.find(history))?;
        for (earlier, later, names) in [(&from, &before, "--from"), (&before, &to, "--before")] {
            if earlier.number > later.number {
                bail!("{names} is {earlier}, which is later than {later}");
            }
        }
        let mut pools: BTreeMap<u16, AtEnd> = BTreeMap::new();
        for event in history.events.iter().take_while(|event| event.number < to.number) {
            if event.kind != Kind::Mark {
                pools.entry(event.pool).or_default().apply(event);
            }
        }
        let is_asked_for = |live: &&Live| (from.number..before.number).contains(&live.since);
        let mut since = Sinces::new(history, &from, &before);
        let mut total = Amount::default();
        let mut list = Vec::new();
        for (&pool, end) in &pools {
            let mut groups: HashMap<u32, Group> = HashMap::new();
            let mut amount = Amount::default();
            for live in end.live().filter(is_asked_for) {
                groups.entry(live.operation).or_default().add(live);
                [&mut amount, &mut total, since.of(live.since)].into_iter().for_each(|sum| sum.add(live));
            }
            let (device, name) = history.pool(pool).unzip();
            let mut operations: Vec<Operation> =
                groups.into_iter().map(|(number, group)| group.finish(history, pool, number)).collect();
            operations.sort_by(|a, b| {
                b.amount.bytes.cmp(&a.amount.bytes).then_with(|| a.operation.cmp(&b.operation))
            });
            list.push(PoolLeaks {
                device,
                name: name.unwrap_or_default().to_owned(),
                destroyed: end.destroyed.map(seconds),
                amount,
                unknown_bytes: end.unknown(),
                operations,
            });
        }
        Ok(Leaks {
            schema: "bfc-leaks/1",
            process: history.process,
            program: history.program.clone(),
            from,
            before,
            to,
            amount: total,
            pools: list,
            since: since.list,
        })
    }

    /// Whether anything is live, even if the file does not say what.
    pub fn any(&self) -> bool {
        self.amount.allocations != 0 || self.pools.iter().any(|pool| pool.unknown_bytes != 0)
    }

    /// The list for people.
    pub fn text(&self) -> String {
        let mut text = format!("leaks of process {}: {}\n", self.process, shown(&self.program));
        let _ = write!(text, "  allocated    after {}", self.from);
        if self.before.number != self.to.number {
            let _ = write!(text, " and before {}", self.before);
        }
        let _ = writeln!(text, "\n  not freed by {}", self.to);
        let _ = writeln!(text, "  live         {}", self.amount.text());
        self.pools.iter().for_each(|pool| pool.write(&mut text));
        self.write_since(&mut text);
        text
    }

    fn write_since(&self, text: &mut String) {
        let mut largest: Vec<&Since> =
            self.since.iter().filter(|since| since.amount.allocations != 0).collect();
        if self.since.len() < 2 || largest.is_empty() {
            return;
        }
        let hidden = largest.len().saturating_sub(LISTED);
        if hidden != 0 {
            // Those that keep most, in the order of time.
            largest.sort_by_key(|since| std::cmp::Reverse(since.amount.bytes));
            largest.truncate(LISTED);
            largest.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        }
        text.push_str("allocated after the mark and before the next:\n");
        for since in largest {
            let name = since.mark.as_deref().map_or("(before the first mark)".into(), shown);
            let _ = writeln!(text, "  {:9.3} s  {}  {name}", since.seconds, since.amount.text());
        }
        if hidden != 0 {
            let _ = writeln!(text, "  and {hidden} with less (--json has all)");
        }
    }
}

impl PoolLeaks {
    fn write(&self, text: &mut String) {
        let device = names::device(self.device);
        let destroyed =
            self.destroyed.map(|seconds| format!(", destroyed after {seconds:.3} s")).unwrap_or_default();
        let _ = writeln!(text, "{device} ({}){destroyed}", shown(&self.name));
        let _ = writeln!(text, "  live         {}", self.amount.text());
        if self.unknown_bytes != 0 {
            let _ = writeln!(
                text,
                "  unknown      {} were allocated by displaced events (record more with BFC_HISTORY)",
                human(self.unknown_bytes)
            );
        }
        for operation in self.operations.iter().take(LISTED) {
            let name = names::operation(operation.operation.as_deref());
            let _ = writeln!(
                text,
                "    {:>11}  {}  {name}: {}, allocated {}",
                human(operation.amount.bytes),
                counted(operation.amount.allocations as usize, "allocation"),
                operation.sizes(),
                operation.when()
            );
            let Amount { bytes, allocations, .. } = operation.amount;
            write_stacks(text, &operation.stacks, (bytes, allocations));
        }
        if self.operations.len() > LISTED {
            let _ = writeln!(text, "    and {} more (--json has all)", self.operations.len() - LISTED);
        }
    }
}

impl Operation {
    /// The sizes that take most.
    fn sizes(&self) -> String {
        let shown: Vec<String> = self
            .sizes
            .iter()
            .take(3)
            .map(|size| format!("{} of {}", size.allocations, human(size.bytes)))
            .collect();
        let more = if self.sizes.len() > 3 { ", ..." } else { "" };
        format!("{}{more}", shown.join(", "))
    }

    fn when(&self) -> String {
        if self.first == self.last {
            return format!("after {:.3} s", self.first);
        }
        format!("after {:.3} s to {:.3} s", self.first, self.last)
    }
}

/// Sums up one operation.
#[derive(Default)]
struct Group {
    amount: Amount,
    /// The numbers of the first and the last event.
    first: Option<u64>,
    last: u64,
    sizes: HashMap<u64, u64>,
    stacks: HashMap<u32, Sum>,
}

impl Group {
    fn add(&mut self, live: &Live) {
        self.amount.add(live);
        if live.stack != 0 {
            holders::add(self.stacks.entry(live.stack).or_default(), live.bytes);
        }
        self.first = Some(self.first.map_or(live.since, |first| first.min(live.since)));
        self.last = self.last.max(live.since);
        *self.sizes.entry(live.bytes).or_default() += 1;
    }

    fn finish(self, history: &History, pool: u16, number: u32) -> Operation {
        let mut sizes: Vec<Size> =
            self.sizes.into_iter().map(|(bytes, allocations)| Size { bytes, allocations }).collect();
        sizes.sort_by_key(|size| {
            std::cmp::Reverse((u128::from(size.bytes) * u128::from(size.allocations), size.bytes))
        });
        let time = |number: u64| {
            let at = history.events.binary_search_by_key(&number, |event| event.number);
            at.ok().and_then(|at| history.events.get(at)).map_or(0.0, |event| seconds(event.time))
        };
        Operation {
            operation: history.operation_name(pool, number),
            amount: self.amount,
            first: self.first.map_or(0.0, time),
            last: time(self.last),
            sizes,
            stacks: by_frames(history, self.stacks),
        }
    }
}

/// Sums by the marks between which something was allocated.
struct Sinces {
    /// The numbers of the events that begin each part.
    begins: Vec<u64>,
    list: Vec<Since>,
}

impl Sinces {
    fn new(history: &History, from: &Point, before: &Point) -> Self {
        let first = Since { mark: None, seconds: from.seconds, amount: Amount::default() };
        let (mut begins, mut list) = (vec![from.number], vec![first]);
        for event in history.events.iter().filter(|event| event.kind == Kind::Mark) {
            let (name, amount) = (history.mark(event.name), Amount::default());
            let since = Since { mark: Some(name.clone()), seconds: seconds(event.time), amount };
            if event.number <= from.number {
                list[0] = since;
            } else if event.number < before.number {
                begins.push(event.number);
                list.push(since);
            }
        }
        Sinces { begins, list }
    }

    /// The sum for an allocation by this event, which is within the requested part.
    fn of(&mut self, event: u64) -> &mut Amount {
        let index = self.begins.partition_point(|begin| *begin <= event).saturating_sub(1);
        &mut self.list[index].amount
    }
}
