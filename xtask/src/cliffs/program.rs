//! Programs of allocator calls as lines of text, and their mutations. benches/cliffs/cliffs.c says what each means and runs
//! them.

use std::fmt;

use anyhow::{Context, Result, bail};

/// What an option can be, without `room`, which has a value.
const OPTIONS: [&str; 7] = ["growth", "gc", "stamps", "split", "quarantine", "coalesce", "cuda"];
const ROOM: &str = "room";

/// The fields of a step, with the most that each can be.
type Fields = &'static [(&'static str, u64)];

const COUNT: (&str, u64) = ("n", 1000);
const MORE: (&str, u64) = ("k", 64);
const STREAMS: (&str, u64) = ("streams", 512);
const FIRST: (&str, u64) = ("first", 511);
const EVERY: (&str, u64) = ("every", 64);
const FROM: (&str, u64) = ("from", 1000);
const SKIP: (&str, u64) = ("skip", 64);

const STEPS: [(&str, Fields); 14] = [
    (
        "alloc",
        &[
            COUNT,
            MORE,
            ("size", 65_536),
            ("other", 65_536),
            ("share", 100),
            ("step", 4096),
            ("align", 24),
            STREAMS,
            FIRST,
            ("before", 100),
        ],
    ),
    ("free", &[COUNT, MORE, EVERY, FROM, SKIP, ("order", 3), STREAMS, FIRST]),
    ("use", &[COUNT, MORE, EVERY, FROM, SKIP, STREAMS, FIRST]),
    ("sync", &[STREAMS, FIRST]),
    ("forget", &[STREAMS, FIRST]),
    ("begin", &[STREAMS, FIRST]),
    ("end", &[STREAMS, FIRST]),
    ("release", &[]),
    ("frontier", &[("share", 100)]),
    ("trim", &[]),
    ("limit", &[]),
    // Where a mutation is at home on the simulated driver only.
    ("hold", &[STREAMS, FIRST]),
    ("done", &[]),
    // Twice as likely: what is measured is mostly a request.
    ("alloc", &[COUNT, MORE, ("size", 64), ("align", 12), STREAMS, FIRST, ("before", 100)]),
];

/// Values at which something often begins.
const USUAL: [u64; 14] = [0, 1, 2, 3, 4, 8, 9, 12, 64, 90, 100, 500, 610, 987];

/// The most steps of a program, so that the worst ones can still be read.
const MOST: usize = 12;

#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    options: Vec<&'static str>,
    room: u64,
    steps: Vec<Step>,
}

#[derive(Clone, PartialEq, Eq)]
struct Step {
    name: &'static str,
    fields: Fields,
    /// One for each field; what is 0 is not written.
    values: Vec<u64>,
}

/// SplitMix64: the same programs in each run with the same seed.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

impl Program {
    /// Reads `OPTIONS; STEP; STEP...`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(';');
        let mut program = Self { options: Vec::new(), room: 0, steps: Vec::new() };
        for word in parts.next().unwrap_or_default().split_whitespace() {
            if let Some(units) = word.strip_prefix("room=") {
                program.room = units.parse().with_context(|| format!("{word} is no number"))?;
                continue;
            }
            let known = OPTIONS.iter().find(|name| **name == word);
            program.options.push(known.with_context(|| format!("there is no option {word}"))?);
        }
        program.steps = parts.map(Step::parse).collect::<Result<_>>()?;
        Ok(program)
    }

    /// Another program: one to four changes of this one, with steps of a second one now and then.
    pub fn mutated(&self, random: &mut Random, second: &Self) -> Self {
        let mut program = self.clone();
        for _ in 0..=random.below(4) {
            program.change(random, second);
        }
        program.steps.truncate(MOST);
        program
    }

    fn change(&mut self, random: &mut Random, second: &Self) {
        let count = self.steps.len();
        let at = random.below(count);
        match random.below(12) {
            0 => {
                let option = OPTIONS[random.below(OPTIONS.len())];
                match self.options.iter().position(|name| *name == option) {
                    Some(there) => drop(self.options.remove(there)),
                    None => self.options.push(option),
                }
            }
            1 => self.room = [0, 1, 2, 3, 8][random.below(5)],
            2 => self.steps.insert(random.below(count + 1), Step::new(random)),
            3 if count > 0 => drop(self.steps.remove(at)),
            4 if count > 0 => self.steps.insert(random.below(count + 1), self.steps[at].clone()),
            5 if count > 0 => self.steps.swap(at, random.below(count)),
            6 => {
                let from = random.below(second.steps.len());
                self.steps.truncate(at + 1);
                self.steps.extend_from_slice(second.steps.get(from..).unwrap_or_default());
            }
            _ if count > 0 => self.steps[at].change(random),
            _ => {}
        }
    }

    /// The same without one step, option or field, for each that it has.
    pub fn simpler(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut program = self.clone();
            change(&mut program);
            all.push(program);
        };
        (0..self.steps.len()).for_each(|at| add(&|program| drop(program.steps.remove(at))));
        (0..self.options.len()).for_each(|at| {
            add(&|program| {
                program.options.remove(at);
            })
        });
        if self.room != 0 {
            add(&|program| program.room = 0);
        }
        for (at, step) in self.steps.iter().enumerate() {
            let set = step.values.iter().enumerate().filter(|(_, value)| **value != 0);
            set.for_each(|(field, _)| add(&|program| program.steps[at].values[field] = 0));
        }
        all
    }
}

impl Step {
    fn parse(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let name = words.next().context("a step is empty")?;
        let known = STEPS.iter().find(|(known, _)| *known == name);
        let &(name, fields) = known.with_context(|| format!("there is no step {name}"))?;
        let mut step = Self { name, fields, values: vec![0; fields.len()] };
        for word in words {
            let (field, value) = word.split_once('=').with_context(|| format!("{word} is no field"))?;
            let Some(at) = fields.iter().position(|(known, _)| *known == field) else {
                bail!("{name} has no field {field}");
            };
            step.values[at] = value.parse().with_context(|| format!("{word} is no number"))?;
        }
        Ok(step)
    }

    fn new(random: &mut Random) -> Self {
        let (name, fields) = STEPS[random.below(STEPS.len())];
        let mut step = Self { name, fields, values: vec![0; fields.len()] };
        for _ in 0..fields.len() {
            step.change(random);
        }
        step
    }

    fn change(&mut self, random: &mut Random) {
        let at = random.below(self.fields.len());
        let Some(value) = self.values.get_mut(at) else {
            return;
        };
        let most = self.fields[at].1;
        *value = match random.below(6) {
            0 => 0,
            1 => random.next() % (most + 1),
            2 => *value * 2,
            3 => *value / 2,
            4 => value.wrapping_add_signed([-1, 1][random.below(2)]).min(most),
            _ => USUAL[random.below(USUAL.len())],
        }
        .min(most);
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options: Vec<String> = self.options.iter().map(|name| (*name).to_owned()).collect();
        if self.room != 0 {
            options.push(format!("{ROOM}={}", self.room));
        }
        write!(formatter, "{}", options.join(" "))?;
        for step in &self.steps {
            write!(formatter, "; {}", step.name)?;
            let set = step.fields.iter().zip(&step.values).filter(|(_, value)| **value != 0);
            for ((name, _), value) in set {
                write!(formatter, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_their_mutations_are_read_as_they_are_written() {
        let text = "split room=2; alloc n=900 size=3 other=9 streams=2; free n=1000 every=2; trim";
        let program = Program::parse(text).expect("a good program");
        assert_eq!(program.to_string(), text);
        let mut random = Random(1);
        let mut mutated = program.clone();
        for _ in 0..1000 {
            mutated = mutated.mutated(&mut random, &program);
            let text = mutated.to_string();
            let again = Program::parse(&text).unwrap_or_else(|error| panic!("{text}: {error:#}"));
            assert_eq!(again.to_string(), text);
        }
        assert!(mutated != program);
        // A step, an option, the room, and each field.
        assert_eq!(program.simpler().len(), 3 + 1 + 1 + 4 + 2);
        for bad in ["fast; trim", "; jump", "; trim n=1", "; alloc n=x", "; ;", "room=y"] {
            assert!(Program::parse(bad).is_err(), "{bad}");
        }
    }
}
